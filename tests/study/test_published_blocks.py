"""Published results of systems that divide a graph into blocks of rows: sizes, settings, libraries, scored apart."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simgnn.api.backend import CommandBackend
from simgnn.cli.tables.console import Reporter
from simgnn.errors import ConfigError, HardwareError
from simgnn.report.validation import print_published
from simgnn.study.published.graph import Variation, divide, statistics, variations
from simgnn.study.published.score import PublishedBoard, score_published
from simgnn.study.published.suite import PublishedSuite

GRAPH = {"vertices": 10_001, "edges": 300_007, "features": 512, "classes": 4, "train_share": 0.5, "assumed": "invented"}
SMALL = {**GRAPH, "names": ["small"], "halo": {"2": 0.5}}
TABLE = {
    "file": "made-up.csv",
    "select": {"system": ["plain"]},
    "dataset": "graph",
    "model": "model",
    "time": "seconds",
    "ranks": "gpus",
    "layers": 3,
    "models": {"GCN": "gcn"},
    "profile": "mixed-pcie3-8",
    "label": "plain",
}
BROADCAST = {
    **TABLE,
    "select": {"system": ["broadcast"]},
    "label": "broadcast",
    "extends": "cagnet",
    "backend": "nccl",
    "blocks": {"assumed": "invented"},
    "apart": "blocks",
    "set": {"model": {"hidden": 256, "order": "aggregate-first"}, "partition": {"permutation": "identity"}},
}
ONCE = {
    **BROADCAST,
    "select": {"system": ["once"]},
    "label": "once",
    "extends": "sancus",
    "set": {
        "model": {"hidden": 256, "order": "aggregate-first", "hoist": "never"},
        "partition": {"permutation": "identity"},
        "communication": {"resend_inputs": False},
        "freshness": {"rule": "epoch-fixed", "bound_epochs": 0},
        "train": {"clip_norm": 0.0},
    },
}
ROWS = """\
system,graph,model,gpus,seconds,status
plain,small,GCN,1,0.03,ok
plain,small,GCN,2,0.05,ok
broadcast,small,GCN,2,0.02,ok
broadcast,small,GCN,4,0.03,ok
once,small,GCN,2,0.01,ok
"""
LINK_BYTES_PER_S = 4.45e9
"""Of PCIe on the server, by one message."""


def suite(**changes: object) -> PublishedSuite:
    table = {
        "kind": "published",
        "name": "made-up",
        "description": "invented numbers",
        "vary": 0.2,
        "bars": {"median_factor": 1e9, "tau": -1.0},
        "apart": {"blocks": {"median_factor": 1.0}},
        "datasets": [SMALL],
        "tables": [TABLE, BROADCAST, ONCE],
    }
    return PublishedSuite.model_validate({**table, **changes})


def scored(folder: Path, rows: str = ROWS, **changes: object) -> PublishedBoard:
    (folder / "made-up.csv").write_text(rows)
    return score_published(suite(**changes), folder, CommandBackend(Reporter(quiet=True)))


def test_equal_blocks_hold_all_edges_and_all_rows_reach_every_rank() -> None:
    dataset = suite().datasets[0]
    for ranks in (1, 2, 3, 4):
        for change in (Variation(), Variation(edges=1.2), Variation(edges=0.8)):
            found = divide(suite(), dataset, ranks, change, blocks=True)
            edges = np.array(found.given["tables"]["block_edges"])
            assert found.rows.sum() == dataset.vertices
            assert found.rows.max() - found.rows.min() <= 1
            assert edges.sum() == found.edges.sum() == round(dataset.edges * change.edges)
            assert found.edges.tolist() == edges.sum(axis=1).tolist()
            mean = dataset.edges * change.edges / ranks**2
            assert edges == pytest.approx(np.full((ranks, ranks), mean), rel=1e-3)
            assert (found.rows + found.halo).tolist() == [dataset.vertices] * ranks
    counted = [[100_000, 70_000], [80_000, 50_007]]
    told = suite(datasets=[{**SMALL, "blocks": {"2": counted}}]).datasets[0]
    assert divide(suite(), told, 2, Variation(), blocks=True).given["tables"]["block_edges"] == counted
    assert divide(suite(), told, 2, Variation()).halo.sum() == round(0.5 * dataset.vertices), "METIS as before"


def test_the_sum_over_a_block_finds_its_rows_among_that_block() -> None:
    reuse = {
        "shares": [0.25, 0.5, 1.0],
        "of": [{"graph": "alike", "degree": 30.0, "hits": [0.1, 0.5, 1.0]}],
        "assumed": "invented",
    }
    of = suite(reuse=reuse)
    tables = statistics(of, of.datasets[0], "small", 4, Variation(), blocks=True)["partition"]["tables"]
    assert tables["locality/forward"] == tables["locality/backward"]
    forward = np.array(tables["locality/forward"])
    again = 1 - 4 * GRAPH["vertices"] / GRAPH["edges"]  # every rank reads every row of every block first once
    assert forward[:, -1] == pytest.approx(again, abs=1e-3)
    at = np.log2(0.5 * GRAPH["vertices"] / 4)  # half of a block, not of the graph
    assert np.interp(at, np.arange(forward.shape[1]), forward[0]) == pytest.approx(0.5 * again, abs=0.05)
    names = {name for change in variations(of, of.tables[1], "gcn", 4, False) for name in ("halo", "balance", "reuse")
             if getattr(change, name) != 1.0}  # fmt: skip
    assert names == {"reuse"}, "all blocks arrive whole, and are equal"


def test_tables_apart_leave_the_score_as_it_was_and_have_their_own_bars(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = scored(tmp_path, tables=[TABLE], apart={})
    board = scored(tmp_path)
    assert replace(board, apart=(), assumptions=()) == replace(alone, assumptions=())
    (apart,) = board.apart
    assert [(row.label, row.ranks) for row in apart.rows] == [("broadcast", 2), ("broadcast", 4), ("once", 2)]
    assert apart.bars == {"median_factor": False, "wrong_verdicts": True}
    assert (alone.holds, apart.holds, board.holds) == (True, False, False)
    assert board.as_dict()["apart"][0]["suite"] == "blocks"
    print_published(board)
    told = capsys.readouterr().out
    assert "bars: median_factor FAILS, wrong_verdicts holds" in told
    assert "assumed: broadcast, blocks of rows: invented" in told
    assert "assumed: once: runs as sancus" in told
    assert "assumed: once: communicates by nccl" in told


def test_blocks_that_travel_once_spare_their_broadcasts_and_no_sum(tmp_path: Path) -> None:
    board = scored(tmp_path, "".join(row for row in ROWS.splitlines(True) if ",4," not in row))
    rows = {(row.label, row.ranks): row.predicted_s for row in board.apart[0].rows}
    twice, once = rows["broadcast", 2], rows["once", 2]
    assert twice is not None
    assert once is not None
    spared = GRAPH["vertices"] * GRAPH["features"] * 4 / LINK_BYTES_PER_S  # both blocks, one after the other
    calls = 2 * 38e-6  # floors and hops of two broadcasts
    assert twice - once == pytest.approx(spared + calls, rel=0.01), "the sum over cached blocks is hidden by nothing"
    sent = GRAPH["vertices"] * (256 + 256 + 4 + 256 + 256) * 4 / LINK_BYTES_PER_S
    assert once > sent


def test_the_library_that_a_table_names_carries_its_broadcasts(tmp_path: Path) -> None:
    few = "system", "plain,small,GCN,1", "broadcast,small,GCN,2"
    rows = "".join(row for row in ROWS.splitlines(True) if row.startswith(few))

    def told(backend: str | None) -> float | None:
        found = scored(tmp_path, rows, tables=[TABLE, {**BROADCAST, "backend": backend}])
        return found.apart[0].rows[0].predicted_s

    nccl, gloo, usual = told("nccl"), told("gloo"), told(None)
    assert nccl is not None
    assert gloo is not None
    assert gloo == usual
    assert gloo > 1.5 * nccl
    with pytest.raises(HardwareError, match=r"backends\.nccl: .* does not describe this library; it has: gloo"):
        scored(tmp_path, tables=[TABLE, {**BROADCAST, "profile": "p100-10gbe-4x2"}])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"apart": {}}, r"apart: got bars for no group and tables in blocks; .*correct blocks"),
        (
            {"apart": {"blocks": {"median_factor": 1.5}, "others": {"median_factor": 1.5}}},
            r"apart: got bars for blocks, others and tables in blocks; .*correct others",
        ),
        ({"tables": [BROADCAST]}, r"tables\.apart: every table is in a group"),
        ({"tables": [{**TABLE, "blocks": {"assumed": " "}}], "apart": {}}, "blocks.assumed"),
        ({"datasets": [{**SMALL, "blocks": {"2": [[1, 2, 3], [4, 5, 6]]}}]}, r"blocks\.2: expected 2 lists of 2"),
        ({"datasets": [{**SMALL, "blocks": {"3": [[1, 2], [4, 5]]}}]}, r"blocks\.3: expected 3 lists of 3"),
        ({"datasets": [{**SMALL, "blocks": {"2": [[1, 2], [4, 5]]}}]}, r"blocks\.2: add up to 12, expected 300007"),
    ],
)
def test_groups_and_blocks_that_do_not_add_up_are_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        suite(**change)


def test_printed_communication_is_scored_beside_the_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, *lines = ROWS.splitlines()
    told = [f"{head},sending", *(f"{line},0.004" for line in lines if line.startswith("plain"))]
    table = {**TABLE, "communication": "sending"}
    board = scored(tmp_path, "\n".join(told), tables=[table], apart={})
    alone, two = board.rows
    assert alone.predicted_communication_s == alone.communication_factor == 0.0
    assert two.predicted_communication_s is not None
    assert two.predicted_s is not None
    assert two.communication_factor is not None
    assert 0 < two.predicted_communication_s < two.predicted_s
    assert two.communication_factor == pytest.approx(two.predicted_communication_s / 0.004)
    assert board.communication_rows == 1, "one GPU sends nothing, of which no factor can be told"
    assert board.communication_factor == max(two.communication_factor, 1 / two.communication_factor)
    print_published(board)
    assert "of printed communication alone" in capsys.readouterr().out
    bad = "\n".join([*told, "plain,small,GCN,2,0.05,ok,none"])
    with pytest.raises(ConfigError, match="line 4: sending: got 'none', expected seconds above zero"):
        scored(tmp_path, bad, tables=[table], apart={})
    without = scored(tmp_path, tables=[TABLE], apart={})
    assert (without.communication_factor, without.communication_rows) == (None, 0)
