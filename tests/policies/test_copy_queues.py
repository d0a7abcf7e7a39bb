"""Which streams copies of shared halo rows have, what they wait for, and that nothing less would do."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from programs.test_hand_written import order_is_lost

from executor.state.plan import RunPlan
from simgnn.errors import ConfigError, ProgramError
from simgnn.experiment.load import load_experiment
from simgnn.program.calendar import EVALUATE
from simgnn.program.kinds import Form, OpKind
from simgnn.program.ops import Dependency, Op
from simgnn.program.program import Program, Template
from simgnn.program.validate import validate
from tests.executor.runs import prepared_run, small_graph

CACHED = (
    "freshness.kind=refresh-interval", "freshness.refresh_interval=2", "placement.device_rows=0.3",
    "placement.host_rows=0.5", "model.order=aggregate-first",
)  # fmt: skip
PIPED = "schedule.kind=pipelined"


def planned(folder: Path, *settings: str) -> Program:
    return RunPlan.open(prepared_run(small_graph(), folder / "run", 2, *CACHED, *settings)).program


def ops_of(program: Program, template: str, kind: OpKind, form: Form | None = None) -> list[Op]:
    return [op for op in program.templates[template].ops if op.kind is kind and op.form is form]


def test_copies_have_streams_of_their_own_where_they_may_run_beside(tmp_path: Path) -> None:
    queued, bulk = planned(tmp_path / "a", PIPED, "model.layers=3"), planned(tmp_path / "b", "model.layers=3")
    streams = []
    for program in (queued, bulk):
        found = [
            *ops_of(program, "steady", OpKind.H2D), *ops_of(program, "refresh", OpKind.H2D),
            *ops_of(program, "refresh", OpKind.D2H), *ops_of(program, "refresh", OpKind.COPY, Form.MERGED_ROWS),
            *ops_of(program, "refresh", OpKind.D2H, Form.OWN_ROWS),
        ]  # fmt: skip
        streams.append({(str(op.kind), str(op.form), op.stream) for op in found})
        assert not [op for op in program.templates["steady"].ops if op.kind is OpKind.D2H], "nothing is written"
    assert streams == [
        {("h2d", "None", "copy_in"), ("d2h", "None", "copy_out"), ("copy", "merged-rows", "host_merge")},
        {("h2d", "None", "compute"), ("d2h", "own-rows", "compute")},
    ]
    assert [name for name, stream in queued.streams.items() if stream.in_turn] == ["host_merge"]
    assert queued.buffers["staged/2/forward/store"].space == "host"


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_shared_rows_are_read_as_many_layers_ahead_as_stated(tmp_path: Path, depth: int) -> None:
    program = planned(tmp_path, PIPED, "model.layers=4", f"schedule.prefetch_depth={depth}")
    loads = ops_of(program, "steady", OpKind.H2D)
    assert [op.layer for op in loads] == [2, 3, 4], "inputs are sent once"
    last = {
        op.layer: op.name for op in program.templates["steady"].ops if (op.phase, op.stream) == ("forward", "compute")
    }
    for op in loads:
        began = {d.op for d in op.after if not d.epochs_back}
        ended = op.layer - 1 - depth
        assert (last.get(ended) in began) == (ended > 0), op
        assert not began & {last[layer] for layer in range(max(ended, 0) + 1, 5)}, op


def test_a_depth_without_shared_rows_is_idle() -> None:
    with pytest.raises(ConfigError, match=r"schedule\.prefetch_depth") as caught:
        load_experiment("vanilla", [PIPED, "schedule.prefetch_depth=2"])
    assert caught.value.exit_status == 2
    load_experiment("vanilla", [PIPED, *CACHED, "schedule.prefetch_depth=2"])


def test_ops_of_caches_are_counted_where_they_belong(tmp_path: Path) -> None:
    program = planned(tmp_path, PIPED)
    stages = {
        template: {
            op.name.split("/", 2)[2]: op.category
            for op in program.templates[template].ops
            if (op.layer, op.phase) == (2, "forward") and (op.module == "freshness" or op.kind in COPIES)
        }
        for template in ("steady", "refresh")
    }
    assert stages["steady"] == {
        "missed/pack": "comm_overhead", "check": "check_cache", "pick": "pick_cache", "load": "pick_cache",
        "check_loaded": "check_cache", "put": "pick_cache", "fill": "comm_overhead",
    }  # fmt: skip
    assert stages["refresh"] == {
        "store/copy": "comm_overhead", "store": "comm_overhead", "rest/pack": "comm_overhead", "load": "comm_overhead",
        "fill": "comm_overhead", "check_loaded": "check_cache", "put": "comm_overhead", "keep": "pick_cache",
    }  # fmt: skip


COPIES = (OpKind.H2D, OpKind.D2H, OpKind.COPY)


def without(program: Program, template: str, op: Op, after: Sequence[Dependency]) -> Program:
    ops = tuple(
        replace(other, after=tuple(after)) if other is op else other for other in program.templates[template].ops
    )
    return replace(program, templates={**program.templates, template: Template(template, ops)})


def test_deleting_a_needed_dependency_of_a_queue_is_noticed(tmp_path: Path) -> None:
    program = validate(planned(tmp_path, PIPED))
    touched = {name for name in program.buffers if name.startswith(("shared", "staged", "loaded"))}
    needed = set()
    for template in ("first+refresh", "refresh", "steady"):
        for op in program.templates[template].ops:
            queued = {access.buffer for access in op.reads + op.writes} & touched or op.kind is OpKind.BARRIER
            for dependency in op.after if queued else ():
                shorter = without(program, template, op, [other for other in op.after if other != dependency])
                if order_is_lost(program, shorter):
                    needed.add(op.name.split("/", 2)[-1])
                    with pytest.raises(ProgramError, match=r"nothing orders them|no collective or barrier"):
                        validate(shorter)
    assert {"store", "load", "put"} <= needed


def test_rows_are_read_only_once_all_ranks_have_written_them(tmp_path: Path) -> None:
    program = planned(tmp_path, PIPED)
    for template, back in (("refresh", 0), ("steady", 1)):
        (load,) = ops_of(program, template, OpKind.H2D)
        barrier = Dependency("forward/2/stored", epochs_back=back)
        assert barrier in load.after
        # the rank's own rows alone
        after = [Dependency("forward/2/store", epochs_back=back) if one == barrier else one for one in load.after]
        with pytest.raises(ProgramError, match="no collective or barrier"):
            validate(without(program, template, load, after))


@pytest.mark.parametrize("schedule", ["bsp", "pipelined"])
def test_inputs_are_written_again_only_once_all_ranks_have_read_them(schedule: str, tmp_path: Path) -> None:
    """With an interval of 1, input features that are sent again pass the memory of the host in every epoch, and no
    gradients of theirs travel in between."""
    each = ("communication.resend_inputs=true", "communication.rows=input", f"schedule.kind={schedule}")
    program = planned(tmp_path, *each, "freshness.refresh_interval=1")
    (name,) = {name for name in program.templates if name != EVALUATE}
    (store,) = [op for op in program.templates[name].ops if op.name == "setup/1/store"]
    read = Dependency("setup/1/loaded", epochs_back=1)
    assert read in store.after
    # the rank itself has
    after = [Dependency("setup/1/load", epochs_back=1) if one == read else one for one in store.after]
    with pytest.raises(ProgramError, match="no collective or barrier"):
        validate(without(program, name, store, after))
