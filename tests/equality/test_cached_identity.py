"""Settings in which caches of halo rows and RAPA change nothing: ``capgnn`` as it is shipped, with three queues and
inputs resent, learns what one process learns, and what ``vanilla`` learns on the same edges to the last bit (capgnn.md,
13.1 and 13.2). The reference is full-graph DGL in one process (``tests.reference``).

The default run has a dozen of the 256 cases, drawn by ``SEED``; ``pytest -m "slow or not slow"`` has all."""

import random
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest

from executor.state.plan import RunPlan
from simgnn.emit.halo_cache.routes import CACHED, IN_HOST
from simgnn.program.storage import program_digest
from tests.equality.conftest import Bench
from tests.equality.test_dropped_halo import rapa
from tests.equality.test_identity_settings import (
    LIMITS,
    MODELS,
    case,
    check_one_process,
    check_same_bits,
    layers_of,
    marked,
)
from tests.executor.runs import prepared_run, small_graph

pytest.importorskip("dgl", reason="the reference is made of DGL's layers (Python below 3.12)")

SEED, DRAWN = 25, 12
BOTH_LEVELS = ("placement.device_rows=0.4", "placement.host_rows=0.5")
EMPTY = ("placement.device_rows=0", "placement.host_rows=0")
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "interval 1": ("freshness.refresh_interval=1", *BOTH_LEVELS),
    "empty caches": ("freshness.refresh_interval=4", *EMPTY),
    "layer 1 alone": ("freshness.refresh_interval=4", *BOTH_LEVELS, "freshness.layers=[1]"),
    "RAPA drops nothing": ("freshness.refresh_interval=4", *EMPTY),
}
CUTS = {"metis": ("partition.balance=['vertices']",), "random": ()}
GRID = tuple(product(SETTINGS, MODELS, CUTS, (1, 2, 3, 4), LIMITS))
NAMES = ["-".join(map(str, one)) for one in GRID]


def partition_of(setting: str, cut: str, ranks: int) -> tuple[str, ...]:
    """The same parts, made by RAPA on equal devices where it is to drop nothing."""
    if setting != "RAPA drops nothing":
        return CUTS[cut]
    return tuple(rapa(*[1.0] * ranks, base=cut, eps_rel=1.0))


def model_of(setting: str, model: str, dtype: str) -> tuple[str, ...]:
    """Layers (GIN's sums of sums of sums make losses too steep for its rate), and what travels in layer 1: input
    features, which are sent again in every epoch, or transformed rows."""
    layers = "model.layers=2" if model == "gin" else layers_of(model, dtype)
    if model in ("sage", "gat") and setting != "layer 1 alone":
        return (layers, "model.order=auto", "communication.rows=transformed", "communication.resend_inputs=false")
    return (layers,)


@pytest.mark.parametrize(
    ("setting", "model", "cut", "ranks", "dtype"), marked(GRID, *random.Random(SEED).sample(NAMES, DRAWN))
)
def test_capgnn_that_changes_nothing(
    bench: Bench, setting: str, model: str, cut: str, ranks: int, dtype: str
) -> None:  # fmt: skip
    common = model_of(setting, model, dtype)
    ours = case("capgnn", model, cut, ranks, dtype, *common, *SETTINGS[setting], *partition_of(setting, cut, ranks))
    finished = bench.run(ours)
    routes, dropped = finished.plan.program.sizes.routes, finished.plan.artifact.partition.dropped
    if setting == "RAPA drops nothing":
        assert dropped is not None
        assert len(dropped.rank) == 0
    # what changes nothing is there all the same
    assert (CACHED in routes) == (setting in ("interval 1", "layer 1 alone") and ranks > 1)
    assert (IN_HOST in routes) == (CACHED in routes)
    check_same_bits(finished, bench.run(case("vanilla", model, cut, ranks, dtype, *common, *CUTS[cut])))
    check_one_process(bench, ours, dtype)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("nothing", ["freshness.refresh_interval=1", "placement.device_rows=0"])
def test_without_a_row_that_is_used_again_the_program_is_that_of_exact_rows(
    model: str, nothing: str, tmp_path: Path
) -> None:  # fmt: skip
    common = (*case("vanilla", model, "random", 3, "float64").settings(), "communication.resend_inputs=true")
    caching = ("freshness.kind=refresh-interval", "placement.device_rows=0.5", nothing)
    digests = [
        program_digest(RunPlan.open(prepared_run(small_graph(), tmp_path / name, 3, *common, *more)).program)
        for name, more in (("exact", ()), ("cached", caching))
    ]
    assert digests[0] == digests[1]
