"""Training with halo rows from caches is what a plain PyTorch script computes with the same rows, whatever the
schedule. Program, simulation and run count the same bytes. Settings that change nothing: ``test_cached_identity.py``.
"""

from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from executor.layers import build_layers
from executor.state.plan import RunPlan
from simgnn.policy import METRICS, Metrics
from simgnn.program.kinds import Form, OpKind
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.sim.simulate import simulate
from tests.cached_reference import Caching, Members, halo_of, members, train_cached_reference
from tests.equality.block_runs import told
from tests.equality.cases import Case
from tests.equality.conftest import Bench
from tests.equality.counting import counted_rows, differences, pair_bytes, planned_rows, turns_of
from tests.equality.halo_runs import Moved, settings_of, summed, train_counting, wanted
from tests.equality.late_runs import errors, train_delayed
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph
from tests.late_reference import LateReference
from tests.sim.worlds import machine

INTERVAL, ITEM = 3, 8
EPOCHS = 3 * INTERVAL + 1
WAYS = {OpKind.H2D: "load", OpKind.D2H: "store"}
HIDDEN, INPUT, TRANSFORMED = "model.order=aggregate-first", "communication.rows=input", "communication.rows=transformed"
DEEP, RESENT = "model.layers=3", "communication.resend_inputs=true"
GIN = ("model.kind=gin", "train.learning_rate=0.001")
CASES: dict[str, tuple[int, tuple[str, ...], Caching]] = {
    "gcn, always": (3, ("model.kind=gcn", DEEP, HIDDEN), Caching(INTERVAL, 0.4, "always")),
    "sage, historical": (
        3, ("model.kind=sage", DEEP, "partition.kind=metis", TRANSFORMED, "model.dropout=0.5"),
        Caching(INTERVAL, 0.6, "historical"),
    ),
    "gat": (3, ("model.kind=gat", "model.heads=2", TRANSFORMED), Caching(INTERVAL, 9, host_rows=0.5)),
    "gcn, inputs resent": (3, ("model.kind=gcn", RESENT, HIDDEN), Caching(INTERVAL, 0.3, host_rows=0.4)),
    "two hosts": (
        4, ("model.kind=gcn", DEEP, HIDDEN), Caching(INTERVAL, 0.2, "historical", host_rows=0.6, hosts=2)
    ),
    "gcn, all": (2, ("model.kind=gcn", DEEP, HIDDEN), Caching(INTERVAL, 1.0)),
    "gcn, all shared": (4, ("model.kind=gcn", DEEP, TRANSFORMED), Caching(INTERVAL, 0, host_rows=1.0)),
    "gin, low": (4, (*GIN, DEEP), Caching(INTERVAL, 0.3, order="low", host_rows=20)),
    "gin, historical": (2, (*GIN, DEEP), Caching(INTERVAL, 0.7, "historical")),
    "gat, inputs": (4, ("model.kind=gat", "model.heads=2", INPUT, DEEP), Caching(INTERVAL, 0.5, "always")),
    "sage, first of each": (
        4, ("model.kind=sage", TRANSFORMED, DEEP), Caching(INTERVAL, 12, top_k=7, host_rows=30, hosts=2)
    ),
    "gcn, one layer": (3, ("model.kind=gcn", TRANSFORMED, DEEP), Caching(INTERVAL, 0.8, layers=(2,))),
    "sage, uncovered": (
        4, ("model.kind=sage", DEEP, HIDDEN, "model.dropout=0.5"),
        Caching(INTERVAL, 0.4, "always", host_rows=0.3, global_rank="uncovered"),
    ),
    "sgd, one rank a host": (
        3, ("model.kind=gcn", HIDDEN, "train.optimizer=sgd", "train.learning_rate=0.5"),
        Caching(INTERVAL, 0.5, "historical", host_rows=0.3, hosts=3),
    ),
    "gcn, async": (2, ("model.kind=gcn", DEEP, HIDDEN), Caching(INTERVAL, 0.5, mode="async")),
    "sage, async": (
        3, ("model.kind=sage", DEEP, TRANSFORMED, "model.dropout=0.5"),
        Caching(INTERVAL, 0.6, "historical", mode="async"),
    ),
    "gat, two ranks": (2, ("model.kind=gat", "model.heads=2", DEEP), Caching(INTERVAL, 0.3, host_rows=0.5)),
    "gat, async": (
        4, ("model.kind=gat", "model.heads=2", INPUT), Caching(INTERVAL, 0.7, "always", mode="async", top_k=20)
    ),
    "gin, async, resent": (3, (*GIN, RESENT), Caching(INTERVAL, 0.7, mode="async")),
    "gcn, async, shared": (4, ("model.kind=gcn", DEEP, HIDDEN), Caching(INTERVAL, 0.3, host_rows=0.5, mode="async")),
    "sage, async, two hosts": (
        4, ("model.kind=sage", DEEP, TRANSFORMED, "model.dropout=0.5"),
        Caching(INTERVAL, 0.2, "historical", host_rows=0.6, hosts=2, mode="async"),
    ),
    "gat, async, all shared": (
        3, ("model.kind=gat", "model.heads=2", INPUT), Caching(INTERVAL, 0, "always", host_rows=1.0, mode="async")
    ),
    "resent, async, shared": (
        3, (*GIN, RESENT, DEEP), Caching(INTERVAL, 0.4, host_rows=25, mode="async", global_rank="uncovered")
    ),
    "resent, two hosts": (
        4, ("model.kind=gcn", RESENT, HIDDEN, DEEP), Caching(INTERVAL, 5, host_rows=25, hosts=2, layers=(1, 3))
    ),
}  # fmt: skip
"""Ranks, settings, and how rows are cached."""
QUICK = ("sage, historical", "gcn, inputs resent", "sage, async, two hosts")
ORDERS = {"bsp": ("bsp", None), "pipelined": ("pipelined", None), "random order, delays": ("pipelined", 7)}
EACH = [pytest.param(case, id=case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in CASES]
FAST = {
    *product(["bsp"], QUICK), *product(ORDERS, ["gcn, inputs resent"]),
    ("random order, delays", "sage, async, two hosts"),
}  # fmt: skip
EACH_ORDER = [
    pytest.param(*one, id=", ".join(one), marks=[] if one in FAST else [pytest.mark.slow])
    for one in product(ORDERS, CASES)
]


class Trained:
    """What each rank returned of each case, by order of ops. Cases of equal ranks are trained together."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._of = lru_cache(None)(self._train)

    def ranks(self, order: str, case: str) -> list[dict[str, Any]]:
        """What each rank returned of a case."""
        names, results = self._of(order, CASES[case][0], case in QUICK)
        return [rank[names.index(case)] for rank in results]

    def folder(self, order: str, case: str) -> Path:
        """The run directory of a case."""
        self.ranks(order, case)
        return self.root / f"{order}-{case}"

    def _train(self, order: str, ranks: int, quick: bool) -> tuple[list[str], list[list[dict[str, Any]]]]:
        kind, seed = ORDERS[order]
        names = [case for case, (each, _, _) in CASES.items() if each == ranks and (case in QUICK) is quick]
        common = (f"train.epochs={EPOCHS}", "train.eval_every=4", f"schedule.kind={kind}")
        folders = []
        for case in names:
            _, settings, caching = CASES[case]
            folder, told_it = self.root / f"{order}-{case}", (*settings, *settings_of(caching), *common)
            folders.append(str(prepared_run(small_graph(), folder, ranks, *told_it, hosts=caching.hosts)))
        root = self.root / f"ranks-{order}-{ranks}-{quick}"
        if seed is None:
            return names, run_ranks(ranks, train_counting, root, folders, joined=False)
        return names, run_ranks(ranks, train_delayed, root, folders, seed, joined=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("cached"))


def reference(plan: RunPlan, caching: Caching, constant: bool) -> LateReference:
    layers = build_layers(plan.layers, plan.seed, torch.float64)
    initial = [{name: value.detach().clone() for name, value in layer.named_parameters()} for layer in layers]
    return train_cached_reference(
        small_graph(), plan.layers, initial, plan.artifact, plan.epochs, plan.train, plan.seed, caching, constant
    )


def inputs_travel(plan: RunPlan) -> bool:
    """Whether rows of layer 1 are input rows, which never change."""
    ops = plan.program.templates["steady"].ops
    return not any((op.layer, op.phase, op.kind) == (1, "forward", OpKind.EXCHANGE) for op in ops)


@pytest.mark.parametrize("case", EACH)
def test_one_process_that_holds_the_same_cached_rows_learns_the_same(trained: Trained, case: str) -> None:
    plan, caching = RunPlan.open(trained.folder("bsp", case)), CASES[case][2]
    expected = reference(plan, caching, inputs_travel(plan))
    exact = reference(plan, Caching(1, 0), inputs_travel(plan))
    assert abs(exact.losses[-1] - expected.losses[-1]) > 1e-7, "cached rows change what is learned"
    right = expected.scores.argmax(1).numpy() == small_graph().labels
    masks = [np.asarray(getattr(small_graph(), f"{split}_mask")) for split in ("train", "validation", "test")]
    for ours in trained.ranks("bsp", case):
        assert max(errors(ours, expected).values()) <= 1e-10, errors(ours, expected)
        # evaluations are of exact rows
        for split, mask in enumerate(masks):
            counted = Metrics(*ours["evaluations"][EPOCHS - 1][split * METRICS : (split + 1) * METRICS])
            assert (counted.correct, counted.count) == (right[mask].sum(), np.count_nonzero(mask))


@pytest.mark.parametrize(("order", "case"), [one for one in EACH_ORDER if one.values[0] != "bsp"])
def test_no_schedule_changes_a_bit(trained: Trained, case: str, order: str) -> None:
    for one, other in zip(trained.ranks("bsp", case), trained.ranks(order, case), strict=True):
        assert one["serial"] == ("gat" not in case), "parts of attention's sums are ordered by dependencies"
        assert not other["serial"]
        assert other["losses"] == one["losses"]
        assert torch.equal(other["parameters"], one["parameters"])


@pytest.mark.parametrize(("order", "case"), [one for one in EACH_ORDER if one.values[0] in ("bsp", "pipelined")])
def test_program_simulation_and_run_count_the_same_bytes(trained: Trained, order: str, case: str) -> None:
    folder = trained.folder(order, case)
    program = RunPlan.open(folder).program
    turns = turns_of(program, EPOCHS, [3, 7, EPOCHS - 1])
    executed = read_table(RunDirectory(folder).trace)
    assert not differences(planned_rows(program, turns), counted_rows(executed))
    simulated = simulate(program, machine(list(program.hosts)), epochs=EPOCHS, evaluate_every=4)
    assert not differences(told(simulated.trace), told(executed))


class Rows:
    """Rows [owner, receiver] by where they come from, counted vertex by vertex (capgnn.md, section 9)."""

    def __init__(self, plan: RunPlan, caching: Caching) -> None:
        self.halo, ranks = halo_of(plan.artifact), plan.ranks
        self.of = found = members(self.halo, caching)
        self.every, self.missed, self.fresh = np.zeros((3, ranks, ranks), np.int64)
        self.writer: list[dict[int, int]] = [{} for _ in found.memories]
        for rank, held in enumerate(self.halo):
            host = found.host(rank)
            for vertex, owner in held.items():
                in_memory = vertex in found.memories[host]
                # of another host's rows, the first rank that needs one writes it for the others
                relays = in_memory and found.host(owner) != host and vertex not in self.writer[host]
                if in_memory:
                    self.writer[host].setdefault(vertex, rank if relays else owner)
                self.every[owner, rank] += 1
                self.missed[owner, rank] += not in_memory and vertex not in found.devices[rank]
                self.fresh[owner, rank] += not in_memory or relays

    def moved(self, rank: int, fresh: bool) -> dict[str, int]:
        """Rows that a rank reads on its device, loads from and stores in the memory of its host in an epoch."""
        found, held, host = self.of, set(self.halo[rank]), self.of.host(rank)
        shared = found.memories[host] & held
        return {
            "device": 0 if fresh else len(found.devices[rank]),
            "load": len(shared if fresh else shared - found.devices[rank]),
            "store": list(self.writer[host].values()).count(rank) if fresh else 0,
        }


def layers_of(plan: RunPlan, caching: Caching) -> list[tuple[int, int]]:
    """The layers whose hidden or transformed rows travel, with their widths."""
    return [(layer.index, layer.prepared_width) for layer in plan.layers[1 if inputs_travel(plan) else 0 :]]


@pytest.mark.parametrize("case", EACH)
def test_bytes_are_those_of_the_formulas(trained: Trained, case: str) -> None:
    plan, caching = RunPlan.open(trained.folder("bsp", case)), CASES[case][2]
    rows, resent = Rows(plan, caching), RESENT in CASES[case][1]
    turns = {turn.epoch: turn for turn in plan.program.calendar.turns(EPOCHS)}

    def sent(layer: int, new: bool) -> NDArray[np.int64]:
        if caching.layers is not None and layer not in caching.layers:
            return rows.every
        return rows.fresh if new else rows.missed

    for epoch in (0, 1, INTERVAL - 1, INTERVAL, INTERVAL + 1):
        fresh, found = epoch % INTERVAL == 0, {}
        for op in plan.program.templates[turns[epoch].template].ops:
            if op.kind is OpKind.EXCHANGE:
                found[op.layer, op.phase] = pair_bytes(plan.program, op, turns[epoch]).tolist()
        expected: dict[Any, Any] = {}
        if inputs_travel(plan) and (resent or epoch == 0):
            of_inputs = sent(1, epoch == 0) if resent else rows.every
            expected[1, "setup"] = (of_inputs * plan.layers[0].width_in * ITEM).tolist()
        for layer, width in layers_of(plan, caching):
            back = rows.every if fresh or caching.grad == "always" else sent(layer, False)
            expected[layer, "forward"] = (sent(layer, fresh) * width * ITEM).tolist()
            expected[layer, "backward"] = (back.T * width * ITEM).tolist()
        assert found == expected, epoch


@pytest.mark.parametrize(("order", "case"), [one for one in EACH_ORDER if one.values[0] in ("bsp", "pipelined")])
def test_rows_from_caches_are_counted_where_they_move(trained: Trained, order: str, case: str) -> None:
    plan, caching = RunPlan.open(trained.folder(order, case)), CASES[case][2]
    rows, item = Rows(plan, caching), ITEM
    widths = {(layer, "forward"): width for layer, width in layers_of(plan, caching)}
    if RESENT in CASES[case][1]:
        widths[1, "setup"] = plan.layers[0].width_in
    for rank, ours in enumerate(trained.ranks(order, case)):
        expected: Moved = {}
        for epoch, ((layer, phase), width) in product(range(EPOCHS), widths.items()):
            if caching.layers is None or layer in caching.layers:
                moved = rows.moved(rank, epoch == 0 if phase == "setup" else epoch % INTERVAL == 0)
                if caching.mode == "async" and epoch:
                    moved["device"] = len(rows.of.devices[rank])
                if order == "pipelined":
                    moved["merge"] = moved["store"]  # once out of the device, once into the memory of the host
                expected |= {(epoch, layer, phase, way): count * width * item for way, count in moved.items()}
        assert summed(ours["moved"]) == wanted(expected)
        planned: Moved = {}
        for turn in plan.program.calendar.turns(EPOCHS):
            for op in plan.program.templates[turn.template].ops:
                way = "merge" if op.form is Form.MERGED_ROWS else WAYS.get(op.kind)
                if way is not None:
                    assert op.transfer is not None
                    count = int(plan.program.sizes.per_rank(op.transfer.rows, turn.epoch, 0)[rank])
                    key = (turn.epoch, op.layer, op.phase, way)
                    planned[key] = planned.get(key, 0) + count * op.transfer.row_bytes
        assert wanted(planned) == {key: nbytes for key, nbytes in wanted(expected).items() if key[3] != "device"}


@pytest.mark.parametrize(("order", "case"), [one for one in EACH_ORDER if one.values[0] in ("bsp", "pipelined")])
def test_rows_are_checked_at_each_use_and_are_as_old_as_they_may_be(trained: Trained, order: str, case: str) -> None:
    """0 to r - 1 epochs, with "async" 1 to r. Each row that was read from the memory of a host has a version of its
    own; the rows of a device, which are filled together, have one."""
    plan, caching = RunPlan.open(trained.folder(order, case)), CASES[case][2]
    rows, delayed, ages = Rows(plan, caching), caching.mode == "async", set()
    syncs = [(layer, "forward") for layer, _ in layers_of(plan, caching)]
    syncs += [(1, "setup")] if RESENT in CASES[case][1] else []
    for rank, ours in enumerate(trained.ranks(order, case)):
        checked: dict[tuple[int, int, str], list[tuple[int, int, int]]] = {}
        for epoch, layer, phase, count, oldest, newest in ours["checked"]:
            checked.setdefault((epoch, layer, phase), []).append((count, epoch - oldest, epoch - newest))
        for epoch, (layer, phase) in product(range(EPOCHS), syncs):
            if caching.layers is not None and layer not in caching.layers:
                continue
            constant = phase == "setup"
            fresh = epoch == 0 if constant else epoch % INTERVAL == 0
            device, held = rows.of.devices[rank], set(rows.halo[rank])
            shared = rows.of.memories[rows.of.host(rank)] & held
            found = sorted(checked.pop((epoch, layer, phase), []))
            if fresh and (epoch == 0 or not delayed):
                uses = [(len(shared), 0)]
            else:
                age = epoch if constant else (epoch - delayed) % INTERVAL + delayed
                uses = [(1, age), (len(shared - device), age)]
                ages.add((constant, age))
            if fresh and delayed and epoch:
                uses.append((len(shared & device), 0))  # these the device only keeps, for epochs to come
            assert found == sorted((count, age, age) for count, age in uses if count), (rank, epoch, layer, phase)
        assert not checked, "no other row is from a cache"
    hidden = {age for constant, age in ages if not constant}
    assert hidden <= set(range(delayed, INTERVAL + delayed))
    assert not hidden or max(hidden) == INTERVAL - 1 + delayed


@pytest.mark.parametrize("case", [one for one in EACH if RESENT in CASES[one.values[0]][1]])
def test_cached_rows_of_layer_1_are_the_features_for_ever(trained: Trained, case: str) -> None:
    plan, caching = RunPlan.open(trained.folder("bsp", case)), CASES[case][2]
    chosen, features = members(halo_of(plan.artifact), caching), torch.from_numpy(np.asarray(small_graph().features))
    for rank, ours in enumerate(trained.ranks("bsp", case)):
        cached = [vertex for vertex in plan.artifact.local(rank).halo.tolist() if vertex in chosen.devices[rank]]
        assert cached
        assert torch.equal(ours["caches"]["cache/1/setup#0"], features[cached].double())
        assert ours["caches"]["versions/1/setup#0"].tolist() == [[1]], "filled in the first epoch, and never again"


@pytest.mark.parametrize("case", EACH)
def test_caches_hold_no_more_than_what_was_chosen(trained: Trained, case: str) -> None:
    plan, caching = RunPlan.open(trained.folder("bsp", case)), CASES[case][2]
    chosen: Members = members(halo_of(plan.artifact), caching)
    for rank, ours in enumerate(trained.ranks("bsp", case)):
        ways = [f"cache/{layer.index}/{phase}#0" for layer in plan.layers for phase in ("forward", "setup")]
        held = {len(ours["caches"][name]) for name in ways if name in ours["caches"]}
        assert held == {len(chosen.devices[rank])}
        memory = int(plan.program.sizes.columns["halo/in_memory"][rank]) if caching.host_rows else 0
        assert memory == len(chosen.memories[chosen.host(rank)])


def test_an_async_refresh_in_every_epoch_gives_rows_of_the_epoch_before(tmp_path: Path) -> None:
    caching = Caching(1, 0.4, host_rows=0.5, mode="async")
    settings = (DEEP, HIDDEN, *settings_of(caching), "train.epochs=5", "train.eval_every=0")
    folder = prepared_run(small_graph(), tmp_path / "run", 3, *settings)
    plan = RunPlan.open(folder)
    expected = reference(plan, caching, constant=True)
    exact = reference(plan, Caching(1, 0), constant=True)
    assert expected.losses[0] == pytest.approx(exact.losses[0], abs=1e-12)
    assert abs(expected.losses[-1] - exact.losses[-1]) > 1e-7
    for ours in run_ranks(3, train_counting, tmp_path / "ranks", [str(folder)], joined=False):
        assert ours[0]["losses"] == pytest.approx(expected.losses, abs=1e-10)
    simulated = simulate(plan.program, machine(list(plan.program.hosts)), epochs=5, evaluate_every=5)
    assert not differences(told(simulated.trace), told(read_table(RunDirectory(folder).trace)))


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["codec.kind=linear", "codec.kind=stochastic", "codec.kind=bfloat16"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_coded_rows_are_cached_as_they_were_decoded(bench: Bench, codec: str, hosts: int) -> None:
    """Losses are near those of exact rows, and all count the same bytes."""
    common = (*settings_of(Caching(INTERVAL, 0.3, "historical", host_rows=0.4)), TRANSFORMED, "train.eval_every=2")
    exact, coded = (
        bench.run(Case("small", "gcn", "random", 4, "float32-adam", (*common, *more), hosts)) for more in ((), (codec,))
    )
    assert exact.ranks[0]["losses"] != coded.ranks[0]["losses"]
    np.testing.assert_allclose(coded.ranks[0]["losses"], exact.ranks[0]["losses"], rtol=0.02)
    program, run = coded.plan.program, RunDirectory(coded.folder)
    simulation = simulate(program, machine(list(program.hosts)), epochs=coded.plan.epochs, evaluate_every=2)
    assert not differences(told(simulation.trace), told(read_table(run.trace)))
