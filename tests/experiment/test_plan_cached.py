"""Programs with caches: valid for every choice, the memory of the caches, and ops that have a price."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.planner.make_plan import Planned, plan
from simgnn.program.calendar import EVALUATE
from simgnn.program.kinds import OpKind
from simgnn.program.ops import ITEM_BYTES
from simgnn.program.validate import validate
from tests.experiment.needed import needed_dependencies
from tests.experiment.test_master_mirror import statistics as vertex_cut
from tests.experiment.test_planner import statistics as edge_cut

CACHE = ["freshness.kind=adaptive-vertex", "model.hidden=16"]
PAPER = "model.hoist=never"
MIRRORS = ["partition.kind=ebv", "communication.kind=master-mirror"]
SENT_AGAIN = ["communication.rows=transformed"]


def planned(cut: str, ranks: int, *overrides: str) -> Planned:
    if cut == "halo":
        return plan(load_experiment("vanilla", [*CACHE, *overrides]), edge_cut(ranks))
    stats = vertex_cut(ranks)
    tables = {**stats.tables, "shared_masters": np.arange(5, 5 + ranks)}
    return plan(load_experiment("vanilla", [*CACHE, *MIRRORS, *overrides]), replace(stats, tables=tables))


@settings(max_examples=60, deadline=None)
@given(
    cut=st.sampled_from(["halo", "mirrors"]),
    kind=st.sampled_from(["gcn", "sage", "gin", "gat"]),
    ranks=st.integers(1, 4),
    layers=st.integers(1, 3),
    codec=st.sampled_from(["none", "linear", "bfloat16"]),
    freshness=st.sampled_from(["always", "adaptive-vertex"]),
)
def test_every_plan_is_valid(cut, kind, ranks, layers, codec, freshness) -> None:
    values = [f"model.kind={kind}", f"model.layers={layers}", f"codec.kind={codec}", f"freshness.kind={freshness}"]
    values += [] if kind == "gat" else [PAPER]
    try:
        program = validate(planned(cut, ranks, *values).program)
    except ConfigError as error:
        assert (cut, kind) == ("mirrors", "gat"), error  # noqa: PT017
        assert freshness == "adaptive-vertex" or codec == "linear"
        return
    evaluated = {op.kind for op in program.templates[EVALUATE].ops}
    assert not evaluated & {OpKind.SELECT, OpKind.ENCODE, OpKind.DECODE}, "evaluations are exact"
    assert all(op.transfer is None or op.transfer.decision is None for op in program.templates[EVALUATE].ops)


def bytes_of(result: Planned, *kinds: str) -> np.ndarray:
    """Bytes of all buffers whose names begin so, on every rank."""
    program = result.program
    found = np.zeros(program.ranks, dtype=np.int64)
    for name, buffer in program.buffers.items():
        if name.split("/")[0] in kinds:
            assert buffer.persistent, f"{name} is forgotten after a turn"
            found += program.sizes.per_rank(buffer.rows, 0, 0) * buffer.width * ITEM_BYTES[buffer.dtype]
    return found


@pytest.mark.parametrize(("codec", "coded"), [("none", 0), ("linear", 1)])
def test_caches_of_masters_and_mirrors_take_the_memory_of_the_text(codec: str, coded: int) -> None:
    """docs/systems/cdfgnn.md: 4 w (2 s + [codec] sm) a sync point, s shared rows of which sm are masters."""
    result = planned("mirrors", 3, f"codec.kind={codec}", "model.order=transform-first")
    columns = result.program.sizes.columns
    mirrors, masters = columns["mirror_rows"], columns["shared_masters"]
    whole = 2 * (mirrors + masters) + coded * masters
    # nothing is gathered at the top backward, so mirrors keep nothing that was sent there
    expected = 4 * (16 * 2 * whole + 4 * (2 * whole - mirrors))
    assert bytes_of(result, "sent", "kept", "own", "sums", "published").tolist() == expected.tolist()
    assert bytes_of(result, "threshold").tolist() == [24] * 3


@pytest.mark.parametrize("codec", ["none", "linear"])
def test_both_ends_of_a_halo_keep_its_rows(codec: str) -> None:
    result = planned("halo", 3, f"codec.kind={codec}", *SENT_AGAIN)
    columns = result.program.sizes.columns
    both = columns["send_rows"] + columns["halo_rows"]
    assert bytes_of(result, "sent", "kept").tolist() == (4 * 2 * (16 + 4) * both).tolist()
    assert bytes_of(planned("halo", 3, "freshness.kind=always", *SENT_AGAIN), "sent", "kept").tolist() == [0] * 3


def test_statistics_without_shared_masters_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"freshness\.kind: .*expected the table 'shared_masters'"):
        plan(load_experiment("vanilla", [*CACHE, *MIRRORS]), vertex_cut(3))


@pytest.mark.parametrize(("cut", "codec"), [("halo", "linear"), ("mirrors", "none"), ("mirrors", "linear")])
def test_each_derived_dependency_is_needed(cut: str, codec: str) -> None:
    """Caches are read and written in place, by selecting, encoding and decoding: each of these orders is proved."""
    assert needed_dependencies(planned(cut, 2, f"codec.kind={codec}", PAPER).program) > 60
