"""Programs that learn vectors of vertices: valid for every cluster, delay and schedule, with the bytes and the memory
of docs/systems/distdgl.md, and nothing of it where none are learned."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from simgnn.analysis.replay.recorded_run import different_experiment
from simgnn.errors import ConfigError, ProgramError
from simgnn.experiment.load import load_experiment
from simgnn.program.calendar import EVALUATE
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Dependency, Op
from simgnn.program.program import Program, Template
from simgnn.program.storage import program_digest
from simgnn.program.validate import validate
from simgnn.registry import shipped
from tests.sim.mini_batches import WIDTH, made_sizes, parted_sizes, planned, statistics
from tests.sim.worlds import machine, run

TWO, FOUR = [0, 1], [0, 0, 1, 1]
D = 6
LEARNED = f"placement.sparse_embedding={D}"
LATE = "placement.sparse_delay=1"
BSP = "schedule.kind=bsp"


def _program(hosts: list[int], *settings: str, seed: int = 0) -> Program:
    sizes = made_sizes(hosts, seed=seed)
    sizes = replace(sizes, parted=parted_sizes(hosts, sizes)) if len(set(hosts)) > 1 else sizes
    return planned("distdgl", hosts, sizes, LEARNED, *settings).program


def _ops(program: Program, template: str = "step") -> dict[str, Op]:
    return {op.name: op for op in program.templates[template].ops}


@pytest.mark.parametrize("hosts", [[0], [0, 0], TWO, FOUR, [0, 1, 0, 1], [0, 1, 1]])
@pytest.mark.parametrize("late", [[], [LATE]])
@pytest.mark.parametrize("schedule", [["schedule.window=1"], ["schedule.window=3"], [BSP]])
def test_every_plan_is_valid(hosts: list[int], late: list[str], schedule: list[str]) -> None:
    names = _ops(_program(hosts, *late, *schedule)).keys()
    assert {"embeddings/pick", "embeddings/sum", "embeddings/apply"} < names
    assert ("embeddings/push/sent/ids" in names) == ("embeddings/push/sent/rows" in names) == (len(hosts) > 1)
    assert ("embeddings/settled" in names) == (len(hosts) > len(set(hosts))), "ranks that share no memory need not meet"


def _without(program: Program, name: str) -> Program:
    """The program without an op; what waited for it waits for what it waited for."""
    gone, kept = _ops(program)[name], []
    for op in program.templates["step"].ops:
        back = [d.steps_back for d in op.after if d.op == name]
        if back:
            instead = [replace(d, steps_back=d.steps_back + back[0]) for d in gone.after]
            op = replace(op, after=(*(d for d in op.after if d.op != name), *instead))
        if op.name != name:
            kept.append(op)
    return replace(program, templates={**program.templates, "step": Template("step", tuple(kept))})


@pytest.mark.parametrize("settings", [[], [LATE], [BSP], [LATE, BSP]])
def test_ranks_of_a_host_meet_before_rows_change_and_are_read_again(settings: list[str]) -> None:
    program = _program([0, 0], *settings)
    with pytest.raises(ProgramError, match=r"'features' is used by .*no collective or barrier lies between them"):
        validate(_without(program, "embeddings/settled"))


def test_what_is_pushed_is_applied_at_the_end_of_its_step() -> None:
    """And the next step's rows are brought after that (docs/systems/distdgl.md)."""
    program = _program(FOUR)
    ops, chain = _ops(program), list(_ops(program))
    end = ["update/optimize", "embeddings/pick", "embeddings/push/sent/ids", "embeddings/push/sent/rows"]
    end += ["embeddings/sum", "embeddings/apply", "embeddings/settled"]
    assert chain[-len(end) :] == end
    assert all(ops[later].after == (Dependency(before),) for before, later in pairwise(end))
    assert Dependency("embeddings/settled", steps_back=1) in ops["rows/fetch"].after
    assert Dependency("embeddings/pick", steps_back=4) in ops["draw/1/ask"].after, "it reads the batch last"


def test_a_delay_lets_gradients_travel_beside_the_next_step() -> None:
    program = _program(FOUR, LATE)
    ops = _ops(program)
    assert Dependency("embeddings/pick", steps_back=1) in ops["rows/fetch"].after
    assert ops["embeddings/settled"].after == (Dependency("rows/stage"),)
    assert Dependency("embeddings/sum", steps_back=1) in ops["embeddings/apply"].after
    assert Dependency("embeddings/apply") in ops["update/gradients"].after
    assert not {"embeddings/apply", "embeddings/sum"} & {d.op for d in ops["forward/1/aggregate"].after}
    sizes = program.sizes.columns
    applied, summed = (sizes[name].reshape(4, -1) for name in ("push/elements", "push/summed"))
    np.testing.assert_array_equal(applied[:, 1:], D * summed[:, :-1])
    assert not applied[:, 0].any()


def test_a_delay_hides_the_push() -> None:
    """On links of a long latency: an epoch is shorter by a part of what the push takes."""
    on = machine(TWO, kind="cpu", cores=64, threads=1, latency=1e-3)
    programs = (planned("distdgl", TWO, made_sizes(TWO), LEARNED, *more).program for more in ([], [LATE]))
    at_once, late = (run(program, on, epochs=2).epoch_s for program in programs)
    assert sum(late) < 0.99 * sum(at_once)


@pytest.mark.parametrize("hosts", [[0], [0, 0], TWO, FOUR])
def test_bytes_of_a_step_are_those_of_the_store(hosts: list[int]) -> None:
    """(8 + 4 D) R for the push, 4 (F + D) R for the pull, R input rows of another rank's to write or to serve."""
    sizes, program = made_sizes(hosts), _program(hosts)
    ops, ranks = _ops(program), len(hosts)
    first = [hosts.index(host) for host in hosts]
    expected = np.zeros((ranks, ranks, *sizes.local.shape[1:]), np.int64)
    for rank in range(ranks):
        expected[rank, first[rank]] += sizes.local[rank]
    for source, target, rows in zip(sizes.pulled.source, sizes.pulled.target, sizes.pulled.rows, strict=True):
        expected[target, first[source]] += rows
    np.testing.assert_array_equal(expected.sum(axis=1), sizes.rows[-1])
    own = expected[np.arange(ranks), np.arange(ranks)]
    np.testing.assert_array_equal(program.sizes.columns["push/own"], own)
    for epoch, step in ((0, 0), (1, 4)):
        sent = expected[..., epoch, step] * (1 - np.eye(ranks, dtype=np.int64))
        np.testing.assert_array_equal(program.sizes.routes["push"].matrix(ranks, epoch, step), sent)
    pushes = [op.transfer.row_bytes for op in ops.values() if op.route == "push" and op.transfer is not None]
    assert pushes == ([8, 4 * D] if ranks > 1 else [])
    if len(set(hosts)) > 1:
        assert ops["rows/fetch"].transfer is not None
        assert ops["rows/fetch"].transfer.row_bytes == 4 * (WIDTH + D)


def test_memory_is_a_wider_table_and_the_state_beside_it() -> None:
    """4 D bytes a vertex of vectors and as many of sums of squares, once a host (docs/systems/distdgl.md)."""
    program, rows = _program(FOUR), statistics(FOUR).rows
    of = {name: program.buffers[name] for name in ("features", "embeddings/state", "inputs", "d/hidden/0")}
    assert {name: buffer.width for name, buffer in of.items()} == {
        "features": WIDTH + D, "embeddings/state": D, "inputs": WIDTH + D, "d/hidden/0": WIDTH + D
    }  # fmt: skip
    held = program.sizes.per_rank(of["embeddings/state"].rows, 0, 0)
    assert held.tolist() == [rows[:2].sum(), 0, rows[2:].sum(), 0]
    assert of["embeddings/state"].persistent


def test_gradients_that_are_pending_are_of_no_more_vertices_than_the_host_has() -> None:
    few = made_sizes([0, 0])
    rows = few.rows.copy()
    rows[-1] += 3000
    many = replace(few, rows=rows, local=few.local + 3000)
    for sizes, most in ((few, int(few.local.sum(axis=0).max())), (many, int(statistics([0, 0]).rows.sum()))):
        program = planned("distdgl", [0, 0], sizes, LEARNED).program
        for name in ("ids", "rows"):
            pending = program.buffers[f"push/pending/{name}"].rows
            assert program.sizes.per_rank(pending, 0, 0).tolist() == [most, 0]


def test_evaluations_read_vectors_too() -> None:
    ops = _ops(_program(FOUR), EVALUATE)
    assert ops["evaluate/1/exchange"].transfer is not None
    assert ops["evaluate/1/exchange"].transfer.row_bytes == 4 * (WIDTH + D)


def test_without_vectors_nothing_of_them_is_there() -> None:
    sizes = made_sizes(FOUR)
    plain, zero = (planned("distdgl", FOUR, sizes, *more).program for more in ([], ["placement.sparse_embedding=0"]))
    assert program_digest(plain) == program_digest(zero)
    words = ("push", "embedding", "d/hidden/0")
    every = (*plain.buffers, *plain.streams, *plain.groups, *plain.sizes.columns, *plain.sizes.routes, *_ops(plain))
    assert not [name for name in every if any(word in name for word in words)]
    kinds = {op.kind for op in _ops(plain).values()}
    assert not kinds & {OpKind.D2H, OpKind.BARRIER}


@pytest.mark.parametrize(
    ("system", "settings", "told"),
    [
        ("distdgl", [LATE], r"placement\.sparse_delay: got 1 with placement\.sparse_embedding = 0, expected 0"),
        ("distdgl", [LEARNED, "schedule.staged=rows"], r"schedule\.staged: got 'rows' with .* = 6, expected 'blocks'"),
        (
            "rapidgnn",
            [LEARNED, "schedule.staged=blocks"],
            r"placement\.hot_rows: got auto with placement\.sparse_embedding = 6, expected 0",
        ),
        ("distdgl", ["placement.sparse_embedding=-1"], r"placement\.sparse_embedding: got -1"),
        ("distdgl", [LEARNED, "placement.sparse_delay=2"], r"placement\.sparse_delay: got 2, expected"),
        ("vanilla", [LEARNED], r"placement\.sparse_embedding"),
    ],
)
def test_what_cannot_be_is_refused(system: str, settings: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as found:
        load_experiment(system, settings)
    assert str(found.value).count(": got ") <= 1


def test_hot_rows_are_refused_once_where_none_can_be_cached() -> None:
    with pytest.raises(ConfigError) as found:
        load_experiment("distdgl", [LEARNED, "placement.hot_rows=5"])
    assert str(found.value).count("placement.hot_rows: got 5") == 1


def test_a_record_of_other_vectors_is_told() -> None:
    """An accuracy that was learned with them is not that of a run without."""
    differences = [("placement.sparse_embedding", 0, D), ("placement.hot_rows", 0, 5)]
    assert different_experiment(differences, Path("record"), {"placement": shipped("placement")["store"]}) == (
        [],
        ["activity was recorded with placement.sparse_embedding = 0; here it is 6"],
    )
