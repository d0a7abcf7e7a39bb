"""Which halo rows an epoch uses: the same on both ends, others in each epoch, unbiased; and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from executor.kernels.edges import kept as kernels
from executor.kernels.edges.aggregation import TorchAggregation
from executor.layers.kept import KeptHalo
from executor.layers.local import LocalAdjacency, add_halo, aggregate, sum_own
from simgnn.cli.main import invoke
from simgnn.experiment.load import load_experiment
from simgnn.graph.csr import CSR
from simgnn.planner.make_plan import plan
from simgnn.planner.prepare import KEPT_EDGES, full_graph_stats
from simgnn.policies.freshness.boundary_sampling import BoundarySampling
from simgnn.record.result import read_result
from tests.executor.runs import small_graph
from tests.sampled_reference import count_of, sample

OWNERS, HOLDERS = np.array([0, 0, 1, 2, 2]), np.array([1, 2, 0, 0, 1])
ROWS = np.array([7, 1, 40, 0, 13])
PAIRS = list(zip(OWNERS.tolist(), HOLDERS.tolist(), ROWS.tolist(), strict=True))


@pytest.mark.parametrize("sampling", ["fixed", "bernoulli"])
@pytest.mark.parametrize("p", [0.0, 0.07, 0.5, 1.0])
def test_both_ends_draw_the_same_rows_pair_by_pair(p: float, sampling: str) -> None:
    policy = BoundarySampling(p=p, sampling=sampling)
    begins = np.cumsum(ROWS) - ROWS
    for epoch in range(3):
        whole = policy.drawn(5, epoch, OWNERS, HOLDERS, ROWS)
        expected = [sample(5, epoch, owner, holder, rows, p, sampling) for owner, holder, rows in PAIRS]
        assert whole.counts.tolist() == [len(rows) for rows in expected]
        assert whole.places.tolist() == [
            begin + row for begin, rows in zip(begins, expected, strict=True) for row in rows
        ]
        for chosen in (OWNERS == 0, HOLDERS == 0):  # what one rank sends, and what it receives
            part = policy.drawn(5, epoch, OWNERS[chosen], HOLDERS[chosen], ROWS[chosen])
            assert part.counts.tolist() == whole.counts[chosen].tolist()


def test_a_sample_has_the_rounded_share_and_one_row_at_least() -> None:
    rows = np.arange(200)
    for p in (0.0, 0.1, 0.25, 0.5, 1.0):
        found = BoundarySampling(p=p).fixed_counts(rows)
        assert found is not None
        assert found.tolist() == [count_of(p, int(count)) for count in rows]
    assert count_of(0.1, 5) == 1
    assert count_of(0.5, 5) == 3
    assert count_of(0.25, 10) == 3


def test_epochs_draw_different_rows() -> None:
    policy, drawn = BoundarySampling(p=0.5), []
    one = np.array([1])
    for epoch in range(30):
        drawn.append(tuple(policy.drawn(0, epoch, 0 * one, one, 40 * one).places.tolist()))
    assert len(set(drawn)) == 30
    other = policy.drawn(1, 0, 0 * one, one, 40 * one).places.tolist()
    back = policy.drawn(0, 0, one, 0 * one, 40 * one).places.tolist()
    assert len({drawn[0], tuple(other), tuple(back)}) == 3


@pytest.mark.parametrize("sampling", ["fixed", "bernoulli"])
def test_rows_and_pairs_of_rows_are_drawn_alike(sampling: str) -> None:
    draws, rows, one = 10_000, 9, np.array([1])
    policy, used = BoundarySampling(p=0.4, sampling=sampling), np.zeros((draws, rows))
    for epoch in range(draws):
        used[epoch, policy.drawn(3, epoch, 0 * one, one, rows * one).places] = 1
    share = 4 / 9 if sampling == "fixed" else 0.4
    both = 4 * 3 / (9 * 8) if sampling == "fixed" else 0.16
    assert np.abs(used.mean(0) - share).max() < 5 * (share * (1 - share) / draws) ** 0.5
    together = (used.T @ used / draws)[~np.eye(rows, dtype=bool)]
    assert np.abs(together - both).max() < 5 * (both * (1 - both) / draws) ** 0.5


@pytest.mark.parametrize(("scaling", "sampling"), [("gcn", "fixed"), ("mean", "fixed"), ("sum", "bernoulli")])
def test_sums_of_layer_1_are_unbiased(scaling: str, sampling: str) -> None:
    draw = np.random.default_rng(1)
    rows, halo, width, draws = 12, 14, 2, 10_000
    sources = [np.unique(draw.integers(0, rows + halo, draw.integers(1, 12))) for _ in range(rows)]
    pointers = np.concatenate(([0], np.cumsum([len(each) for each in sources]))).astype(np.int64)
    csr = CSR(pointers, np.concatenate(sources).astype(np.int32), rows + halo)
    adjacency = LocalAdjacency(csr, draw.integers(1, 30, rows + halo), dtype=torch.float64)
    own, others = (torch.from_numpy(draw.standard_normal((n, width))) for n in (rows, halo))
    exact, begun = aggregate(adjacency, own, others, scaling), sum_own(adjacency, own, scaling)

    def sums(kept: NDArray[np.int64], factors: NDArray[np.float64]) -> torch.Tensor:
        rows = others[kept] * torch.from_numpy(factors)[:, None]
        return add_halo(KeptHalo(adjacency, torch.from_numpy(kept), False), rows, begun, scaling)

    # what each halo row adds to all sums, of which an epoch has those of drawn rows times their factor
    none = sums(np.arange(0), np.ones(0))
    parts = torch.stack([sums(np.array([row]), np.ones(1)) - none for row in range(halo)])
    policy, of, used = BoundarySampling(p=0.3, sampling=sampling), np.array([9, 5]), np.zeros((draws, halo))
    for epoch in range(draws):
        drawn = policy.drawn(0, epoch, np.array([1, 2]), np.array([0, 0]), of)
        factors = np.repeat(policy.factors(of, drawn.counts), drawn.counts)
        used[epoch, drawn.places] = factors
        if epoch < 5:
            weighed = none + torch.einsum("h,hnf->nf", torch.from_numpy(used[epoch]), parts)
            torch.testing.assert_close(sums(drawn.places, factors), weighed, rtol=1e-12, atol=1e-12)
    found = none + torch.einsum("eh,hnf->enf", torch.from_numpy(used), parts)
    error = found.std(0) / draws**0.5
    assert bool(((found.mean(0) - exact).abs() <= 5 * error + 1e-12).all())


def _random_adjacency(rows: int, halo: int, weighted: bool) -> LocalAdjacency:
    draw = np.random.default_rng(2)
    sources = [np.unique(draw.integers(0, rows + halo, draw.integers(0, 12))) for _ in range(rows)]
    pointers = np.concatenate(([0], np.cumsum([len(each) for each in sources]))).astype(np.int64)
    weights = draw.random(int(pointers[-1])) if weighted else None
    csr = CSR(pointers, np.concatenate(sources).astype(np.int32), rows + halo, weights)
    degree, sums = draw.integers(1, 30, rows + halo), draw.random(rows + halo) + 1 if weighted else None
    return LocalAdjacency(csr, degree, dtype=torch.float64, weighted_degree=sums)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("attends", [False, True])
def test_kept_edges_are_the_same_by_torch_and_by_our_kernel(attends: bool, weighted: bool) -> None:
    rows, halo = 50, 31
    adjacency = _random_adjacency(rows, halo, weighted)
    kept = torch.from_numpy(np.flatnonzero(np.random.default_rng(3).random(halo) < 0.4))
    first = 0 if attends else rows
    place = torch.full((halo,), -1, dtype=torch.int32)
    place[kept] = torch.arange(first, first + len(kept), dtype=torch.int32)
    ours = kernels.kept_edges(adjacency.structure, adjacency.transpose, kept, first)
    others = (
        kernels._select_anywhere(adjacency.structure, place, first + len(kept)),
        kernels._pick_anywhere(adjacency.transpose, rows + kept),
    )
    for one, other in zip(ours, others, strict=True):
        assert torch.equal(one.indptr, other.indptr)
        assert torch.equal(one.indices.long(), other.indices.long())
        assert (one.weights is None) == (not weighted)
        assert one.weights is None or torch.equal(one.weights, other.weights)  # type: ignore[arg-type]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scaling", ["gcn", "mean", "sum"])
def test_sums_over_kept_edges_are_the_same_by_torch_and_by_our_kernel(
    scaling: str, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, halo, width = 50, 31, 3
    adjacency, draw = _random_adjacency(rows, halo, weighted), np.random.default_rng(4)
    kept = torch.from_numpy(np.flatnonzero(draw.random(halo) < 0.4))
    own, others, gradient = (torch.from_numpy(draw.standard_normal((n, width))) for n in (rows, len(kept), rows))
    sums = KeptHalo(adjacency, kept, False).aggregation(scaling)
    ours = sums.add_halo(adjacency.aggregation(scaling).sum_own(own), others)
    _, of_halo = sums.backward(gradient, False, True)
    by_torch = TorchAggregation(adjacency.structure, adjacency.transpose, adjacency.scaling(scaling))
    monkeypatch.setattr(kernels, "compiled_for", lambda rows: False)
    torch.testing.assert_close(sums.add_halo(by_torch.sum_own(own), others), ours, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sums.backward(gradient, False, True)[1], of_halo, rtol=1e-12, atol=1e-12)


BAD = {
    "p over 1": (["freshness.p=1.5"], "freshness.p"),
    "p below 0": (["freshness.p=-0.1"], "freshness.p"),
    "p no number": (["freshness.p=often"], "freshness.p"),
    "another way to sample": (["freshness.sampling=poisson"], "freshness.sampling"),
    "vertex-cut": (["partition.kind=ebv", "communication.kind=master-mirror"], "communication.kind"),
    "blocks": (["partition.kind=block-row", "communication.kind=block-broadcast"], "freshness.kind"),
    "mini-batches": (
        ["communication.kind=store", "batching.kind=sampled", "placement.kind=store", "schedule.kind=prefetch"],
        "freshness.kind",
    ),
    "kept inputs that are not exchanged": (
        ["freshness.cache_features=true", "communication.rows=transformed"], "freshness.cache_features",
    ),
    "resent inputs": (["communication.resend_inputs=true"], "communication.resend_inputs"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_means_nothing_is_refused(case: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings, key = BAD[case]
    out = tmp_path / "out"
    words = [word for setting in settings for word in ("--set", setting)]
    assert invoke(["simulate", "bnsgcn", "--ranks", "2", *words, "--out", str(out)]) == 2
    assert key in capsys.readouterr().err
    assert not out.exists()


def test_a_refusal_of_resent_inputs_says_that_drawn_ones_travel(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["simulate", "bnsgcn", "--ranks", "2", "--set", "communication.resend_inputs=true"]) == 2
    message = capsys.readouterr().err
    assert "each epoch sends those rows that it draws" in message
    assert "sent once" not in message, "input rows of layer 1 are sent in every epoch"


def test_a_layer_of_the_users_own_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own_layer.py").write_text(
        "import torch\n\n\nclass Own(torch.nn.Module):\n"
        "    def __init__(self, width_in, width_out):\n        super().__init__()\n"
        "    def forward(self, csr, rows):\n        return csr.sum(rows)\n"
    )
    (tmp_path / "own.toml").write_text('extends = "bnsgcn"\n[model]\nkind = "own_layer:Own"\n')
    assert invoke(["simulate", str(tmp_path / "own.toml"), "--ranks", "2"]) == 2
    assert "freshness.kind: got 'boundary-sampling'" in capsys.readouterr().err


COMMUNITIES = [
    word
    for setting in (
        "graph.source=synthetic:communities", "graph.vertices=400", "graph.edges=3000", "graph.classes=5",
        "graph.feature_width=16", "model.hidden=8", "train.epochs=4", "partition.kind=random",
    )
    for word in ("--set", setting)
]  # fmt: skip


def test_a_prediction_says_what_it_estimates_and_what_an_evaluation_costs(tmp_path: Path) -> None:
    file, results = tmp_path / "statistics.toml", {}
    assert invoke(["partition", "bnsgcn", *COMMUNITIES, "--ranks", "2", "--stats", str(file)]) == 0
    for name, source in (("counted", []), ("expected", ["--set", f"graph.source=stats:{file}"])):
        command = ["simulate", "bnsgcn", *(COMMUNITIES if not source else [*COMMUNITIES[10:], *source])]
        assert invoke([*command, "--ranks", "2", "--out", str(tmp_path / name)]) == 0
        results[name] = read_result(tmp_path / name / "result.json")
    counted, expected = results.values()
    assert KEPT_EDGES in expected.extrapolated
    assert KEPT_EDGES not in counted.extrapolated
    assert counted.bytes_sent == expected.bytes_sent
    for result in (counted, expected):
        assert result.evaluation is not None
        assert result.evaluation.evaluate_s > 0
        assert result.evaluation.drain_s is None


def test_all_faults_are_reported_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    faults = ["freshness.p=1.5", "freshness.sampling=poisson", "train.learning_rate=-1.0"]
    assert invoke(["simulate", "bnsgcn", *(part for fault in faults for part in ("--set", fault))]) == 2
    message = capsys.readouterr().err
    assert all(fault.partition("=")[0] in message for fault in faults)


def test_from_statistics_kept_edges_are_expected_and_said_to_be(tmp_path: Path) -> None:
    from simgnn.partition.store import partition_artifact

    experiment = load_experiment("bnsgcn", ["partition.kind=random", "train.epochs=200", "freshness.p=0.3"])
    experiment = experiment.with_cluster(1, 4)
    artifact = partition_artifact(small_graph(), experiment.partition, np.zeros(4, np.int64), 0, tmp_path)
    counted = plan(experiment, full_graph_stats(experiment, artifact)).program.sizes
    expected = plan(experiment, artifact.stats).program.sizes
    assert counted.columns["drawn/edges"].shape == (4, 200, 1)
    assert expected.columns["drawn/edges"].shape == (4,)
    mean = counted.columns["drawn/edges"].mean(axis=(1, 2))
    np.testing.assert_allclose(expected.columns["drawn/edges"], mean, rtol=0.03)
    for name in ("halo/drawn", "halo/drawn/reverse"):
        assert counted.routes[name].rows.tolist() == expected.routes[name].rows.tolist()
