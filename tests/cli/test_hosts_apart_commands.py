"""`partition.inter_machine` from the command line: what is printed, what statistics files say, and refusals."""

import json
from pathlib import Path

import pytest

from simgnn.cli.main import invoke

COMMON = ["vanilla", "--set", "model.hidden=8", "--set", "train.epochs=4"]
GRAPH = ["--set", "graph.vertices=400", "--set", "graph.edges=2500"]
HOSTS = ["--set", "cluster.hosts=2", "--set", "cluster.ranks_per_host=2"]
APART = ["--set", "partition.inter_machine=gradients"]
PROFILE = ["--hardware", "cpu-100gbe-8"]


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    capsys.readouterr()
    assert invoke([*words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("kind", ["metis", "rapa"])
def test_every_command_says_what_each_rank_does_without(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*COMMON, *HOSTS, *APART, "--set", f"partition.kind={kind}", *PROFILE]
    stats = tmp_path / "stats.toml"
    counted = told(["partition", *words, *GRAPH, "--stats", str(stats)], capsys)
    by_rank = counted["dropped"]
    assert [one["rank"] for one in by_rank] == [0, 1, 2, 3]
    assert all(one["edges"] >= one["edges_between_hosts"] > 0 and one["halo_rows"] > 0 for one in by_rank)
    assert counted["outer_sum"] == 0, "no row crosses"
    held = counted["edges"] - sum(one["edges"] for one in by_rank)
    if kind == "rapa":
        ranks = counted["fit"]["ranks"]
        assert sum(one["edges"] for one in ranks) == held
        for one, lost in zip(ranks, by_rank, strict=True):
            assert one["edges_before"] - one["edges"] == one["dropped_edges"]
            assert one["dropped_edges"] == lost["edges"] - lost["edges_between_hosts"]
        costs = [balance["costs"] for balance in counted["balances"]]
        assert costs[0] == [one["cost"] for one in ranks]
        # the partition beside it has no edges between hosts either, so that costs compare
        assert sum(costs[1]) < 2 * sum(one["cost_before"] for one in ranks)
    simulated = told(["simulate", *words, *GRAPH], capsys)
    assert simulated["dropped_edges"]["by_rank"] == [one["edges"] for one in by_rank]
    assert simulated["dropped_edges"]["between_hosts"] == [one["edges_between_hosts"] for one in by_rank]
    source = ["--set", f"graph.source=stats:{stats}"]
    read = told(["simulate", *words, *source], capsys)
    assert read["program_digest"] == simulated["program_digest"]
    assert read["dropped_edges"]["between_hosts"] == simulated["dropped_edges"]["between_hosts"]
    # the file lacks edges that ranks of one host would have
    plain = [*COMMON, "--set", f"partition.kind={kind}", *PROFILE, *source]
    assert invoke(["simulate", *plain, "--set", "cluster.hosts=1", "--set", "cluster.ranks_per_host=4"]) == 2
    assert "cluster.hosts: got ranks on hosts [0, 0, 0, 0]" in " ".join(capsys.readouterr().err.split())


def test_the_table_of_each_rank_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["partition", *COMMON, *GRAPH, *HOSTS, *APART, "--no-alternatives"]) == 0
    assert "of them between hosts" in " ".join(capsys.readouterr().out.split())
    assert invoke(["partition", *COMMON, *GRAPH, *HOSTS, "--no-alternatives"]) == 0
    assert "between hosts dropped" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["cagnet", "--set", "partition.kind=random", *HOSTS], "partition.inter_machine: got 'gradients' with commun"),
        (["distdgl", *HOSTS], "partition.inter_machine: got 'gradients' with batching.kind"),
        (["vanilla", "--ranks", "4"], "partition.inter_machine"),
        (["vanilla", *HOSTS, "--set", "partition.kind=block-row"], "partition.inter_machine"),
        (["vanilla", *HOSTS, "--set", "partition.inter_machine=none"], "partition.inter_machine"),
    ],
)
def test_bad_input_ends_with_status_2(words: list[str], key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["simulate", words[0], *APART, *words[1:], *PROFILE]) == 2
    assert key in " ".join(capsys.readouterr().err.split())
