"""A rank's own rows are summed while halo rows travel: the same sums to the last bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor.layers.local import LocalAdjacency, add_halo, aggregate, sum_own
from simgnn.graph.csr import CSR
from simgnn.program.kinds import OpKind, Segment
from simgnn.program.program import Program
from simgnn.program.storage import load_program
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.sim.simulate import simulate
from tests.equality.block_runs import told
from tests.equality.counting import differences
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph, train_in_process
from tests.sim.worlds import machine

EPOCHS = 5
TRANSFORMED = "communication.rows=transformed"
CACHED = ("freshness.kind=adaptive-vertex", "freshness.epsilon=0.02", "codec.kind=linear")
CASES = {
    "gcn": ("model.kind=gcn", "model.layers=3", TRANSFORMED),
    "gcn, aggregate first": ("model.kind=gcn", "model.order=aggregate-first", "model.layers=3"),
    "sage": ("model.kind=sage", TRANSFORMED, "train.dtype=float32"),
    "gin": ("model.kind=gin", "model.layers=3", "model.dropout=0.5"),
    "cached rows": ("model.kind=sage", TRANSFORMED, "partition.kind=metis", *CACHED),
    "gat": ("model.kind=gat", "model.heads=2", "model.layers=3", TRANSFORMED),
    "gat, float32": ("model.kind=gat", "model.heads=2", TRANSFORMED, "train.dtype=float32"),
}
CASES_OF = {2: list(CASES), 3: ["gcn", "cached rows", "gat"]}
"""Number of ranks -> cases that are trained on them."""
PARTS = {Segment.SUM_OWN, Segment.ADD_HALO, Segment.OWN_GRADIENTS, Segment.HALO_GRADIENTS}
Found = dict[int, tuple[Path, dict[str, list[list[dict[str, Any]]]]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank returned of each case, by number of ranks and by schedule; and the folder of the runs."""
    orders = (("bsp", "bsp", None), ("own", "pipelined", None), ("random order", "pipelined", 7))
    found: Found = {}
    for ranks in CASES_OF:
        root, results = tmp_path_factory.mktemp("own-first"), {}
        for name, kind, seed in orders if ranks == 2 else orders[:2]:
            common = ("train.eval_every=2", f"schedule.kind={kind}")
            folders = [
                str(prepared_run(small_graph(), root / f"{name}-{case}", ranks, *CASES[case], *common))
                for case in CASES_OF[ranks]
            ]
            results[name] = run_ranks(ranks, train_in_process, root / f"ranks-{name}", folders, seed, joined=False)
        found[ranks] = root, results
    return found


@pytest.mark.parametrize(("ranks", "case"), [(ranks, case) for ranks, cases in CASES_OF.items() for case in cases])
def test_losses_are_those_of_one_sum(found: Found, ranks: int, case: str) -> None:
    place = CASES_OF[ranks].index(case)
    for bsp, own, *others in zip(*found[ranks][1].values(), strict=True):
        plain, ours = bsp[place], own[place]
        assert not ours["serial"]
        for key in ("losses", "evaluations"):
            assert all(other[place][key] == ours[key] for other in others), "the order of ready ops changes nothing"
            assert ours[key] == plain[key]
        assert all(torch.equal(other[place]["parameters"], ours["parameters"]) for other in others)
        assert torch.equal(ours["parameters"], plain["parameters"])
        assert torch.equal(ours["gradients"][0], plain["gradients"][0])


@pytest.mark.parametrize(
    ("ranks", "case"), [(ranks, case) for ranks, cases in CASES_OF.items() for case in cases if case != "cached rows"]
)
def test_program_simulation_and_run_count_the_same_bytes(found: Found, ranks: int, case: str) -> None:
    folder = found[ranks][0] / f"own-{case}"
    simulated = simulate(_program(folder), machine([0] * _program(folder).ranks), epochs=EPOCHS, evaluate_every=2)
    assert not differences(told(simulated.trace), told(read_table(RunDirectory(folder).trace)))


@pytest.mark.parametrize("ranks", CASES_OF)
@pytest.mark.parametrize("case", ["gcn", "gat"])
def test_halo_rows_and_their_gradients_travel_beside_sums(found: Found, ranks: int, case: str) -> None:
    beside = _beside_messages(_program(found[ranks][0] / f"own-{case}"))
    assert beside == ({Segment.SUM_OWN, Segment.OWN_GRADIENTS} if case == "gat" else {Segment.SUM_OWN})


@pytest.mark.parametrize("ranks", CASES_OF)
def test_attention_divided_under_bsp_overlaps_nothing(found: Found, ranks: int) -> None:
    program = _program(found[ranks][0] / "bsp-gat")
    assert {op.segment for _, op in program.ops} >= PARTS, "attention is divided alike under both schedules"
    assert not _beside_messages(program)


def _beside_messages(program: Program) -> set[Segment]:
    """The parts of sums that the first rank computes in a simulated epoch while one of its messages travels."""
    slow = machine([0] * program.ranks, floor=0.05)
    columns = simulate(program, slow, epochs=EPOCHS).columns
    here = (columns["rank"] == 0) & (columns["epoch"] == 1)
    ops = [program.ops[op_id][1] for op_id in columns["op_id"][here]]
    spans = list(zip(columns["issued_s"][here], columns["ended_s"][here], ops, strict=True))
    return {
        op.segment
        for begin, end, op in spans
        for start, stop, other in spans
        if op.segment in PARTS and other.kind is OpKind.EXCHANGE and start <= begin and end <= stop
    }


def _program(folder: Path) -> Program:
    return load_program(folder / "plan")


@pytest.mark.parametrize("kernel", ["numba", "torch"])
@pytest.mark.parametrize("scaling", ["gcn", "mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_ops_give_the_bits_of_one(kernel: str, scaling: str, dtype: torch.dtype) -> None:
    draw = np.random.default_rng(1)
    rows, halo, width = 200, 90, 37
    sources = [np.unique(draw.integers(0, rows + halo, draw.integers(0, 30))) for _ in range(rows)]
    pointers = np.concatenate(([0], np.cumsum([len(each) for each in sources]))).astype(np.int64)
    csr = CSR(pointers, np.concatenate(sources).astype(np.int32), rows + halo)
    adjacency = LocalAdjacency(csr, draw.integers(0, 30, rows + halo), kernel=kernel, dtype=dtype)
    own, others = (torch.from_numpy(draw.standard_normal((n, width))).to(dtype) for n in (rows, halo))
    results = []
    for whole in (True, False):
        x, y = own.clone().requires_grad_(), others.clone().requires_grad_()
        parts = (
            aggregate(adjacency, x, y, scaling)
            if whole
            else add_halo(adjacency, y, sum_own(adjacency, x, scaling), scaling)
        )
        (parts * torch.arange(width)).sum().backward()
        results.append((parts.detach(), x.grad, y.grad))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("ranks", CASES_OF)
def test_edges_of_all_ranks_are_counted_apart(found: Found, ranks: int) -> None:
    program = _program(found[ranks][0] / "own-gcn")
    columns = program.sizes.columns
    assert (columns["edges/own"] + columns["edges/halo"]).tolist() == columns["edges"].tolist()
    assert columns["edges/halo"].min() > 0
