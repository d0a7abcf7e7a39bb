"""Prices of work: features in closed form, the level that is read, and when a price is extrapolated."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgnn.errors import HardwareError
from simgnn.experiment.load import load_experiment, system_names
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.work import choose_level, features, flops_and_bytes, price_work
from simgnn.hardware.primitives import PRIMITIVES, feature_names, unit_of
from simgnn.hardware.profile.devices import Cache, Curve, Device
from simgnn.hardware.profile.profile import Profile, load_profile
from simgnn.hardware.profile.quantities import CoreCount, Size
from simgnn.planner.prepare import prepare
from tests.hardware.conftest import price_at, work_seconds

KIB = 1024
SIZES = {
    "matmul": {"rows": 100, "inner": 20, "outer": 8},
    "spmm": {"edges": 1000, "rows": 100, "sources": 200, "width": 16},
    "sparse_matmul": {"nonzeros": 500, "rows": 100, "width": 16},
    "elementwise": {"rows": 100, "width": 16, "passes": 3},
    "copy": {"rows": 100, "width": 16},
    "gather": {"rows": 100, "width": 16},
    "scatter_add": {"rows": 100, "width": 16},
    "sample": {"vertices": 10, "edges": 100},
    "loss": {"rows": 100, "width": 7},
    "optimizer": {"elements": 320},
    "select": {"rows": 100, "width": 16},
    "encode": {"rows": 100, "width": 16, "row_bytes": 24},
    "decode": {"rows": 100, "width": 16, "row_bytes": 24},
    "attention_scores": {"rows": 100, "width": 16, "heads": 4, "passes": 3},
    "attention_maximum": {"edges": 1000, "rows": 100, "sources": 200, "width": 4, "heads": 4},
    "attention_sums": {"edges": 1000, "rows": 100, "sources": 200, "width": 16, "heads": 4},
    "attention_gradients": {"edges": 1000, "rows": 200, "sources": 100, "width": 16, "heads": 4},
}


def value(primitive: str, feature: str, **changed: float) -> float:
    return float(features(primitive, {**SIZES[primitive], **changed}, caches={"L2": 8 * KIB})[feature][0])


def test_features_in_closed_form() -> None:
    assert value("matmul", "flops") == 2 * 100 * 20 * 8
    assert value("matmul", "flops", item_bytes=8) == 2 * value("matmul", "flops")
    assert value("matmul", "bytes") == 4 * (100 * 20 + 20 * 8 + 100 * 8)
    assert value("spmm", "gathered_bytes") == 1000 * 16 * 4
    assert value("spmm", "written_bytes", item_bytes=8) == 100 * 16 * 8
    assert value("spmm", "index_bytes") == 1000 * 4 + 100 * 8
    assert value("elementwise", "bytes") == 100 * 16 * 3 * 4
    assert value("elementwise", "beyond_bytes/L2") == 100 * 16 * 3 * 4 - 8 * KIB
    assert value("copy", "bytes") == value("gather", "bytes") == value("scatter_add", "bytes") == 6400
    assert value("copy", "beyond_bytes/L2") == 0
    assert value("loss", "elements") == 700
    assert value("optimizer", "bytes") == 1280
    assert value("sample", "vertices") == 10
    assert value("select", "bytes") == 2 * 100 * 16 * 4
    assert value("encode", "coded_bytes") == value("decode", "coded_bytes") == 2400
    assert value("encode", "elements") == 1600
    assert value("attention_scores", "bytes") == 100 * 16 * 4 * 3
    assert value("attention_scores", "weights") == 100 * 4
    for primitive in ("attention_maximum", "attention_sums", "attention_gradients"):
        assert value(primitive, "weights") == 1000 * 4
        assert value(primitive, "gathered_bytes") == 1000 * SIZES[primitive]["width"] * 4
        assert value(primitive, "weights", heads=8) == 2 * value(primitive, "weights")


def test_flops_and_bytes_by_hand() -> None:
    one = np.array([100])
    flops, touched = flops_and_bytes(
        "matmul", {"rows": one, "inner": one * 2, "outer": one * 3, "item_bytes": one * 0 + 4}
    )
    assert flops == pytest.approx(2 * 100 * 200 * 300)
    assert touched == pytest.approx(4 * (100 * 200 + 200 * 300 + 100 * 300))
    flops, touched = flops_and_bytes("spmm", {"edges": one * 5, "rows": one, "sources": one, "width": one * 0 + 8})
    assert flops == pytest.approx(2 * 500 * 8)
    assert touched == pytest.approx(500 * 32 + 100 * 32 + 500 * 4 + 100 * 8)
    flops, touched = flops_and_bytes("copy", {"rows": one, "width": one * 0 + 8})
    assert touched == pytest.approx(2 * 100 * 32)


@pytest.mark.parametrize(("system", "model"), [*((name, "gcn") for name in system_names()), ("vanilla", "gat")])
def test_every_primitive_of_a_shipped_system_is_in_the_table(system: str, model: str) -> None:
    options = ["graph.source=synthetic:communities", "graph.vertices=300", "graph.edges=900"]
    experiment = load_experiment(system, [*options, "cluster.ranks_per_host=2", f"model.kind={model}"])
    asked, profile = set(), load_profile("mixed-pcie3-8")  # for systems that suit devices
    for piece in (piece for _, op in prepare(experiment, profile=profile).planned.program.ops for piece in op.work):
        asked.add(piece.primitive)
        found = features(piece.primitive, dict.fromkeys(piece.sizes, 1))
        assert set(found) == set(PRIMITIVES[piece.primitive].plain)
    assert {"matmul", "attention_sums" if model == "gat" else "spmm"} <= asked


@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_every_feature_that_is_named_is_computed(primitive: str) -> None:
    found = features(primitive, SIZES[primitive], caches={"L2": 1.0, "L3": 2.0})
    assert set(found) == set(feature_names(primitive, ("L2", "L3")))
    assert all(unit_of(name) for name in found)


@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_many_at_once_equal_one_at_a_time(primitive: str) -> None:
    many = {name: np.array([size, size * 3, size * 10], dtype=float) for name, size in SIZES[primitive].items()}
    together = features(primitive, many, caches={"L2": 4096.0})
    for index in range(3):
        alone = features(primitive, {name: sizes[index] for name, sizes in many.items()}, caches={"L2": 4096.0})
        assert all(together[name][index] == alone[name][0] for name in together)


def test_misses_follow_the_reuse_profile() -> None:
    profile = [0.1, 0.2, 0.4, 0.6, 0.9]  # share of reads at distance <= 1, 2, 4, 8, 16 rows
    row = 16 * 4

    def missed(rows: float) -> float:
        return float(features("spmm", SIZES["spmm"], profile, {"L": rows * row})["missed_rows/L"][0])

    assert missed(4) == pytest.approx(600)
    assert missed(16) == pytest.approx(100)
    assert missed(1e9) == pytest.approx(100)  # first reads miss in any cache
    assert missed(0.5) == pytest.approx(1000)
    assert missed(2**2.5) == pytest.approx(500)
    wide = features("spmm", {**SIZES["spmm"], "width": 32}, profile, {"L": 4 * row})
    assert wide["missed_rows/L"][0] == pytest.approx(800)  # rows twice as wide: half as many fit
    assert wide["missed_bytes/L"][0] == pytest.approx(800 * 128)


@given(st.floats(1, 1e6), st.floats(1, 1e6), st.lists(st.floats(0, 0.03), min_size=32, max_size=32))
def test_a_larger_cache_never_misses_more(one: float, other: float, steps: list[float]) -> None:
    profile = np.cumsum(steps)
    small, large = (
        features("spmm", SIZES["spmm"], profile, {"L": size})["missed_rows/L"][0] for size in sorted((one, other))
    )
    assert large <= small + 1e-9


def test_without_a_profile_the_stream_counts_as_random() -> None:
    def missed(rows: float) -> float:
        return float(features("spmm", SIZES["spmm"], None, {"L": rows * 64})["missed_rows/L"][0])

    assert missed(200) == pytest.approx(200)  # everything fits: only the first reads of 200 sources miss
    assert missed(100) == pytest.approx(600)
    assert missed(1) == pytest.approx(1000 - 800 / 200)


def test_each_rank_has_its_share_of_a_cache() -> None:
    shared = Cache(size=Size.of(1000, "assumed"), shared_by=CoreCount.of(4, "assumed"))
    assert shared.bytes_each(8, 1) == 1000
    assert shared.bytes_each(8, 2) == 1000  # two instances, one rank on each
    assert shared.bytes_each(8, 4) == 500
    assert Cache(size=Size.of(1000, "assumed")).bytes_each(None, 4) == 250


def cpu(*curves: Curve) -> Device:
    return Device(kind="cpu", memory=Size.of(1e9, "assumed"), cores=CoreCount.of(8, "assumed"), curves=curves)


def level(concurrency: int, threads: int, cost: float = 1e-6) -> Curve:
    return Curve.of("copy", {"call": cost}, "assumed", concurrency=concurrency, threads=threads)


@pytest.mark.parametrize(
    ("levels", "concurrency", "threads", "chosen", "factor", "exact"),
    [
        ([(1, 8), (4, 2), (8, 1)], 4, 2, (4, 2), 1.0, True),
        ([(1, 8), (8, 1)], 2, 4, (1, 8), 2.0, False),  # half as many cores
        ([(2, 1), (8, 1)], 4, 1, (8, 1), 1.0, False),  # equally near: the more concurrent one
        ([(2, 1), (8, 1)], 3, 1, (2, 1), 1.0, False),
        ([(8, 1)], 16, 1, (8, 1), 2.0, False),  # two ranks to a core
        ([(8, 1)], 1, 8, (8, 1), 1 / 8, False),
    ],
)
def test_the_level_that_is_read(
    levels: list[tuple[int, int]],
    concurrency: int,
    threads: int,
    chosen: tuple[int, int],
    factor: float,
    exact: bool,
) -> None:
    device = cpu(*(level(*entry) for entry in levels))
    found = choose_level(device, "cpu", "copy", concurrency, threads)
    assert (found.curve.concurrency, found.curve.threads) == chosen
    assert found.factor == pytest.approx(factor)
    assert found.exact is exact
    price = price_at(price_work(device, "cpu", "copy", {"bytes": 1}, None, concurrency, threads), 0)
    assert price.seconds == pytest.approx(1e-6 * factor)
    assert price.extrapolated is not exact


def test_seconds_in_closed_form(server: Profile) -> None:
    machine = Machine.place(server, [0, 1])
    price = work_seconds(machine, 0, "matmul", {"rows": 1000, "inner": 100, "outer": 10})
    assert price.seconds == pytest.approx(10e-6 + 2e6 / 1e12)
    assert (price.spread, price.extrapolated, price.source) == (0.02, False, "measured")
    profile = np.linspace(0.05, 0.8, 16)
    rows_that_fit = 4 * 2**20 / (64 * 4)
    hit = np.interp(np.log2(rows_that_fit), np.arange(16), profile)
    spmm = work_seconds(machine, 0, "spmm", {"edges": 1e6, "rows": 1e5, "width": 64}, profile)
    gathered = 1e6 * 64 * 4
    assert spmm.seconds == pytest.approx(gathered / 100e9 + gathered * (1 - hit) / 10e9)


def test_sizes_outside_the_measured_range_are_flagged(server: Profile) -> None:
    machine = Machine.place(server, [0, 1])

    def flagged(**sizes: float) -> bool:
        return work_seconds(machine, 0, "matmul", {"rows": 10.0, "inner": 100.0, "outer": 10.0, **sizes}).extrapolated

    assert not flagged()
    assert flagged(inner=15)
    assert not flagged(inner=16)
    assert flagged(inner=5000)
    assert flagged(rows=1e10)
    assert work_seconds(machine, 0, "spmm", {"edges": 10, "rows": 10, "width": 64}, None).extrapolated


def test_all_ranks_at_once_equal_each_rank(cluster: Profile) -> None:
    machine = Machine.place(cluster, [0, 0, 0, 1, 1, 2])
    sizes = {"edges": np.arange(1, 7) * 1e5, "rows": np.arange(1, 7) * 1e4, "width": 128, "item_bytes": 4}
    locality = np.cumsum(np.random.default_rng(0).random((6, 32)) / 33, axis=1)
    seconds, flags, spread = machine.work_seconds_all("spmm", sizes, locality)
    for rank in range(6):
        one = {name: float(np.broadcast_to(size, 6)[rank]) for name, size in sizes.items()}
        price = work_seconds(machine, rank, "spmm", one, locality[rank])
        assert (seconds[rank], bool(flags[rank]), spread[rank]) == (price.seconds, price.extrapolated, price.spread)


def test_a_missing_curve_names_device_primitive_and_remedy(server: Profile) -> None:
    machine = Machine.place(server, [0])
    with pytest.raises(HardwareError) as caught:
        work_seconds(machine, 0, "gather", {"rows": 1, "width": 1})
    for part in ("devices.fast.curves", "'gather'", "simgnn calibrate"):
        assert part in str(caught.value)


def test_work_that_is_not_measured_is_priced_by_what_stands_in_and_says_so() -> None:
    rates = {"spmm": {"gathered_bytes": 2e-9, "missed_bytes/L2": 1e-8}, "elementwise": {"bytes": 1e-9}}
    device = _cpu(*(Curve.of(name, costs, "assumed") for name, costs in rates.items()))
    edges, rows, sources, width, heads = 1000.0, 100.0, 200.0, 16.0, 4.0
    profile = np.linspace(0.1, 0.9, 16)

    def seconds(primitive: str, **sizes: float) -> float:
        return float(price_work(device, "cpu", primitive, sizes, profile, 1, 1).seconds[0])

    over = {"edges": edges, "heads": heads, "width": width}
    forward = price_work(device, "cpu", "attention_sums", {**over, "rows": rows, "sources": sources}, profile, 1, 1)
    expected = seconds("spmm", edges=edges, rows=rows, sources=sources, width=width + heads)
    expected += seconds("elementwise", rows=edges, width=heads, passes=3)
    assert forward.seconds[0] == pytest.approx(expected)
    assert (forward.spread, forward.source, bool(forward.extrapolated[0])) == (None, "assumed", True)
    backward = price_work(
        device, "cpu", "attention_gradients", {**over, "rows": sources, "sources": rows}, profile, 1, 1
    )
    expected = seconds("spmm", edges=edges, rows=rows, sources=sources, width=width + heads)
    expected += seconds("spmm", edges=edges, rows=sources, sources=rows, width=width + heads)
    expected += seconds("elementwise", rows=edges, width=heads, passes=6)
    assert backward.seconds[0] == pytest.approx(expected)
    many = {name: np.array([size, 2 * size]) for name, size in over.items()}
    both = price_work(device, "cpu", "attention_sums", {**many, "rows": rows, "sources": sources}, profile, 1, 1)
    assert both.seconds[0] == pytest.approx(forward.seconds[0])
    measured = Curve.of(
        "attention_sums", {"weights": 1e-8}, "measured", spread=0.2, samples=9, range={"edges": (0, 9e9)}
    )
    known = device.model_copy(update={"curves": (*device.curves, measured)})
    told = price_work(known, "cpu", "attention_sums", {**over, "rows": rows, "sources": sources}, profile, 1, 1)
    assert told.seconds[0] == pytest.approx(edges * heads * 1e-8)
    assert (told.spread, told.source, bool(told.extrapolated[0])) == (0.2, "measured", False)


def _cpu(*curves: Curve) -> Device:
    memory, cores = Size.of(1e9, "assumed"), CoreCount.of(1, "assumed")
    caches = {"L2": Cache(size=Size.of(8.0 * KIB, "assumed"))}
    return Device(kind="cpu", memory=memory, cores=cores, caches=caches, curves=curves)


def test_a_missing_size_is_named() -> None:
    with pytest.raises(HardwareError, match="'matmul': the size 'outer' is missing"):
        features("matmul", {"rows": 1, "inner": 1})
    with pytest.raises(HardwareError, match="unknown primitive 'matmull'"):
        features("matmull", {"rows": 1})


def test_work_of_no_rows_costs_a_call(server: Profile) -> None:
    price = work_seconds(Machine.place(server, [0]), 0, "matmul", {"rows": 0, "inner": 100, "outer": 10})
    assert price.seconds == pytest.approx(10e-6)
