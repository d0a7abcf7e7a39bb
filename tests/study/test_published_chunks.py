"""Published rows of systems that train chunk by chunk: sizes of chunks from a graph that is here, order by table."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from simgnn.errors import ConfigError
from simgnn.partition.chunks.tables import volumes_of
from simgnn.partition.statistics.file import load_stats
from simgnn.study.published.chunks import ChunksLike, Replicated, chunk_totals
from simgnn.study.published.graph import Variation, statistics, variations
from simgnn.study.published.score import wrong_pairs
from simgnn.study.published.suite import PublishedSuite, load_published
from simgnn.study.validate.suite_file import find_suite
from simgnn.tomlfile import write_toml

LIKE = ChunksLike.model_validate(
    {
        "assumed": "invented",
        "of": [
            {"graph": "near", "ranks": 4, "chunks": 8, "rho": 1.5, "phi": 0.9, "psi": 0.8},
            {"graph": "far", "ranks": 4, "chunks": 8, "rho": 6.0, "phi": 0.8, "psi": 0.3},
            {"graph": "finer", "ranks": 4, "chunks": 32, "rho": 3.0, "phi": 0.9, "psi": 0.5},
        ],
    }
)


def test_shares_are_those_of_the_graph_that_needs_nearest_as_many_rows() -> None:
    assert LIKE.like(4, Replicated(chunks=8, rho=2.9)).graph == "near", "by ratio: 3 is the middle of 1.5 and 6"
    assert LIKE.like(4, Replicated(chunks=8, rho=3.1)).graph == "far"
    assert LIKE.like(4, Replicated(chunks=32, rho=1.0)).graph == "finer", "of as many chunks alone"
    with pytest.raises(ConfigError, match="16 chunks on each of 4 ranks"):
        LIKE.like(4, Replicated(chunks=16, rho=2.0))
    with pytest.raises(ConfigError, match="chunks: missing"):
        chunk_totals(None, 4, Replicated(chunks=8, rho=2.0), 1.3, 1.0)


def test_one_chunk_needs_the_rows_that_ranks_hold() -> None:
    for stated in (None, Replicated(chunks=1, rho=9.0)):
        totals = chunk_totals(None, 4, stated, 1.25, 0.8)
        assert totals == {"chunks": 1, "rho": 1.25, "phi": 0.8, "psi": 0.8}


def test_varied_shares_stay_between_their_bounds() -> None:
    stated = Replicated(chunks=8, rho=6.0)
    plain, more, less = (chunk_totals(LIKE, 4, stated, 1.3, sharing) for sharing in (1.0, 9.0, 0.01))
    assert plain == {"chunks": 8, "rho": 6.0, "phi": 0.8, "psi": 0.3}
    assert more["psi"] == 0.8, "no more rows cross than those of batches"
    assert less["psi"] == pytest.approx(1 / 6.0), "every row crosses once"


def suite_of(table: dict[str, object]) -> PublishedSuite:
    dataset = {
        "names": ["small"], "vertices": 100_000, "edges": 900_000, "features": 64, "classes": 4, "train_share": 0.5,
        "halo": {"4": 0.3}, "chunks": {"4": {"chunks": 8, "rho": 1.6}}, "assumed": "invented",
    }  # fmt: skip
    plain = {
        "file": "made-up.csv", "select": {}, "dataset": "graph", "model": "model", "time": "seconds", "ranks": 4,
        "layers": 2, "models": {"GCN": "gcn"}, "profile": "a100-nvlink-4", "label": "plain",
    }  # fmt: skip
    return PublishedSuite.model_validate(
        {
            "kind": "published", "name": "made-up", "description": "invented", "vary": 0.2,
            "bars": {"median_factor": 1.5}, "chunks": LIKE.model_dump(), "datasets": [dataset],
            "tables": [{**plain, **table}],
        }
    )  # fmt: skip


def test_statistics_of_chunks_are_those_of_the_totals(tmp_path: Path) -> None:
    suite = suite_of({"chunked": {"assumed": "invented"}})
    told = statistics(suite, suite.datasets[0], "small", 4, Variation(), chunked=True)
    path = tmp_path / "stats.toml"
    write_toml(path, told)
    stats = load_stats(path)
    volumes = volumes_of(stats.tables)
    assert volumes.v_ori == pytest.approx(160_000, abs=64)
    assert volumes.v_p2p == pytest.approx(0.9 * 160_000, abs=64)
    assert volumes.v_ru == pytest.approx(0.8 * 160_000, abs=64)
    assert stats.tables["chunks/rows"].shape == (4, 8)


def test_rows_that_cross_are_varied_and_assumptions_are_listed() -> None:
    chunked, plain = suite_of({"chunked": {"assumed": "as printed"}}), suite_of({})
    changed = {change.sharing for change in variations(chunked, chunked.tables[0], "gcn", 4, False)}
    assert changed == {1.0, 0.8, 1.2}
    assert {change.sharing for change in variations(plain, plain.tables[0], "gcn", 4, False)} == {1.0}
    assert any("plain, chunks: as printed" in line for line in chunked.assumptions())
    assert any("rows that chunks share: invented" in line for line in chunked.assumptions())


def test_pairs_in_the_wrong_order_are_counted_for_each_table() -> None:
    measured, predicted = np.array([1.0, 2.0, 3.0, 1.0, 2.0]), np.array([2.0, 1.0, 0.5, 1.0, 3.0])
    tables = ["one", "one", "one", "other", "other"]
    assert wrong_pairs(predicted, measured, np.zeros(5), tables) == {"one": 3, "other": 0}
    assert wrong_pairs(predicted, measured, np.full(5, 9.0), tables) == {"one": 0, "other": 0}, "all within noise"


def test_a_bar_of_pairs_is_a_whole_number() -> None:
    suite = suite_of({})
    bars = suite.bars.model_dump()
    with pytest.raises(ValidationError, match="wrong_pairs"):
        type(suite.bars).model_validate({**bars, "wrong_pairs": -1})


def test_graphs_of_the_shipped_suite_have_counted_likenesses() -> None:
    suite = load_published(find_suite("published"))
    assert suite.chunks is not None
    for dataset in suite.datasets:
        for ranks, stated in dataset.chunks.items():
            whole = 1 + dataset.halo[ranks]
            totals = chunk_totals(suite.chunks, int(ranks), stated, whole, 1.0)
            like = suite.chunks.like(int(ranks), stated)
            assert (totals["phi"], totals["psi"]) == (like.phi, like.psi), "no bound changes what was counted"
