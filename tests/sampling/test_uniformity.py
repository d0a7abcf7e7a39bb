"""Neighbours are drawn uniformly without replacement. Seeds are fixed, so these tests give one answer for ever."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from sampling_graphs import csr_of, global_sources, hubs
from scipy import stats

from simgnn.sampling.draw.sampler import Sampler
from simgnn.sampling.draw.seeds import batch_seed

LEVEL = 0.001
FANOUT, BATCHES, HUBS = 10, 3000, 24


def counts_of(choices: np.ndarray, degree: int) -> np.ndarray:
    return np.bincount(choices.reshape(-1), minlength=degree)


def p_value(counts: np.ndarray, drawn: int) -> float:
    """Chi-square of neighbours drawn ``drawn`` at a time without replacement: its variance is below the usual one."""
    degree = len(counts)
    expected = counts.sum() / degree
    statistic = ((counts - expected) ** 2 / expected).sum() / (1 - drawn / degree) * (degree - 1) / degree
    return float(stats.chi2.sf(statistic, degree - 1))


@pytest.fixture(scope="module")
def draws() -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Of each hub: its degree, positions drawn at hop 1 and at hop 2, int64 [batches, FANOUT] each."""
    csr = hubs(300, HUBS)
    sampler = Sampler(csr, (FANOUT, FANOUT))
    first, second = [], []
    for number in range(BATCHES):
        batch = sampler.sample(np.arange(HUBS), batch_seed(0, 0, 0, number))
        first.append(global_sources(batch, 1).reshape(HUBS, FANOUT))
        second.append(global_sources(batch, 2)[: HUBS * FANOUT].reshape(HUBS, FANOUT))
    told = []
    for hub in range(HUBS):
        row = csr.indices[csr.indptr[hub] : csr.indptr[hub + 1]]
        both = [np.searchsorted(row, np.stack([each[hub] for each in hop])) for hop in (first, second)]
        told.append((len(row), *both))
    return told


def test_every_neighbour_is_equally_likely(draws) -> None:
    assert len(draws) >= 20
    found = [p_value(counts_of(positions, degree), FANOUT) for degree, *hops in draws for positions in hops]
    assert min(found) > LEVEL
    assert max(found) < 1 - LEVEL / len(found)  # nor are they more even than chance
    assert stats.kstest(found, "uniform").pvalue > LEVEL


def test_the_choices_of_two_hops_are_independent(draws) -> None:
    for degree, first, second in draws:
        common = sum(len(np.intersect1d(*pair)) for pair in zip(first, second, strict=True))
        law = stats.hypergeom(degree, FANOUT, FANOUT)
        deviation = (common - BATCHES * law.mean()) / np.sqrt(BATCHES * law.var())
        assert abs(deviation) < stats.norm.isf(LEVEL / 2 / len(draws))


@pytest.mark.parametrize(("degree", "fanout"), [(6, 3), (7, 6), (5, 1), (70, 1)])
def test_every_subset_is_equally_likely(degree: int, fanout: int) -> None:
    csr = csr_of([list(range(1, degree + 1)), *([] for _ in range(degree))])
    sampler = Sampler(csr, (fanout,))
    drawn = [tuple(global_sources(sampler.sample(np.array([0]), batch_seed(1, 0, 0, k)), 1)) for k in range(4000)]
    subsets = list(itertools.combinations(range(1, degree + 1), fanout))
    place = {subset: k for k, subset in enumerate(subsets)}
    counts = np.bincount([place[tuple(int(u) for u in one)] for one in drawn], minlength=len(subsets))
    assert stats.chisquare(counts).pvalue > LEVEL


@pytest.fixture
def one_thread() -> Iterator[None]:
    """DGL's draws differ with its threads."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_dgl_draws_by_the_same_law() -> None:
    """Two samples, ours and DGL's, of neighbours of the same vertices: one law, and one law of rows in a batch."""
    dgl = pytest.importorskip("dgl", reason="DGL has no wheel for this Python: its sampler is not compared with")
    import torch

    csr, rounds, fanout = hubs(300, HUBS), 150, 10
    targets = np.repeat(np.arange(csr.rows), csr.degrees())
    theirs = dgl.graph((torch.from_numpy(csr.indices.astype(np.int64)), torch.from_numpy(targets)), num_nodes=csr.rows)
    dgl.seed(0)
    sampler = Sampler(csr, (fanout, 5))
    reference = dgl.dataloading.NeighborSampler([5, fanout])  # its last entry is that of the seeds
    ours, other = np.zeros((2, csr.rows, csr.rows), np.int64)
    rows: list[tuple[int, int]] = []
    for number in range(rounds):
        batch = sampler.sample(np.arange(HUBS), batch_seed(2, 0, 0, number))
        np.add.at(ours, (np.repeat(np.arange(HUBS), np.diff(batch.blocks[0].indptr)), global_sources(batch, 1)), 1)
        inputs, _, blocks = reference.sample_blocks(theirs, torch.arange(HUBS))
        sources, seeds = blocks[1].edges()
        np.add.at(other, (seeds.numpy(), blocks[1].srcdata[dgl.NID][sources].numpy()), 1)
        rows.append((len(batch.vertices), len(inputs)))
    for hub in range(HUBS):
        held = csr.indices[csr.indptr[hub] : csr.indptr[hub + 1]]
        # DGL's draws are not ours to fix: a level at which chance alone does not fail anywhere
        assert p_value(ours[hub, held] + other[hub, held], fanout) > 1e-6
        both = np.stack((ours[hub, held], other[hub, held]))
        assert stats.chi2_contingency(both[:, both.sum(axis=0) > 0]).pvalue > 1e-6
        assert ours[hub].sum() == other[hub].sum() == ours[hub, held].sum()
    mean, error = np.mean(rows, axis=0), np.std(rows, axis=0) / np.sqrt(rounds)
    assert abs(mean[0] - mean[1]) < 5 * np.hypot(*error)
