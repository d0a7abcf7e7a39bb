"""Rows and gradients that are used one epoch late: what they change, and the settings in which they change nothing."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor.state.plan import RunPlan
from simgnn.program.calendar import EVALUATE, FIRST, STEADY
from simgnn.program.kinds import OpKind
from simgnn.program.sizes import reverse_of
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.sim.simulate import simulate
from tests.equality.block_runs import told
from tests.equality.counting import counted_rows, differences, planned_rows, turns_of
from tests.equality.late_runs import GRADIENTS, HIDDEN, PIPED, ROWS, STALE, ZEROS, errors, reference_of, train_delayed
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph, train_in_process
from tests.late_reference import Lateness
from tests.sim.worlds import machine

EPOCHS = 5
DROPPED = "model.dropout=0.5"
GAMMA = "freshness.gamma=0.7"
AWAY = {
    "gcn": (("model.kind=gcn", HIDDEN, "model.layers=3"), Lateness()),
    "gcn, transformed": (("model.kind=gcn", "model.order=transform-first", "model.layers=3"), Lateness()),
    "sage, dropout": (("model.kind=sage", HIDDEN, "model.layers=3", DROPPED), Lateness()),
    "sage, smooth": (
        ("model.kind=sage", HIDDEN, DROPPED, ROWS, GRADIENTS, GAMMA, "partition.kind=metis"), Lateness(0.7, 0.7)
    ),
    "gin, zeros": (("model.kind=gin", "model.layers=3", ZEROS, "train.learning_rate=0.001"), Lateness(waits=False)),
    "gat": (("model.kind=gat", "model.heads=2", "model.layers=3"), Lateness()),
    "gat, smooth rows, zeros": (("model.kind=gat", "model.heads=2", ZEROS, ROWS), Lateness(0.95, waits=False)),
    "gcn, smooth gradients": (
        ("model.kind=gcn", HIDDEN, GRADIENTS, GAMMA, "train.optimizer=sgd", "train.learning_rate=0.5"),
        Lateness(gradients=0.7),
    ),
}  # fmt: skip
"""Settings in which late rows change what is learned, and how late they are."""
QUICK = ("gcn", "sage, smooth", "gat, smooth rows, zeros")
GROUPS = {
    "quick": (2, QUICK),
    "two": (2, tuple(name for name in AWAY if name not in QUICK)),
    "three": (3, ("gcn", "sage, smooth")),
    "four": (4, ("gat", "gin, zeros")),
}
"""Cases that are trained together: the number of ranks, and the cases."""
STILL = "train.learning_rate=0"
SAME = {
    "one layer": ("model.kind=gcn", "model.layers=1"),
    **{f"{kind}, rate 0": (f"model.kind={kind}", "model.layers=3", STILL) for kind in ("gcn", "sage", "gin", "gat")},
    "metis, rate 0": ("model.kind=sage", "model.layers=3", STILL, HIDDEN, "partition.kind=metis"),
    "float32, smooth": ("model.kind=gcn", STILL, "train.dtype=float32"),
}
"""Settings in which late rows change nothing."""
SAME_QUICK = ("gat, rate 0", "metis, rate 0")
Runs = dict[str, dict[str, Any]]


def carried_out(
    root: Path, ranks: int, runs: dict[str, tuple[str, ...]], seed: int | None = None, hosts: int = 1
) -> Runs:
    """What rank 0 returned of each run, with the run's folder; all ranks hold the same."""
    graph = small_graph()
    folders = [
        prepared_run(graph, root / f"run-{ranks}-{seed}" / name, ranks, *of, hosts=hosts) for name, of in runs.items()
    ]
    train = train_in_process if seed is None else train_delayed
    found = run_ranks(ranks, train, root / f"ranks-{ranks}-{seed}", list(map(str, folders)), seed, joined=False)
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert one["losses"] == other["losses"]
            assert torch.equal(one["parameters"], other["parameters"])
    return {name: {**one, "folder": folder} for name, one, folder in zip(runs, found[0], folders, strict=True)}


Away = Callable[[str], Runs]


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Away:
    """What each group of cases gave, carried out on first use."""

    @cache
    def of(group: str) -> Runs:
        ranks, names = GROUPS[group]
        runs = {name: (*AWAY[name][0], *PIPED, "train.eval_every=2") for name in names}
        return carried_out(tmp_path_factory.mktemp("late"), ranks, runs)

    return of


CASES = [
    pytest.param(group, name, marks=[] if group == "quick" else [pytest.mark.slow])
    for group, (_, names) in GROUPS.items()
    for name in names
]


@pytest.mark.parametrize(("group", "name"), CASES)
def test_one_process_that_holds_the_same_late_rows_learns_the_same(away: Away, group: str, name: str) -> None:
    found, graph = away(group)[name], small_graph()
    expected = reference_of(found["folder"], graph, AWAY[name][1])
    exact = reference_of(found["folder"], graph, AWAY[name][1], apart=False)
    assert abs(exact.losses[-1] - expected.losses[-1]) > 1e-7, "lateness changes what is learned"
    assert max(errors(found, expected).values()) <= 1e-10, errors(found, expected)
    # evaluations are of exact rows
    right = expected.scores.argmax(1).numpy() == graph.labels
    masks = [np.asarray(mask) for mask in (graph.train_mask, graph.validation_mask, graph.test_mask)]
    counts = np.array(found["evaluations"][EPOCHS - 1]).reshape(len(masks), -1)
    assert counts[:, 1].tolist() == [int(right[mask].sum()) for mask in masks]
    assert counts[:, 2].tolist() == [int(mask.sum()) for mask in masks]


@pytest.mark.parametrize(("group", "name"), CASES)
def test_program_simulation_and_run_count_the_same_bytes(away: Away, group: str, name: str) -> None:
    folder = away(group)[name]["folder"]
    program = RunPlan.open(folder).program
    turns = turns_of(program, EPOCHS, [1, 3, EPOCHS - 1])
    executed = read_table(RunDirectory(folder).trace)
    assert not differences(planned_rows(program, turns), counted_rows(executed))
    simulated = simulate(program, machine([0] * program.ranks), epochs=EPOCHS, evaluate_every=2)
    assert not differences(told(simulated.trace), told(executed))


@pytest.mark.parametrize(("group", "name"), CASES)
def test_what_travels_follows_the_formulas(away: Away, group: str, name: str) -> None:
    """Inputs once, and the rows of each later layer once forward and once backward in every epoch."""
    ranks = GROUPS[group][0]
    plan = RunPlan.open(away(group)[name]["folder"])
    halo = np.zeros((ranks, ranks), dtype=np.int64)
    for rank in range(ranks):
        for peer, rows in plan.local(rank).send_rows.items():
            halo[rank, peer] = len(rows)
    program, item = plan.program, 8
    for template in (FIRST, STEADY):
        sent = {
            (op.layer, op.phase): program.sizes.routes[op.route].matrix(ranks) * op.transfer.row_bytes
            for op in program.templates[template].ops
            if op.kind is OpKind.EXCHANGE and op.route is not None and op.transfer is not None
        }
        expected = {(1, "setup"): halo * plan.layers[0].width_in * item} if template == FIRST else {}
        for layer in plan.layers[1:]:
            expected[layer.index, "forward"] = halo * layer.prepared_width * item
            expected[layer.index, "backward"] = halo.T * layer.prepared_width * item
        assert sent.keys() == expected.keys()
        assert all(np.array_equal(sent[key], expected[key]) for key in sent)


def test_no_order_of_ready_ops_no_delay_and_no_schedule_changes_a_bit(away: Away, tmp_path: Path) -> None:
    mixed = carried_out(tmp_path, 2, {name: (*AWAY[name][0], *PIPED, "train.eval_every=2") for name in QUICK}, seed=7)
    bulk = carried_out(tmp_path, 2, {name: (*AWAY[name][0], *STALE) for name in QUICK})
    for name, plain in away("quick").items():
        assert not plain["serial"]
        for other in (mixed[name], bulk[name]):
            assert other["losses"] == plain["losses"], name
            assert torch.equal(other["parameters"], plain["parameters"]), name
        for buffer, rows in plain["caches"].items():
            assert torch.equal(rows, mixed[name]["caches"][buffer]), (name, buffer)


def test_evaluations_change_nothing(away: Away, tmp_path: Path) -> None:
    """They wait until all late rows have arrived, and use rows of their own."""
    without = carried_out(tmp_path, 2, {name: (*AWAY[name][0], *PIPED, "train.eval_every=0") for name in QUICK})
    for name, often in away("quick").items():
        assert without[name]["losses"] == often["losses"], name
        assert without[name]["evaluations"][EPOCHS - 1] == often["evaluations"][EPOCHS - 1]
        cost = read_result(RunDirectory(without[name]["folder"]).result).evaluation
        assert cost is not None
        assert cost.evaluate_s > 0
        assert read_result(RunDirectory(often["folder"]).result).evaluation is None


def test_every_late_row_in_use_is_of_the_epoch_before(away: Away) -> None:
    """Each use checks the epoch of its rows, as the first ops that read a wrong one would say; all of them ran."""
    for found in away("quick").values():
        versions = {name: rows for name, rows in found["caches"].items() if name.startswith("versions/")}
        layers = len(RunPlan.open(found["folder"]).layers)
        assert len(versions) == 2 * (layers - 1)
        assert all(int(rows) == EPOCHS for rows in versions.values()), "one more than the last epoch"


@pytest.mark.parametrize("ranks", [1, 2, *(pytest.param(each, marks=pytest.mark.slow) for each in (3, 4))])
def test_where_rows_do_not_move_vanilla_learns_the_same_bits(ranks: int, tmp_path: Path) -> None:
    alike, same = ("train.eval_every=2",), SAME if ranks > 2 else {name: SAME[name] for name in SAME_QUICK[-ranks:]}
    late = {name: (*of, *PIPED, *alike, *([ROWS, GRADIENTS] if "smooth" in name else [])) for name, of in same.items()}
    fresh = {f"{name}, fresh": (*of, *alike) for name, of in same.items()}
    learning = {}
    if ranks == 1:  # whatever it learns
        learning = {"alone": (*SAME["metis, rate 0"][:2], *PIPED), "alone, fresh": SAME["metis, rate 0"][:2]}
    found = carried_out(tmp_path, ranks, {**late, **fresh, **learning})
    for name in [name for name in found if not name.endswith("fresh")]:
        ours, theirs = found[name], found[f"{name}, fresh"]
        if "smooth" in name:  # a mixture of equal rows is equal up to rounding
            np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=1e-6)
            continue
        assert ours["losses"] == theirs["losses"], name
        assert torch.equal(ours["parameters"], theirs["parameters"]), name
        assert ours["evaluations"] == theirs["evaluations"], name
        for one, other in zip(ours["gradients"], theirs["gradients"], strict=True):
            assert torch.equal(one, other), name


@pytest.mark.slow
def test_one_process_gives_what_ranks_give_where_rows_do_not_move(tmp_path: Path) -> None:
    runs = {name: (*of, *PIPED) for name, of in SAME.items() if "float32" not in name}
    alone, parted = (carried_out(tmp_path, ranks, runs) for ranks in (1, 3))
    for name in runs:
        np.testing.assert_allclose(parted[name]["losses"], alone[name]["losses"], rtol=1e-12)
        one, other = parted[name]["gradients"][0], alone[name]["gradients"][0]
        assert float((one - other).norm() / other.norm()) <= 1e-12


def test_zeros_are_forgotten_where_nothing_moves(tmp_path: Path) -> None:
    """Layer l has rows of zeros behind it for l - 1 epochs; then all is as if the first epoch had waited."""
    still = ("model.kind=gcn", "model.layers=3", STILL, HIDDEN)
    found = carried_out(tmp_path, 2, {"zeros": (*still, *PIPED, ZEROS), "fresh": still})
    assert found["zeros"]["losses"][:2] != found["fresh"]["losses"][:2]
    assert found["zeros"]["losses"][2:] == found["fresh"]["losses"][2:]
    assert torch.equal(found["zeros"]["gradients"][-1], found["fresh"]["gradients"][-1])


@pytest.mark.slow
def test_codes_travel_late_as_well(tmp_path: Path) -> None:
    """8-bit rows that are used late: near to exact ones, and a quarter of their bytes with headers."""
    common = ("model.kind=gcn", "model.layers=3", HIDDEN, *PIPED)
    found = carried_out(tmp_path, 2, {"exact": common, "coded": (*common, "codec.kind=linear")})
    assert found["exact"]["losses"] != found["coded"]["losses"]
    np.testing.assert_allclose(found["coded"]["losses"], found["exact"]["losses"], rtol=0.05)
    folder = found["coded"]["folder"]
    simulated = simulate(RunPlan.open(folder).program, machine([0, 0]), epochs=EPOCHS, evaluate_every=1)
    assert not differences(told(simulated.trace), told(read_table(RunDirectory(folder).trace)))


def test_late_rows_travel_beside_all_that_ranks_compute(away: Away) -> None:
    """On slow links an epoch takes what its transfers take, with the sums of gradients beside them."""
    program = RunPlan.open(away("quick")["gcn"]["folder"]).program
    slow = machine([0, 0], floor=0.05)
    simulated = simulate(program, slow, epochs=8)
    here = (simulated.columns["rank"] == 0) & (simulated.columns["epoch"] == 5)
    ops = {
        program.ops[op_id][1].name: place
        for place, op_id in zip(np.flatnonzero(here), simulated.columns["op_id"][here], strict=True)
    }
    begins, ends = simulated.columns["issued_s"], simulated.columns["ended_s"]
    exchanges = [place for name, place in ops.items() if name.endswith("exchange")]
    assert begins[ops["update/gradients"]] < max(ends[exchanges])
    assert reverse_of("halo") in program.sizes.routes
    assert EVALUATE in program.templates
    # four late exchanges of 0.05 s follow one another; two sums of as long run beside them
    assert simulated.epoch_s_median == pytest.approx(4 * 0.05, rel=0.05)
    assert (simulated.comm_exposed_s[5] <= simulated.comm_total_s[5]).all()


def test_epochs_that_overlap_are_copied_where_they_repeat(away: Away) -> None:
    program = RunPlan.open(away("quick")["gcn"]["folder"]).program
    slow = machine([0, 0], floor=0.001)
    simulated = [simulate(program, slow, epochs=40, fast_forward=copied) for copied in (True, False)]
    assert simulated[0].copied
    assert simulated[0].digest == simulated[1].digest
    assert np.array_equal(simulated[0].comm_exposed_s, simulated[1].comm_exposed_s)
