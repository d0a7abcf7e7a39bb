"""Figures of ablations: facts are read with their faults, halo rows listed, and steps predicted and scored."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simgnn.api.backend import CommandBackend
from simgnn.cli.tables.console import Reporter
from simgnn.errors import ConfigError
from simgnn.partition.folder import write_npz
from simgnn.partition.statistics.file import load_stats
from simgnn.report.validation import print_published
from simgnn.study.published.facts import changes
from simgnn.study.published.graph import Variation, divide, halo_matrix, listed_statistics, statistics, variations
from simgnn.study.published.score import PublishedBoard, score_published
from simgnn.study.published.suite import PublishedSuite
from simgnn.tomlfile import write_toml

RANKS, WIDTHS = 4, (600, 256, 4)
DATASET = {
    "names": ["web"], "vertices": 40_000, "edges": 800_000, "features": WIDTHS[0], "classes": WIDTHS[2],
    "train_share": 0.5, "halo": {"4": 1.2}, "assumed": "invented",
}  # fmt: skip
HALO_ROWS = {
    "ranks": RANKS,
    "shares": [0.5, 1.0],
    "of": [
        {"graph": "dense", "degree": 25.0, "halo": 1.0, "cut": 0.4, "sharing": 1.5, "edges": [0.2, 1.0]},
        {"graph": "sparse", "degree": 4.0, "halo": 0.5, "cut": 0.2, "sharing": 1.1, "edges": [0.4, 1.0]},
    ],
    "assumed": "invented",
}
TABLE = {
    "label": "plain", "file": "made-up.csv", "select": {"system": ["plain"]}, "dataset": "graph", "model": "model",
    "time": "seconds", "ranks": "gpus", "layers": 2, "models": {"GCN": "gcn"}, "profile": "mixed-pcie3-8",
    "set": {"model": {"hidden": WIDTHS[1], "order": "aggregate-first"},
            "communication": {"kind": "halo", "rows": "input", "resend_inputs": True}},
}  # fmt: skip
CACHES = {
    "partition": {"kind": "metis"},
    "freshness": {"kind": "refresh-interval", "refresh_interval": 200, "grad": "always"},
    "schedule": {"kind": "bsp"},
}
PRUNES = {
    "partition": {"kind": "rapa"},
    "freshness": {"kind": "always"},
    "placement": {"device_rows": 0, "host_rows": 0},
    "schedule": {"kind": "bsp"},
}
ABLATION = {
    "label": "steps", "file": "facts.csv", "paper": "Ours", "section": "5.10", "like": "plain", "ranks": RANKS,
    "layers": 2, "models": ["GCN"], "quantities": {"comm time": "communication", "total time": "epoch"},
    "assumed": "invented", "apart": "steps",
    "steps": {"Plain": {"assumed": "the table's"},
              "+Cache": {"extends": "capgnn", "set": CACHES, "assumed": "invented"},
              "+Prune": {"extends": "capgnn", "set": PRUNES, "assumed": "invented"}},
}  # fmt: skip
HEAD = "paper,section,quantity,value,unit\n"
FACTS = """\
Ours,5.10,partitions,4,partitions
Ours,5.10,"web GCN comm time, Plain to +Cache",20.0 to 5.0,s per 200 epochs
Theirs,5.10,"web GCN comm time, Plain to +Cache",1 to 2,s per 200 epochs
Ours,5.10,"web GCN comm time, Plain to +Prune",20.0 to 10.0,s per 200 epochs
Ours,5.10,"web GCN total time, +Cache",15,s per 100 epochs
"""


def suite(**changed: object) -> PublishedSuite:
    table = {
        "kind": "published", "name": "made-up", "description": "invented numbers", "vary": 0.2,
        "bars": {"median_factor": 1e9, "tau": -1.0}, "datasets": [DATASET], "tables": [TABLE],
        "apart": {"steps": {"median_factor": 1e9, "median_ratio": 1e9}}, "halo_rows": HALO_ROWS,
        "balance": {"edges": {"4": 1.4}, "halo": {"4": 1.2}, "assumed": "invented"}, "ablations": [ABLATION],
    }  # fmt: skip
    return PublishedSuite.model_validate({**table, **changed})


def facts_file(folder: Path, facts: str = FACTS) -> Path:
    (folder / "facts.csv").write_text(HEAD + facts)
    return folder / "facts.csv"


def scored(folder: Path, facts: str = FACTS, **changed: object) -> PublishedBoard:
    facts_file(folder, facts)
    (folder / "made-up.csv").write_text("system,graph,model,gpus,seconds,status\nplain,web,GCN,4,0.1,ok\n")
    return score_published(suite(vary=0.0, **changed), folder, CommandBackend(Reporter(quiet=True)))


def test_facts_of_a_section_are_read_in_their_order(tmp_path: Path) -> None:
    found = changes(suite().ablations[0], facts_file(tmp_path))
    assert [(one.before and one.before.of, one.after.of) for one in found] == [
        (("web", "GCN", "communication", "Plain"), ("web", "GCN", "communication", "+Cache")),
        (("web", "GCN", "communication", "Plain"), ("web", "GCN", "communication", "+Prune")),
        (None, ("web", "GCN", "epoch", "+Cache")),
    ]
    assert [(one.after.seconds, one.after.epochs, one.after.text) for one in found] == [
        (5.0, 200, "5.0"), (10.0, 200, "10.0"), (15.0, 100, "15"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fact", "told"),
    [
        ('"web GAT comm time, Plain",1', "the model 'GAT', expected one of GCN"),
        ('"web GCN wait time, Plain",1', "the time 'wait time', expected one of comm time, total time"),
        ('"web GCN comm time, Plain to +Caches",1 to 2', "the step '+Caches', expected one of Plain, +Cache, +Prune"),
        ('"web GCN comm time, Plain to +Cache",20.0', "got '20.0', expected a number for each of Plain, +Cache"),
        ('"web GCN comm time, Plain",1 to 2', "got '1 to 2', expected a number for each of Plain"),
        ('"web GCN comm time, Plain",nan', "got 'nan', expected seconds above zero"),
        ('"web GCN comm time, Plain",-3', "got '-3', expected seconds above zero"),
        ('"web GCN comm time, Plain",', "got '', expected seconds above zero"),
        ("web GCN,1", "got 'web GCN', expected 'GRAPH MODEL WHAT, STEP to STEP'"),
        ('"web GCN comm time, Plain",21.0', "got 21.0 s of Plain, expected 20.0 s as in line 3"),
    ],
)
def test_facts_that_say_something_else_are_refused(fact: str, told: str, tmp_path: Path) -> None:
    path = facts_file(tmp_path, f"{FACTS}Ours,5.10,{fact},s per 200 epochs\n")
    with pytest.raises(ConfigError) as caught:
        changes(suite().ablations[0], path)
    (problem,) = caught.value.problems
    assert problem.startswith(f"published: {path}, line 7: ")
    assert told in problem


def test_files_without_such_facts_are_refused(tmp_path: Path) -> None:
    ablation = suite().ablations[0]
    for facts, told in (("Ours,5.9,a,1,s per 2 epochs\n", "no figure of Ours, section 5.10"), ("", "no figure of")):
        with pytest.raises(ConfigError, match=told):
            changes(ablation, facts_file(tmp_path, facts))
    (tmp_path / "facts.csv").write_text("paper,section,value\n")
    with pytest.raises(ConfigError, match="no column quantity, unit"):
        changes(ablation, tmp_path / "facts.csv")
    with pytest.raises(ConfigError, match="cannot be read"):
        changes(ablation, tmp_path / "nowhere.csv")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"ablations": [{**ABLATION, "like": "plane"}]}, "got 'plane', expected the label of a table"),
        ({"ablations": [{**ABLATION, "models": ["SAGE"]}]}, "got SAGE, expected models of 'plain': GCN"),
        ({"ablations": [{**ABLATION, "assumed": " "}]}, "assumed"),
        ({"ablations": []}, "apart: got bars for steps and tables in no group"),
        ({"halo_rows": {**HALO_ROWS, "shares": [0.5, 0.9]}}, "increasing numbers that end with 1.0"),
        ({"halo_rows": {**HALO_ROWS, "of": [{**HALO_ROWS["of"][0], "edges": [0.9, 0.8]}]}}, "none falling"),  # type: ignore[index]
    ],
)
def test_ablations_without_sense_are_refused(changed: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        suite(**changed)


@pytest.mark.parametrize("change", [Variation(), Variation(halo=0.8, cut=1.2), Variation(edges=1.2, balance=0.8)])
def test_listed_halo_rows_add_up_to_the_totals_of_ranks(change: Variation, tmp_path: Path) -> None:
    of = suite()
    dataset = of.datasets[0]
    division, told = divide(of, dataset, RANKS, change), statistics(of, dataset, "web", RANKS, change)
    arrays = listed_statistics(of, dataset, RANKS, change, told["partition"])
    write_npz(tmp_path / "graph.npz", arrays)
    write_toml(tmp_path / "graph.toml", {**told, "partition": {"arrays": "graph.npz"}})
    stats = load_stats(tmp_path / "graph.toml")  # which checks all tables
    assert stats.rows.tolist() == division.rows.tolist()
    assert stats.edges.tolist() == division.edges.tolist()
    assert stats.halo_rows().tolist() == division.halo.tolist()
    tables = stats.tables
    assert tables["halo_row_edges"].min() >= 1
    assert tables["cut_edges"] == pytest.approx(0.4 * change.cut * division.edges, abs=1)
    assert tables["halo_row_edges"].sum() == tables["cut_edges"].sum()
    vertices = tables["halo_vertices"]
    assert len(vertices) / len(np.unique(vertices)) == pytest.approx(1.5, rel=0.08)
    start = 0
    for rank, rows in enumerate(stats.halo_rows().tolist()):
        order, edges = (tables[name][start : start + rows] for name in ("halo_row_order", "halo_row_edges"))
        first = edges[order < rows // 2].sum() - rows // 2
        assert first / (edges.sum() - rows) == pytest.approx(0.2, abs=0.001), rank
        start += rows


def test_halo_rows_are_of_the_graph_that_is_nearest_in_degree() -> None:
    counted = suite().halo_rows
    assert counted is not None
    assert [counted.like(degree, RANKS).graph for degree in (2.0, 9.9, 10.1, 400.0)] == ["sparse"] * 2 + ["dense"] * 2
    with pytest.raises(ConfigError, match=r"halo_rows\.ranks: got 4, but a table needs 3"):
        counted.like(4.0, 3)
    of = suite(halo_rows=None)
    with pytest.raises(ConfigError, match="halo_rows: missing"):
        listed_statistics(of, of.datasets[0], RANKS, Variation(), {})


def test_halo_rows_by_totals_come_from_all_owners_alike() -> None:
    of = suite()
    matrix = halo_matrix(divide(of, of.datasets[0], RANKS, Variation()))
    assert np.diag(matrix).tolist() == [0] * RANKS
    assert matrix.sum(axis=0).tolist() == divide(of, of.datasets[0], RANKS, Variation()).halo.tolist()
    assert (matrix + 10**6 * np.eye(RANKS, dtype=np.int64)).min(axis=0) == pytest.approx(matrix.max(axis=0), abs=1)


def test_listing_halo_rows_changes_no_prediction_of_the_same_system(tmp_path: Path) -> None:
    listing = {**ABLATION["steps"], "+Cache": {"extends": "vanilla", "assumed": "invented"}}  # type: ignore[dict-item]
    board = scored(tmp_path, ablations=[{**ABLATION, "steps": listing}])
    plain, same = board.apart[0].rows[:2]
    assert same.predicted_ratio == pytest.approx(1.0, rel=1e-6)
    assert plain.predicted_s == board.rows[0].predicted_communication_s
    whole = board.apart[0].rows[3]
    assert whole.predicted_s == pytest.approx(board.rows[0].predicted_s, rel=1e-6), "epochs, not communication"


def test_cached_rows_spare_the_ways_that_they_do_not_take(tmp_path: Path) -> None:
    board = scored(tmp_path)
    (steps,) = board.apart
    rows = {(row.label, row.timed): row for row in steps.rows}
    assert list(rows) == [
        ("steps: Plain", "communication"), ("steps: +Cache", "communication"), ("steps: +Prune", "communication"),
        ("steps: +Cache", "epoch"),
    ]  # fmt: skip
    cached = rows["steps: +Cache", "communication"]
    assert cached.predicted_ratio is not None
    inputs, hidden, _ = WIDTHS  # forward both, backward the hidden rows' gradients, which travel in every epoch
    least = hidden / (inputs + 2 * hidden)
    assert least <= cached.predicted_ratio <= least + 0.05, "ranks wait for the slowest one as before"
    assert cached.ratio_factor == pytest.approx(4 * cached.predicted_ratio)
    pruned = rows["steps: +Prune", "communication"]
    assert pruned.predicted_ratio is not None
    assert pruned.predicted_ratio < 1.0, "a rank has 1.4 times the edges of the mean"
    alone = rows["steps: +Cache", "epoch"]
    assert (alone.published_s, alone.published_ratio) == (pytest.approx(0.15), None)
    assert alone.predicted_communication_s == cached.predicted_s


def test_figures_have_bars_of_their_own_and_leave_other_scores_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bars = {"steps": {"median_factor": 1e9, "median_ratio": 1.0}}
    board, alone = scored(tmp_path, apart=bars), scored(tmp_path, apart={}, ablations=[])
    assert replace(board, apart=(), assumptions=()) == replace(alone, assumptions=())
    (steps,) = board.apart
    assert steps.bars == {"median_factor": True, "median_ratio": False, "wrong_verdicts": True}
    assert steps.ratio_rows == 2
    factors = [max(row.ratio_factor, 1 / row.ratio_factor) for row in steps.rows if row.ratio_factor]
    assert steps.ratio_factor == pytest.approx(np.mean(factors))
    print_published(board)
    told = capsys.readouterr().out
    assert "median_factor holds, median_ratio FAILS" in told
    assert f"median factor either way {steps.ratio_factor:.2f} over 2 rows" in told
    assert "assumed: steps, +Cache: invented; runs as capgnn; set: partition.kind = 'metis'" in told
    assert "assumed: halo rows, one by one: invented" in told


def test_the_share_of_cut_edges_is_varied_where_halo_rows_are_listed() -> None:
    of = suite()
    plain = of.tables[0]
    step = of.ablations[0].table(plain, "+Prune", "communication", 200)
    names = {table.label: {one.cut for one in variations(of, table, "gcn", RANKS, False)} for table in (plain, step)}
    assert names == {"plain": {1.0}, "steps: +Prune": {0.8, 1.0, 1.2}}
