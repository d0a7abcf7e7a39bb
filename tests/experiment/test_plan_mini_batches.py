"""Programs of mini-batch training: valid for every choice of the slots, the same ops where a choice is nothing."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.errors import ConfigError, ProgramError
from simgnn.program.calendar import EVALUATE
from simgnn.program.dependencies import windows
from simgnn.program.kinds import Form, OpKind
from simgnn.program.ops import Dependency, Op
from simgnn.program.program import Program, Template, remembered
from simgnn.program.storage import load_program, save_program
from simgnn.program.validate import validate
from tests.sim.mini_batches import CLASSES, WIDTH, made_sizes, planned, statistics

TWO, FOUR = [0, 1], [0, 0, 1, 1]


def ops_of(program: Program, template: str = "step") -> dict[str, Op]:
    return {op.name: op for op in program.templates[template].ops}


@settings(max_examples=25, deadline=None)
@given(
    system=st.sampled_from(["distdgl", "rapidgnn"]),
    kind=st.sampled_from(["gcn", "sage", "gin", "gat"]),
    order=st.sampled_from(["auto", "aggregate-first", "transform-first"]),
    hops=st.integers(1, 3),
    hosts=st.sampled_from([[0], [0, 0], TWO, FOUR, [0, 1, 1]]),
    hot=st.booleans(),
    pull=st.sampled_from(["full", "delta", "once"]),
    schedule=st.sampled_from(["bsp", "prefetch"]),
    window=st.integers(1, 5),
    staged=st.sampled_from(["rows", "blocks"]),
    across=st.booleans(),
    lanes=st.integers(1, 2),
    steps=st.integers(1, 9),
)
def test_every_plan_is_valid(
    system, kind, order, hops, hosts, hot, pull, schedule, window, staged, across, lanes, steps
) -> None:
    sizes = made_sizes(hosts, steps=max(steps, 3), hops=hops, hot_rows=30 if hot and system == "rapidgnn" else 0)
    overrides = [f"model.kind={kind}", "model.heads=1" if kind == "gat" else "train.momentum=0", f"model.order={order}"]
    pull = pull if system == "rapidgnn" else "full"  # the other has no cache
    filled = "placement.hot_scope=run" if pull == "once" else f"placement.pull={pull}"
    overrides += [filled, f"schedule.kind={schedule}"]
    if schedule == "prefetch":
        across = across and staged == "rows"
        told = {"window": window, "staged": staged, "lanes": lanes, "across_epochs": str(across).lower()}
        overrides += [f"schedule.{key}={value}" for key, value in told.items()]
    if system == "distdgl":
        overrides.append("batching.structure=replicated")  # what several threads can draw
    try:
        program = planned(system, hosts, sizes, *overrides).program
    except ConfigError:
        assert kind in ("gin", "gat")  # no other order suits them
        return
    names = set(ops_of(program))
    several = len(set(hosts)) > 1
    assert ("rows/fetch" in names) == (several and system == "distdgl")
    assert ("rows/exchange" in names) == (several and system == "rapidgnn")
    assert ("hot/take" in names) == (several and sizes.cache is not None)
    assert ("hot/keep" in names) == ("hot/take" in names and pull == "delta")
    assert ("hot/stage" in names) == ("hot/take" in names and pull != "once")
    assert (program.calendar.first is not None) == ("hot/take" in names)
    assert ("update/gradients" in names) == (len(hosts) > 1)


@pytest.mark.parametrize("staged", ["rows", "blocks"])
def test_batches_wait_for_a_free_buffer(staged: str) -> None:
    sizes = made_sizes(TWO, hot_rows=30)
    across = str(staged == "rows").lower()
    options = [f"schedule.staged={staged}", "schedule.window=3", f"schedule.across_epochs={across}"]
    program = planned("rapidgnn", TWO, sizes, *options).program
    ops = ops_of(program)
    release = Dependency("backward/1/prepare", steps_back=3)
    assert release in ops["batch/draw"].after
    first = ops["rows/serve"]
    assert (release in first.after) == (staged == "rows")
    assert (Dependency("update/optimize", steps_back=1) in first.after) == (staged == "blocks")
    free = release if staged == "rows" else Dependency("update/optimize", steps_back=1)
    changed = [replace(op, after=tuple(d for d in op.after if d != free)) for op in program.templates["step"].ops]
    with pytest.raises(ProgramError, match="nothing orders them"):
        validate(replace(program, templates={**program.templates, "step": Template("step", tuple(changed))}))


def test_an_epoch_opens_when_the_one_before_has_ended() -> None:
    sizes = made_sizes(TWO, hot_rows=30)
    closed = planned("rapidgnn", TWO, sizes).program
    open_ended = planned("rapidgnn", TWO, sizes, "schedule.across_epochs=true").program
    assert closed.calendar.template(1, 0) == "opening"
    assert closed.calendar.template(0, 0) == open_ended.calendar.template(0, 0) == "first"
    assert open_ended.calendar.opening is None
    more = set(ops_of(closed, "opening")["rows/serve"].after) - set(ops_of(closed)["rows/serve"].after)
    assert more == {Dependency("update/optimize", steps_back=1)}
    assert {name: op for name, op in ops_of(closed, "opening").items() if name != "rows/serve"} == {
        name: op for name, op in ops_of(closed).items() if name != "rows/serve"
    }


def test_without_hot_rows_nothing_of_a_cache_is_there() -> None:
    program = planned("rapidgnn", TWO, made_sizes(TWO)).program
    assert not [name for name in (*program.buffers, *ops_of(program)) if "hot" in name]
    assert program.calendar.first is None


def test_a_program_comes_back_from_disk(tmp_path) -> None:
    program = planned("rapidgnn", FOUR, made_sizes(FOUR, hot_rows=30), "placement.pull=delta").program
    save_program(program, tmp_path)
    back = load_program(tmp_path)
    assert back.templates == program.templates
    assert back.calendar == program.calendar
    assert back.buffers == program.buffers


def test_one_cache_for_a_whole_run_is_filled_before_it_begins() -> None:
    """Of the chain that stages rows nothing fills a cache; the device holds one (docs/systems/rapidgnn.md)."""
    sizes = made_sizes(TWO, hot_rows=30)
    each = planned("rapidgnn", TWO, sizes, "schedule.window=3").program
    once = planned("rapidgnn", TWO, sizes, "schedule.window=3", "placement.hot_scope=run").program
    filling = {"hot/serve", "hot/exchange", "hot/stage"}
    for template in ("first", "step", "opening"):
        assert set(ops_of(each, template)) - set(ops_of(once, template)) == filling
        assert set(ops_of(once, template)) < set(ops_of(each, template))
        assert ("setup/hot/stage" in ops_of(once, template)) == (template == "first")
    assert (each.buffers["hot"].depth, once.buffers["hot"].depth) == (2, 1)
    assert "hot" not in once.sizes.routes
    assert remembered(once) == remembered(each) >= {"hot"}
    bound = 4 * WIDTH * (30 + 3 * int(sizes.rows[-1].max()))
    taken = ["schedule.window=3", "placement.hot_scope=run"]
    planned("rapidgnn", TWO, sizes, *taken, f"placement.device_bytes={bound}")
    with pytest.raises(ConfigError, match=r"but a cache of 30 rows and 3 staged .* at most 29 hot rows"):
        planned("rapidgnn", TWO, sizes, *taken, f"placement.device_bytes={bound - 1}")


def test_the_cache_of_a_whole_run_must_be_there_before_a_batch_takes_from_it() -> None:
    program = planned("rapidgnn", TWO, made_sizes(TWO, hot_rows=30), "placement.hot_scope=run").program
    filled = Dependency("setup/hot/stage")
    ops = [replace(op, after=tuple(d for d in op.after if d != filled)) for op in program.templates["first"].ops]
    with pytest.raises(ProgramError, match=r"buffer 'hot' is used by .* nothing orders them"):
        validate(replace(program, templates={**program.templates, "first": Template("first", tuple(ops))}))


def test_layers_work_on_the_rows_that_their_hop_leaves() -> None:
    sizes = made_sizes(TWO, hops=2)
    program = planned("distdgl", TWO, sizes, "model.kind=sage", "model.order=aggregate-first").program
    ops, told = ops_of(program), program.sizes

    def rows(buffer: str) -> np.ndarray:
        return told.per_rank(program.buffers[buffer].rows, 1, 3)

    at = (slice(None), 1, 3)
    assert np.array_equal(rows("hidden/1"), sizes.rows[1][at])
    assert np.array_equal(rows("hidden/2"), sizes.rows[0][at])
    assert np.array_equal(rows("d/hidden/1"), sizes.rows[1][at])
    assert np.array_equal(rows("d/own/2"), sizes.rows[0][at])
    (sums,) = ops["forward/1/aggregate"].work
    found = {name: told.per_rank(size, 1, 3) for name, size in sums.sizes.items()}
    assert np.array_equal(found["edges"], sizes.edges[1][at])
    assert np.array_equal(found["sources"], sizes.rows[2][at])
    assert "backward/1/aggregate" not in ops  # input rows have no gradient
    parameters = sum(program.buffers[f"parameters/{layer}"].width for layer in (1, 2))
    transfer = ops["update/gradients"].transfer
    assert transfer is not None
    assert transfer.row_bytes == 4 * (parameters + 1)  # the number of seeds travels with the gradients
    assert program.buffers["d/hidden/2"].width == CLASSES


@pytest.mark.parametrize("hosts", [TWO, FOUR, [0]])
def test_every_rank_evaluates_its_own_vertices_on_all_in_edges(hosts: list[int]) -> None:
    stats = statistics(hosts)
    program = planned("rapidgnn", hosts, made_sizes(hosts, hot_rows=30 if len(hosts) > 1 else 0)).program
    ops, told = ops_of(program, EVALUATE), program.sizes
    for layer, width in ((1, WIDTH), (2, 8)):
        (sums,) = ops[f"evaluate/forward/{layer}/aggregate"].work
        found = {name: told.per_rank(size, 0, -1) for name, size in sums.sizes.items()}
        assert np.array_equal(found["edges"], stats.edges)
        assert np.array_equal(found["rows"], stats.rows)
        assert np.array_equal(found["sources"], stats.rows + stats.halo_rows())
        assert (f"evaluate/{layer}/exchange" in ops) == (len(hosts) > 1)
        if len(hosts) > 1:
            op = ops[f"evaluate/{layer}/exchange"]
            assert op.route is not None
            assert op.transfer is not None
            assert op.transfer.row_bytes == 4 * width
            assert np.array_equal(told.routes[op.route].matrix(len(hosts)), stats.halo.matrix(len(hosts)))
    chain = program.templates[EVALUATE].ops
    assert all(later.after == (Dependency(op.name),) for op, later in pairwise(chain))
    assert chain[-1].name == ("evaluate/metrics" if len(hosts) > 1 else "evaluate/loss")


def test_an_evaluation_changes_nothing_else() -> None:
    sizes = made_sizes(FOUR, hot_rows=30)
    whole = planned("rapidgnn", FOUR, sizes).program
    without = planned("rapidgnn", FOUR, sizes, "batching.evaluation=none").program
    assert without.templates == {name: one for name, one in whole.templates.items() if name != EVALUATE}
    more = whole.buffers.keys() - without.buffers.keys()
    assert without.buffers == {name: buffer for name, buffer in whole.buffers.items() if name not in more}
    assert all(name == "evaluation" or name.startswith("evaluate/") for name in more)
    kept = {name for name in more if whole.buffers[name].persistent}
    assert kept == {"evaluation", "evaluate/block", "evaluate/labels"}


def test_bytes_of_a_step_are_those_of_the_store() -> None:
    """Of the copies to a device: rows that are not hot, blocks and seeds (docs/systems/rapidgnn.md)."""
    sizes = made_sizes(TWO, hot_rows=30)
    program = planned("rapidgnn", TWO, sizes).program
    copied = {}
    for name, op in ops_of(program).items():
        if op.kind is OpKind.H2D and op.transfer is not None:
            copied[name] = op.transfer.row_bytes * program.sizes.per_rank(op.transfer.rows, 1, 4)
    at = (slice(None), 1, 4)
    assert np.array_equal(copied["rows/stage"], 4 * WIDTH * (sizes.rows[-1] - sizes.hits)[at])
    blocks = sum(sizes.rows[hop] + 1 + sizes.edges[hop] for hop in range(2))
    assert np.array_equal(copied["batch/stage"], (4 * blocks + 8 * sizes.rows[0])[at])


def test_checking_a_program_does_not_grow_with_its_steps() -> None:
    long, longer = (planned("rapidgnn", TWO, made_sizes(TWO, steps=steps)).program for steps in (40, 80))
    turns = [[len(graph.turns) for graph in windows(program)] for program in (long, longer)]
    assert turns == [[22], [22]]  # a window of four: its rings wrap around in both epochs


@pytest.mark.parametrize("steps", [3, 11, 40])
def test_faults_are_found_in_programs_of_any_number_of_steps(steps: int) -> None:
    program = planned("rapidgnn", TWO, made_sizes(TWO, steps=steps, hot_rows=30), "schedule.window=2").program
    for name in ("rows/stage", "hot/stage", "forward/1/aggregate"):
        changed = [replace(op, after=()) if op.name == name else op for op in program.templates["step"].ops]
        with pytest.raises(ProgramError, match="nothing orders them"):
            validate(replace(program, templates={**program.templates, "step": Template("step", tuple(changed))}))


def test_means_of_ranks_change_what_the_loss_writes_and_nothing_else() -> None:
    """The number that divides travels with the gradients either way."""
    sizes = made_sizes(TWO)
    seeds, ranks = (planned("distdgl", TWO, sizes, *more).program for more in ([], ["train.gradient_mean=ranks"]))
    ops = ops_of(seeds), ops_of(ranks)
    assert [one["forward/loss"].form for one in ops] == [None, Form.RANK_MEANS]
    assert {name for name in ops[0] if ops[0][name] != ops[1][name]} == {"forward/loss"}
    assert seeds.buffers == ranks.buffers
