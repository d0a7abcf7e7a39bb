"""Curves and communication are fitted back from samples that known machines would have given."""

from collections.abc import Mapping
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from simgnn.analysis.fit.device import fit_curves, profile_caches
from simgnn.analysis.fit.network import fit_network
from simgnn.analysis.fit.profile import fit_profile
from simgnn.analysis.fit.samples import Cache, Facts, MeasuredHost, Sample, SampleFile
from simgnn.errors import HardwareError
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.work import features
from simgnn.hardware.primitives import PRIMITIVES
from simgnn.hardware.profile.profile import load_profile, save_profile
from tests.hardware.conftest import work_seconds

CACHES = (
    Cache(level=1, size_bytes=1 << 15, sharers=1, source="test"),
    Cache(level=2, size_bytes=1 << 20, sharers=1, source="test"),
    Cache(level=3, size_bytes=1 << 25, sharers=2, source="test"),
)
FACTS = Facts(
    host="9box.example", system="Linux", cpu_model="test", cores=2, memory_bytes=1 << 34, caches=CACHES,
    python="3.11", torch="2", device="cpu",
)  # fmt: skip
HERE = (MeasuredHost(ranks=(0, 1), facts=FACTS),)
TRUTH: Mapping[str, Mapping[str, float]] = {
    "matmul": {"call": 2e-5, "flops": 1.5e-11, "input_bytes": 1e-10, "output_bytes": 2e-10},
    "spmm": {"call": 3e-5, "edges": 2e-9, "gathered_bytes": 4e-11, "missed_bytes/L2": 5e-11, "missed_bytes/L3": 2e-10},
    "sparse_matmul": {"call": 2e-5, "written_bytes": 1e-10, "gathered_bytes": 5e-11, "missed_bytes/L2": 5e-11},
    "elementwise": {"call": 1e-5, "bytes": 5e-11, "beyond_bytes/L3": 5e-11},
    "copy": {"call": 1e-5, "bytes": 8e-11, "beyond_bytes/L2": 8e-11},
    "gather": {"call": 1e-5, "rows": 5e-9, "bytes": 1e-10},
    "scatter_add": {"call": 1e-5, "rows": 5e-9, "bytes": 2e-10},
    "loss": {"call": 3e-4, "rows": 1e-7, "elements": 1e-8},
    "optimizer": {"call": 2e-4, "elements": 2e-9},
    "select": {"call": 1e-5, "bytes": 1e-10},
    "encode": {"call": 1e-5, "elements": 2e-9, "coded_bytes": 1e-9},
    "decode": {"call": 1e-5, "rows": 5e-9, "elements": 1e-9},
    "sample": {"call": 5e-5, "vertices": 5e-8, "edges": 2e-8},
    "attention_scores": {"call": 1e-5, "weights": 5e-9, "bytes": 5e-11, "beyond_bytes/L2": 5e-11},
    "attention_maximum": {"call": 1e-5, "edges": 1e-9, "weights": 2e-9, "missed_bytes/L3": 2e-10},
    "attention_sums": {"call": 2e-5, "weights": 1e-8, "gathered_bytes": 4e-11, "missed_bytes/L2": 1e-10},
    "attention_gradients": {"call": 3e-5, "edges": 3e-9, "weights": 2e-8, "gathered_bytes": 8e-11,
                            "missed_bytes/L3": 3e-10},
}  # fmt: skip
SIZES = {
    "matmul": ("rows", "inner", "outer"),
    "spmm": ("edges", "rows", "sources", "width"),
    "sparse_matmul": ("nonzeros", "rows", "sources", "width"),
    "elementwise": ("rows", "width", "passes"),
    "copy": ("rows", "width"),
    "gather": ("rows", "width"),
    "scatter_add": ("rows", "width"),
    "loss": ("rows", "width"),
    "optimizer": ("elements",),
    "select": ("rows", "width"),
    "encode": ("rows", "width", "row_bytes"),
    "decode": ("rows", "width", "row_bytes"),
    "sample": ("vertices", "edges"),
    "attention_scores": ("rows", "width", "heads", "passes"),
    "attention_maximum": ("edges", "rows", "sources", "width", "heads"),
    "attention_sums": ("edges", "rows", "sources", "width", "heads"),
    "attention_gradients": ("edges", "rows", "sources", "width", "heads"),
}
LARGEST = {"rows": 1e5, "inner": 512, "outer": 256, "edges": 2e6, "nonzeros": 1e6, "sources": 1e5, "width": 256,
           "passes": 3, "elements": 1e6, "row_bytes": 512, "vertices": 1e5, "heads": 16}  # fmt: skip


def machine_samples(primitive: str, count: int, noise: float, active: int = 2, seed: int = 0) -> list[Sample]:
    """Samples of a machine whose costs are TRUTH, with log-normal noise."""
    generator = np.random.default_rng(seed)
    share = {name: cache.bytes_each(2.0, active) for name, cache in profile_caches(CACHES).items()}
    samples = []
    for _ in range(count):
        sizes = {name: float(round(np.exp(generator.uniform(0, np.log(LARGEST[name]))))) for name in SIZES[primitive]}
        if primitive in ("elementwise", "copy"):
            sizes["rows"] *= 10  # enough of them exceed the caches
        sizes["item_bytes"] = 4.0
        locality = None
        if "sources" in SIZES[primitive]:
            locality = tuple(np.cumsum(generator.dirichlet(np.ones(33)))[:32].tolist())
        found = features(primitive, sizes, locality, share)
        seconds = sum(cost * float(found[name][0]) for name, cost in TRUTH[primitive].items())
        seconds *= float(np.exp(generator.normal(0, noise)))
        samples.append(
            Sample(primitive=primitive, form="test", sizes=sizes, hosts=(0,), ranks=active, active=active, threads=1,
                   seconds=seconds, last_s=seconds, mad_s=0.0, repeats=3, locality=locality)
        )  # fmt: skip
    return samples


@pytest.mark.parametrize("primitive", list(PRIMITIVES))
def test_every_primitive_predicts_sizes_that_it_has_not_seen(primitive: str) -> None:
    caches = profile_caches(CACHES)
    (found,) = fit_curves(machine_samples(primitive, 60, 0.03), caches, 2.0)
    assert found.curve.concurrency == 2
    assert found.fit.median_error < 0.06
    share = {name: cache.bytes_each(2.0, 2) for name, cache in caches.items()}
    for sample in machine_samples(primitive, 30, 0.0, seed=99):
        values = features(primitive, sample.sizes, sample.locality, share)
        predicted = sum(cost * float(values[name][0]) for name, cost in found.curve.costs.items())
        assert predicted == pytest.approx(sample.seconds, rel=0.15)


def test_levels_are_fitted_apart() -> None:
    alone = [s.model_copy(update={"seconds": s.seconds / 2}) for s in machine_samples("copy", 20, 0.0, active=1)]
    curves = fit_curves([*machine_samples("copy", 20, 0.0), *alone], profile_caches(CACHES), 2.0)
    assert [entry.curve.concurrency for entry in curves] == [1, 2]
    assert curves[0].curve.costs["bytes"] == pytest.approx(TRUTH["copy"]["bytes"] / 2, rel=0.05)


def test_ranges_begin_at_no_work_but_at_the_narrowest_row_that_was_measured() -> None:
    samples = machine_samples("spmm", 60, 0.01)
    (found,) = fit_curves(samples, profile_caches(CACHES), 2.0)
    widths = [sample.sizes["width"] for sample in samples]
    assert found.curve.range["width"] == (min(widths), max(widths))
    assert min(widths) > 0
    assert found.curve.range["edges"][0] == 0


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(HardwareError, match="matmul, 2 ranks at once: 3 samples cannot fit"):
        fit_curves(machine_samples("matmul", 3, 0.0), profile_caches(CACHES), 2.0)


def network_samples(ranks: int, loopback: float, floor: float) -> list[Sample]:
    """Messages, exchanges and collectives of a host whose loopback carries ``loopback`` bytes per second in all."""

    def sample(primitive: str, nbytes: float, seconds: float, **sizes: float) -> Sample:
        return Sample(primitive=primitive, form="even", sizes={"bytes": nbytes, **sizes}, hosts=(0,), ranks=ranks,
                      active=ranks, threads=1, seconds=seconds, last_s=seconds, mad_s=seconds / 50,
                      repeats=9)  # fmt: skip

    samples = []
    for power in range(10, 25, 2):
        nbytes = float(2**power)
        total = nbytes * ranks * (ranks - 1)
        samples.append(sample("send", nbytes, 1e-4 + nbytes / 2e9))
        one = nbytes * (ranks - 1)
        samples.append(sample("exchange", nbytes, floor + total / loopback, rank_bytes=one, total_bytes=total))
        samples.append(sample("allreduce", nbytes, 3e-4 + 2 * (ranks - 1) / ranks * nbytes / 1e9))
    samples.append(sample("barrier", 0.0, 2e-4))
    return samples


def test_communication_of_two_group_sizes_comes_back() -> None:
    found = fit_network([*network_samples(2, 3e9, 2e-4), *network_samples(4, 3e9, 6e-4)], 4.0, "gloo")
    assert found.link.bandwidth.value == pytest.approx(3e9, rel=0.05)
    assert found.backend.message.floor.value == pytest.approx(1e-4, rel=0.1)
    for (kind, _), errors in found.errors.items():
        assert (errors.worst is None) is (kind == "barrier"), "a barrier has no sizes to hold out"
        assert errors.worst is None or errors.worst < 0.05


def test_errors_of_communication_are_those_of_sizes_that_the_fit_has_not_seen() -> None:
    samples = network_samples(2, 3e9, 2e-4)
    (place,) = (n for n, s in enumerate(samples) if s.primitive == "allreduce" and s.sizes["bytes"] == 2.0**18)
    slow = samples[place].model_copy(update={"last_s": 2 * samples[place].last_s})
    spoilt = [*samples[:place], slow, *samples[place + 1 :]]
    errors = fit_network(spoilt, 4.0, "gloo").errors["allreduce", 2]
    # a curve through all of them would miss none; without the slow one nobody expects it
    assert errors.worst is not None
    assert errors.worst > 0.4
    (again,) = (entry for entry in fit_network(spoilt, 4.0, "gloo").backend.collectives if entry.kind == "allreduce")
    assert again.residual is not None
    assert again.residual.at(2.0**18) > 2 * again.residual.at(2.0**20)
    few = [s for s in samples if s.primitive != "allreduce" or s.sizes["bytes"] in (2.0**10, 2.0**16, 2.0**24)]
    assert fit_network(few, 4.0, "gloo").errors["allreduce", 2].shown() == ["3", "-", "-"]


def test_a_communication_costs_what_its_last_rank_took() -> None:
    samples = [
        sample.model_copy(update={"seconds": sample.last_s / 3}) if sample.primitive != "send" else sample
        for sample in network_samples(2, 3e9, 2e-4)
    ]
    assert fit_network(samples, 2.0, "gloo") == fit_network(network_samples(2, 3e9, 2e-4), 2.0, "gloo")


def test_ranks_that_take_turns_on_a_core_count_at_their_mean() -> None:
    whole = network_samples(4, 3e9, 6e-4)
    late = [sample.model_copy(update={"last_s": 3 * sample.seconds}) for sample in whole]
    assert fit_network(late, 2.0, "gloo") == fit_network(whole, 2.0, "gloo") == fit_network(whole, 4.0, "gloo")
    assert (
        fit_network(late, 4.0, "gloo").backend.message.floor.value
        > 2 * fit_network(whole, 4.0, "gloo").backend.message.floor.value
    )


def test_a_floor_is_not_the_luckiest_sample() -> None:
    samples = network_samples(2, 3e9, 2e-4)
    (place,) = (n for n, s in enumerate(samples) if s.primitive == "allreduce" and s.sizes["bytes"] == 1024)
    half = samples[place].last_s / 2
    lucky = [*samples[:place], samples[place].model_copy(update={"last_s": half}), *samples[place + 1 :]]
    floors = [
        next(
            entry.hop.value
            for entry in fit_network(found, 2.0, "gloo").backend.collectives
            if entry.kind == "allreduce"
        )
        for found in (samples, lucky)
    ]
    assert floors[1] > 0.7 * floors[0]


def test_a_fitted_profile_prices_what_was_measured(tmp_path: Path) -> None:
    compute = [sample for primitive in PRIMITIVES for sample in machine_samples(primitive, 40, 0.01)]
    common = {"format": "simgnn-samples", "version": 2, "started": "2026-01-02T03:04:05Z", "hosts": HERE,
              "backend": "gloo", "threads": 1, "quick": False}  # fmt: skip
    files = [
        SampleFile(ranks=2, samples=(*compute, *network_samples(2, 3e9, 2e-4)), **common),
        SampleFile(ranks=4, samples=tuple(network_samples(4, 3e9, 6e-4)), **common),
    ]
    path = tmp_path / "machine.toml"
    save_profile(fit_profile(files, date(2026, 1, 2)).profile, path)
    profile = load_profile(path)
    assert profile.meta.name == "host-9box-2026-01-02"
    assert profile.meta.calibrated_ranks == (2, 4)
    machine = Machine.place(profile, [0, 0])
    price = work_seconds(machine, 0, "matmul", {"rows": 2e3, "inner": 64, "outer": 32, "item_bytes": 4})
    assert not price.extrapolated
    assert price.source == "measured"
    assert price.seconds == pytest.approx(2e-5 + 1.5e-11 * 4e3 * 64 * 32 + 8e3 * (1e-10 * 64 + 2e-10 * 32), rel=0.1)
    assert machine.collective("allreduce", "default", 2.0**20, [0, 1]).seconds_alone == pytest.approx(
        3e-4 + 2**20 / 1e9, rel=0.1
    )


def test_samples_of_two_machines_are_not_mixed() -> None:
    common = {"format": "simgnn-samples", "version": 2, "started": "2026-01-02T03:04:05Z", "backend": "gloo",
              "threads": 1, "quick": False, "samples": (), "ranks": 1}  # fmt: skip
    there = (MeasuredHost(ranks=(0,), facts=FACTS.model_copy(update={"host": "elsewhere"})),)
    with pytest.raises(HardwareError, match="two machines"):
        fit_profile([SampleFile(hosts=HERE, **common), SampleFile(hosts=there, **common)], date(2026, 1, 2))
