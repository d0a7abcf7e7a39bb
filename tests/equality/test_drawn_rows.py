"""Training on sampled halo rows is what a plain PyTorch script computes with the same sample, whatever the schedule.
With all rows it is vanilla, to the last bit; program, simulation, executor and transport count the same bytes."""

from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor.layers import build_layers
from executor.state.plan import RunPlan
from simgnn.policy import METRICS, Metrics
from simgnn.program.calendar import EVALUATE, Turn
from simgnn.program.kinds import OpKind
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.sim.simulate import simulate
from tests.equality.block_runs import told
from tests.equality.cases import Case
from tests.equality.conftest import Bench
from tests.equality.counting import (
    counted_pairs,
    counted_rows,
    differences,
    pair_bytes,
    planned_calls,
    planned_pairs,
    planned_rows,
    turns_of,
)
from tests.equality.late_runs import train_delayed
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph, train_in_process
from tests.sampled_reference import SampledReference, sample, train_sampled_reference
from tests.sim.worlds import machine

EPOCHS, RANKS = 5, 3
SAMPLED = ("freshness.kind=boundary-sampling",)
TRANSFORMED, INPUT = "communication.rows=transformed", "communication.rows=input"
CASES = {
    "gcn": ("model.kind=gcn", "model.layers=3", TRANSFORMED, "freshness.p=0.4"),
    "gcn, inputs": ("model.kind=gcn", INPUT, "model.order=aggregate-first", "freshness.p=0.4"),
    "sage, copies": ("model.kind=sage", INPUT, "freshness.p=0.2", "partition.kind=metis"),
    "sage, kept inputs": (
        "model.kind=sage",
        "freshness.p=0.2",
        "partition.kind=metis",
        "freshness.cache_features=true",
    ),
    "gin": ("model.kind=gin", "model.layers=3", "model.dropout=0.5", "freshness.p=0.3"),
    "gat": ("model.kind=gat", "model.layers=3", "model.heads=2", TRANSFORMED, "freshness.p=0.4"),
    "gat, inputs": ("model.kind=gat", INPUT, "freshness.p=0.4", "partition.kind=metis"),
    "bernoulli": ("model.kind=gcn", "freshness.p=0.4", "freshness.sampling=bernoulli", "freshness.send_indices=true"),
    "isolated": ("model.kind=sage", TRANSFORMED, "freshness.p=0"),
}
ORDERS = {"bsp": ("bsp", None), "pipelined": ("pipelined", None), "random order, delays": ("pipelined", 7)}
QUICK = ("sage, kept inputs", "gat", "bernoulli")
EACH = [pytest.param(case, id=case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in CASES]


class Trained:
    """What each rank returned of each case, by order of ops. Quick cases are trained together, so are the others."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._of = lru_cache(None)(self._train)

    def ranks(self, order: str, case: str) -> list[dict[str, Any]]:
        """What each rank returned of a case."""
        names, results = self._of(order, case in QUICK)
        return [rank[names.index(case)] for rank in results]

    def folder(self, order: str, case: str) -> Path:
        """The run directory of a case."""
        self.ranks(order, case)
        return self.root / f"{order}-{case}"

    def _train(self, order: str, quick: bool) -> tuple[list[str], list[list[dict[str, Any]]]]:
        kind, seed = ORDERS[order]
        names = [case for case in CASES if (case in QUICK) is quick]
        common = (*SAMPLED, "train.eval_every=2", f"schedule.kind={kind}")
        folders = [
            str(prepared_run(small_graph(), self.root / f"{order}-{case}", RANKS, *common, *CASES[case]))
            for case in names
        ]
        root = self.root / f"ranks-{order}-{quick}"
        train = train_in_process if seed is None else train_delayed
        return names, run_ranks(RANKS, train, root, folders, seed, joined=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("sampled"))


def _reference(plan: RunPlan, epochs: int = EPOCHS, graph: Any = None) -> SampledReference:
    layers = build_layers(plan.layers, plan.seed, torch.float64)
    initial = [{name: value.detach().clone() for name, value in layer.named_parameters()} for layer in layers]
    policy: Any = plan.policies["freshness"]
    return train_sampled_reference(
        small_graph() if graph is None else graph, plan.layers, initial, plan.artifact, epochs, plan.train, plan.seed,
        policy.p, policy.sampling,
    )  # fmt: skip


def _far(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("case", EACH)
def test_training_is_that_of_one_process_with_the_same_sample(trained: Trained, case: str) -> None:
    expected = _reference(RunPlan.open(trained.folder("bsp", case)))
    for ours in trained.ranks("bsp", case):
        np.testing.assert_allclose(ours["losses"], expected.losses, rtol=1e-10)
        for one, other in zip(ours["gradients"], expected.gradients, strict=True):
            assert _far(one, other) < 1e-10
        assert _far(ours["parameters"], expected.parameters) < 1e-10


@pytest.mark.parametrize("case", EACH)
def test_evaluations_read_all_edges(trained: Trained, case: str) -> None:
    graph, expected = small_graph(), _reference(RunPlan.open(trained.folder("bsp", case)))
    right = expected.scores.argmax(1).numpy() == graph.labels
    ours = trained.ranks("bsp", case)[0]["evaluations"][EPOCHS - 1]
    for split, mask in enumerate((graph.train_mask, graph.validation_mask, graph.test_mask)):
        counted = Metrics(*ours[split * METRICS : (split + 1) * METRICS])
        assert (counted.correct, counted.count) == (right[mask].sum(), np.count_nonzero(mask))


@pytest.mark.parametrize("case", EACH)
def test_no_schedule_changes_a_bit(trained: Trained, case: str) -> None:
    for plain, *others in zip(*(trained.ranks(order, case) for order in ORDERS), strict=True):
        # rows are packed while ids of arriving ones travel
        assert plain["serial"] or case == "bernoulli"
        assert not any(other["serial"] for other in others)
        for other in others:
            assert other["losses"] == plain["losses"]
            assert torch.equal(other["parameters"], plain["parameters"])
            assert case.startswith("gat") or other["evaluations"] == plain["evaluations"]


@pytest.mark.parametrize("case", EACH)
@pytest.mark.parametrize("order", ["bsp", "pipelined"])
def test_program_simulation_and_run_count_the_same_bytes(trained: Trained, order: str, case: str) -> None:
    folder = trained.folder(order, case)
    program = RunPlan.open(folder).program
    simulated = simulate(program, machine([0] * RANKS), epochs=EPOCHS, evaluate_every=2)
    assert not differences(told(simulated.trace), told(read_table(RunDirectory(folder).trace)))


@pytest.mark.parametrize("case", EACH)
def test_bytes_are_those_of_the_formulas(trained: Trained, case: str) -> None:
    plan = RunPlan.open(trained.folder("bsp", case))
    policy: Any = plan.policies["freshness"]
    program, item = plan.program, 8
    halos = [(owner, rank, part) for rank in range(RANKS) for owner, part in plan.local(rank).receive.items()]
    steady = program.templates["steady"].ops
    # rows of layer 1 are input rows, or if the weights made them, have gradients
    sends_back = any((op.layer, op.phase, op.kind) == (1, "backward", OpKind.EXCHANGE) for op in steady)
    assert sends_back >= (TRANSFORMED in CASES[case])
    for epoch in range(EPOCHS):
        rows = np.zeros((RANKS, RANKS), np.int64)
        for owner, rank, part in halos:
            halo = part.stop - part.start
            rows[owner, rank] = len(sample(plan.seed, epoch, owner, rank, halo, policy.p, policy.sampling))
        moved = {}
        for op in steady:
            if op.kind is OpKind.EXCHANGE:
                assert op.transfer is not None
                what = "ids" if op.transfer.control else (op.layer, op.phase)
                moved[what] = pair_bytes(program, op, Turn(epoch, 0, "steady")).tolist()
        wanted: dict[Any, Any] = {"ids": (rows * 8).tolist()} if policy.send_indices else {}
        for layer in plan.layers:
            takes = layer.prepared_width if layer.index > 1 or sends_back else layer.width_in
            if layer.index > 1 or not policy.cache_features:
                wanted[layer.index, "forward"] = (rows * takes * item).tolist()
            if layer.index > 1 or sends_back:
                wanted[layer.index, "backward"] = (rows.T * takes * item).tolist()
        assert moved == wanted


@pytest.mark.slow
def test_kept_copies_of_inputs_give_the_losses_of_sent_ones(trained: Trained) -> None:
    sent, kept = (trained.ranks("bsp", case)[0] for case in ("sage, copies", "sage, kept inputs"))
    assert sent["losses"] == kept["losses"]
    assert torch.equal(sent["parameters"], kept["parameters"])


@pytest.mark.slow
def test_isolated_partitions_send_nothing(trained: Trained) -> None:
    trace = read_table(RunDirectory(trained.folder("bsp", "isolated")).trace)
    training = trace.filter(trace["step"].to_numpy() >= 0)
    assert training["bytes_sent"].to_numpy().sum() == 0
    assert training["messages"].to_numpy().sum() == 0


MODELS = {
    "gcn": ("model.layers=3", "model.hoist=never"),
    "sage": ("model.hoist=never", INPUT),
    "gin": ("model.hoist=never",),
    "gat": ("model.heads=2", TRANSFORMED),
}
WHOLE = [
    pytest.param(*case, id="-".join(map(str, case)), marks=[] if case in quick else [pytest.mark.slow])
    for quick in [(("gcn", "metis", 2, "float64-adam"), ("gat", "random", 3, "float64-adam"))]
    for case in product(MODELS, ("metis", "random"), (1, 2, 3, 4), ("float64-adam", "float32-sgd"))
]


@pytest.mark.parametrize(("model", "cut", "ranks", "training"), WHOLE)
def test_all_rows_are_vanilla(bench: Bench, model: str, cut: str, ranks: int, training: str) -> None:
    pytest.importorskip("dgl", reason="the reference is made of DGL's layers (Python below 3.12)")
    extra = MODELS[model]
    # attention adds up in the order of its edge sets, which for vanilla only an overlapping schedule divides
    alike = ("schedule.kind=pipelined",) if model == "gat" and ranks > 1 else ()
    ours = Case("communities", model, cut, ranks, training, (*extra, *SAMPLED, "freshness.p=1.0"))
    others = Case("communities", model, cut, ranks, training, (*extra, *alike))
    one, other = bench.run(ours), bench.run(others)
    for mine, theirs in zip(one.ranks, other.ranks, strict=True):
        assert mine["losses"] == theirs["losses"]
        assert torch.equal(mine["parameters"], theirs["parameters"])
    errors = bench.errors(ours)
    assert errors["initial"] == 0
    judged = ("losses", "first gradients", *(["parameters"] if training.endswith("sgd") else []))
    limit = 1e-12 if training.startswith("float64") else 1e-5
    assert {name: errors[name] for name in judged if errors[name] > limit} == {}


COUNTED = [
    Case("small", "gcn", "metis", 2, "float32-adam", ("freshness.p=0.3", "codec.kind=linear")),
    Case("small", "sage", "random", 4, "float32-adam", ("freshness.p=0.5", "codec.kind=stochastic", "codec.bits=8")),
    Case("small", "gcn", "random", 4, "float32-adam", ("freshness.p=0.3", "freshness.sampling=bernoulli")),
    Case("small", "gin", "metis", 2, "float32-adam", ("freshness.p=0.3", "freshness.send_indices=true")),
    Case("path", "gcn", "block-row", 4, "float32-adam", ("freshness.p=0.1",)),
    Case("islands", "sage", "block-row", 4, "float32-adam", ("freshness.p=0.1",)),
    Case("small", "sage", "metis", 4, "float32-adam", ("freshness.p=0.4", "freshness.cache_features=true", INPUT)),
    Case("small", "gcn", "random", 3, "float32-adam", ("freshness.p=0", TRANSFORMED)),
]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[] if place in (1, 2, 5, 7) else [pytest.mark.slow])
        for place, case in enumerate(COUNTED)
    ],
)
def test_nothing_is_lost_on_the_way(bench: Bench, case: Case) -> None:
    epochs = 3
    short = (*SAMPLED, f"train.epochs={epochs}", "train.eval_every=2", "train.learning_rate=0.001", *case.extra)
    finished = bench.run(Case(case.graph, case.model, case.partition, case.ranks, case.training, short))
    program, run = finished.plan.program, RunDirectory(finished.folder)
    turns = turns_of(program, epochs, (1, epochs - 1))
    simulation = simulate(program, machine([0] * case.ranks), epochs=epochs, evaluate_every=2)
    planned = planned_rows(program, turns)
    assert not differences(planned, counted_rows(simulation.trace))
    assert not differences(planned, counted_rows(read_table(run.trace)))
    training = planned_pairs(program, [turn for turn in turns if turn.template != EVALUATE])
    assert not differences(training, counted_pairs(simulation.traffic_table))
    for rank, result in enumerate(finished.ranks):
        assert [tuple(call) for call in result["calls"]] == planned_calls(program, turns, rank)
        if "freshness.p=0" in case.extra:
            trained = planned_calls(program, [turn for turn in turns if turn.template != EVALUATE], rank)
            assert {call[0] for call in trained} == {"all_reduce"}


@pytest.mark.slow
def test_coded_samples_train_like_exact_ones(bench: Bench) -> None:
    """8 bits an element and a header of two numbers a row, of the same rows: losses are near."""
    common = (*SAMPLED, "freshness.p=0.5", TRANSFORMED)
    exact, coded = (
        bench.run(Case("small", "gcn", "random", 3, "float64-adam", (*common, *more)))
        for more in ((), ("codec.kind=stochastic", "codec.bits=8"))
    )
    assert exact.ranks[0]["losses"] != coded.ranks[0]["losses"]
    np.testing.assert_allclose(coded.ranks[0]["losses"], exact.ranks[0]["losses"], rtol=0.02)
    widths = {layer.index: layer.prepared_width for layer in exact.plan.layers}
    for finished, row_bytes in ((exact, lambda width: 8 * width), (coded, lambda width: width + 2 * 8)):
        for op in finished.plan.program.templates["steady"].ops:
            if op.kind is OpKind.EXCHANGE:
                assert op.transfer is not None
                assert op.transfer.row_bytes == row_bytes(widths[op.layer])


@pytest.mark.slow
def test_codes_of_all_rows_are_those_of_vanilla(bench: Bench) -> None:
    """With p = 1, the losses of vanilla with the same codec, bit for bit."""
    ours, other = (
        bench.run(Case("small", "gcn", "random", 3, "float32-adam", ("codec.kind=stochastic", TRANSFORMED, *more)))
        for more in ((*SAMPLED, "freshness.p=1.0"), ())
    )
    assert ours.ranks[0]["losses"] == other.ranks[0]["losses"]
