"""Rows of unequal bits (AdaQP): what they change, the settings in which they change nothing, and what travels."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor.layers import build_layers
from executor.state.plan import RunPlan
from simgnn.record.activity import decisions_of, read_activity
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.sim.simulate import simulate
from tests.coded_reference import Assigning, CodedReference, train_coded_reference
from tests.equality.block_runs import told
from tests.equality.counting import counted_rows, differences, planned_rows, turns_of
from tests.equality.late_runs import HIDDEN, STALE, errors, owner_of
from tests.equality.test_late_rows import Runs, carried_out
from tests.executor.runs import small_graph
from tests.sim.worlds import machine

EPOCHS, PERIOD, GROUP, LAM = 5, 2, 6, 0.2
EIGHT = ("codec.kind=stochastic",)
ADAPTIVE = (*EIGHT, "codec.bits=adaptive")
WIRE = (*ADAPTIVE, f"codec.assign_period={PERIOD}", f"codec.group_size={GROUP}", f"codec.lam={LAM}")
LARGER = ("model.hidden=16", "model.layers=3", "communication.rows=input", "train.eval_every=2")
PIPELINED = "schedule.kind=pipelined"
METIS = "partition.kind=metis"
SGD = ("train.optimizer=sgd", "train.learning_rate=0.3")
CASES = {
    "gcn": ("model.kind=gcn", HIDDEN, PIPELINED, METIS),
    "gcn, transformed": ("model.kind=gcn", "model.order=transform-first"),
    "sage, dropout": ("model.kind=sage", HIDDEN, "model.dropout=0.5", PIPELINED),
    "gin": ("model.kind=gin", "train.learning_rate=0.001", PIPELINED),
    "gat": ("model.kind=gat", "model.heads=2"),
}  # fmt: skip
QUICK = ("gcn", "gat")
GROUPS = {
    "quick": (2, QUICK),
    "two": (2, tuple(name for name in CASES if name not in QUICK)),
    "three": (3, ("gcn", "sage, dropout")),
    "four": (4, ("gat", "gin")),
}
"""Cases that are trained together: the number of ranks, and the cases."""
Away = Callable[[str], Runs]


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Away:
    """What each group of cases gave, carried out on first use."""

    @cache
    def of(group: str) -> Runs:
        ranks, names = GROUPS[group]
        runs = {name: (*SGD, *CASES[name], *WIRE, *LARGER) for name in names}
        return carried_out(tmp_path_factory.mktemp("unequal"), ranks, runs)

    return of


PLACES = [
    pytest.param(group, name, marks=[] if group == "quick" else [pytest.mark.slow])
    for group, (_, names) in GROUPS.items()
    for name in names
]


def reference_of(folder: Path, far: float = 1.0, message_bytes: float = 0.0) -> CodedReference:
    """``far``: how many times as long a byte takes between hosts; ``message_bytes``: what the start of one takes."""
    plan, graph = RunPlan.open(folder), small_graph()
    initial = [dict(layer.named_parameters()) for layer in build_layers(plan.layers, plan.seed, torch.float64)]
    byte_s = np.where(np.not_equal.outer(plan.program.hosts, plan.program.hosts), far, 1.0) * 1e-10
    assigning = Assigning(PERIOD, GROUP, LAM, byte_s, message_bytes * 1e-10)
    return train_coded_reference(plan, graph, initial, owner_of(plan, graph.vertices), assigning)


@pytest.mark.parametrize(("group", "name"), PLACES)
def test_one_process_that_holds_the_same_coded_rows_learns_the_same(away: Away, group: str, name: str) -> None:
    found = away(group)[name]
    expected = reference_of(found["folder"])
    different: Any = expected
    assert max(errors(found, different).values()) <= 1e-10, errors(found, different)
    given = np.concatenate([bits for pairs in expected.wire.bits.values() for bits in pairs.values()])
    assert len({*given.tolist()}) > 1, "rows differ in bits"
    sent_as_computed(found["folder"], expected)


def sent_as_computed(folder: Path, expected: CodedReference) -> None:
    """The run sent the bytes that the reference computes, by epoch, layer, direction and pair."""
    recorded = decided(folder)
    for (epoch, layer, phase), sizes in expected.wire.bytes_sent.items():
        sent = recorded[f"sync/{layer}/{phase}/bytes"][:, :, epoch, 0]
        assert {(i, j): int(sent[i, j]) for i, j in zip(*np.nonzero(sent), strict=True)} == sizes, (epoch, layer, phase)


def decided(folder: Path) -> dict[str, Any]:
    return decisions_of(read_activity(RunDirectory(folder).activity), RunPlan.open(folder).ranks)


@pytest.mark.parametrize(("group", "name"), PLACES)
def test_program_simulation_and_run_count_the_same_bytes(away: Away, group: str, name: str) -> None:
    folder = away(group)[name]["folder"]
    program, activity = RunPlan.open(folder).program, decided(folder)
    turns = turns_of(program, EPOCHS, [1, 3, EPOCHS - 1])
    executed = read_table(RunDirectory(folder).trace)
    assert not differences(planned_rows(program, turns, activity), counted_rows(executed))
    hosts = machine([0] * program.ranks)
    simulated = simulate(program, hosts, epochs=EPOCHS, evaluate_every=2, activity=activity)
    assert not differences(told(simulated.trace), told(executed))


def test_no_order_of_ready_ops_no_delay_and_no_schedule_changes_a_bit(away: Away, tmp_path: Path) -> None:
    settings = {name: (*SGD, *CASES[name], *WIRE, *LARGER) for name in QUICK}
    mixed = carried_out(tmp_path, 2, settings, seed=7)
    other = {"gcn": "schedule.kind=bsp"}
    bulk = carried_out(tmp_path, 2, {name: (*settings[name], schedule) for name, schedule in other.items()})
    for name, plain in away("quick").items():
        for again in (mixed[name], *([bulk[name]] if name in bulk else [])):
            assert again["losses"] == plain["losses"], name
            assert torch.equal(again["parameters"], plain["parameters"]), name


IDENTITY = {
    "gcn": ("model.kind=gcn", HIDDEN, METIS, PIPELINED),
    "sage": ("model.kind=sage",),
    "gin": ("model.kind=gin", "train.learning_rate=0.001"),
    "gat": ("model.kind=gat", METIS),
    "gcn, float32": ("model.kind=gcn", "train.dtype=float32"),
    "sage, float32": ("model.kind=sage", METIS, PIPELINED, "train.dtype=float32"),
    "gin, float32": ("model.kind=gin", "train.learning_rate=0.001", METIS, "train.dtype=float32"),
    "gat, float32": ("model.kind=gat", PIPELINED, "train.dtype=float32"),
}
IDENTITY_QUICK = ("gcn", "gat", "sage, float32")


@pytest.mark.parametrize(
    ("ranks", "names"),
    [
        pytest.param(2, IDENTITY_QUICK, id="2, some"),
        *(pytest.param(ranks, tuple(IDENTITY), id=f"{ranks}, all", marks=pytest.mark.slow) for ranks in (2, 3, 4)),
    ],
)
def test_a_period_longer_than_the_run_is_8_bits(ranks: int, names: tuple[str, ...], tmp_path: Path) -> None:
    chosen = {name: IDENTITY[name] for name in names}
    runs = {name: (*of, *LARGER, *ADAPTIVE) for name, of in chosen.items()}
    same = {f"{name}, 8 bits": (*of, *LARGER, *EIGHT) for name, of in chosen.items()}
    found = carried_out(tmp_path, ranks, {**runs, **same})
    for name in chosen:
        ours, theirs = found[name], found[f"{name}, 8 bits"]
        assert ours["losses"] == theirs["losses"], name
        assert torch.equal(ours["parameters"], theirs["parameters"]), name
        for one, other in zip(ours["gradients"], theirs["gradients"], strict=True):
            assert torch.equal(one, other), name


LINKS = {"alike": (1.0, 0.0), "apart": (20.0, 40.0), "slow to start": (20.0, 1e9)}
"""What a byte between hosts takes, and the start of a message, in bytes within a host."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["gcn", *(pytest.param(name, marks=pytest.mark.slow) for name in CASES if name != "gcn")]
)
def test_links_of_two_hosts_decide_how_many_bits_travel(name: str, tmp_path: Path) -> None:
    settings = (*SGD, *CASES[name], *WIRE, *LARGER)
    runs = {
        which: (*settings, f"codec.between_hosts={far}", f"codec.message_bytes={start}")
        for which, (far, start) in LINKS.items()
    }
    found = carried_out(tmp_path, 4, runs, hosts=2)
    folders = {which: one["folder"] for which, one in found.items()}
    program = RunPlan.open(folders["apart"]).program
    assert program.hosts == (0, 0, 1, 1)
    for which, links in LINKS.items():
        expected = reference_of(folders[which], *links)
        different: Any = expected
        assert max(errors(found[which], different).values()) <= 1e-10
        sent_as_computed(folders[which], expected)
    far, sent = np.not_equal.outer(program.hosts, program.hosts), {}
    for which, folder in folders.items():
        messages = [nbytes for decision, nbytes in decided(folder).items() if decision.endswith("/bytes")]
        sent[which] = np.sum(messages, axis=0)[:, :, PERIOD:, 0].sum(axis=2)
    assert sent["apart"][far].sum() <= sent["alike"][far].sum(), "equal where all have 2 bits already"
    assert sent["apart"][~far].sum() > sent["alike"][~far].sum()
    assert sent["slow to start"].sum() > max(sent["alike"].sum(), sent["apart"].sum()), "more bits cost next to nothing"
    simulated = simulate(
        program, machine(program.hosts), epochs=EPOCHS, evaluate_every=2, activity=decided(folders["apart"])
    )
    assert not differences(told(simulated.trace), told(read_table(RunDirectory(folders["apart"]).trace)))


@pytest.mark.slow
def test_unequal_bits_travel_late_as_well(tmp_path: Path) -> None:
    late = (*LARGER, *SGD, "model.kind=gcn", HIDDEN, *STALE, PIPELINED)
    found = carried_out(tmp_path, 2, {"coded": (*late, *WIRE), "exact": late})
    assert found["coded"]["losses"] != found["exact"]["losses"]
    np.testing.assert_allclose(found["coded"]["losses"], found["exact"]["losses"], rtol=0.1)
    for buffer, rows in found["coded"]["caches"].items():
        if buffer.startswith("bits_out/"):
            assert {*rows.unique().tolist()} <= {2, 4, 8}
