"""The solver that chooses the bits of messages, against an exact integer program."""

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from simgnn.emit.bit_widths.solver import Groups, Links, choose_bits

BITS = (2, 4, 8)


def instance(seed: int, links: int, groups: tuple[int, int]) -> Groups:
    """Groups of a random exchange, and links of random speed: messages of the same bytes differ by up to four times."""
    draw = np.random.default_rng(seed)
    counts = draw.integers(*groups, links)
    link = np.repeat(np.arange(links), counts)
    width, size = int(draw.integers(3, 300)), int(draw.integers(1, 200))
    rows = np.full(len(link), size)
    rows[np.cumsum(counts) - 1] = draw.integers(1, size + 1, links)  # the last group of a message is smaller
    beta = rows * width / 6 * draw.lognormal(0, draw.uniform(0.2, 3), len(link))
    speeds = Links(draw.uniform(1, 4, links) * 1e-9, draw.uniform(0, 1, links) * 1e-4)
    return Groups(beta, rows, link, speeds, BITS, [8 + -(-width * bits // 8) for bits in BITS])


def least_objective(groups: Groups, weight: float) -> float:
    """What no choice can be below, within 0.2 % of the least objective: the bound that an integer program proves. It
    has a variable for each group and number of bits, and the time."""
    count, levels, links = len(groups.beta), len(BITS), len(groups.links.byte_s)
    variance, slowest = groups.bounds
    cost = np.concatenate(
        [weight * (groups.beta[:, None] * groups.shares / variance).ravel(), [(1 - weight) / slowest]]
    )
    one = sparse.hstack([sparse.kron(sparse.eye(count), np.ones((1, levels))), sparse.csr_array((count, 1))])
    nbytes = (groups.rows[:, None] * np.asarray(groups.row_bytes)).ravel()
    time = sparse.lil_array((links, count * levels + 1))
    for column, (link, byte) in enumerate(zip(np.repeat(groups.link, levels), nbytes, strict=True)):
        time[link, column] = groups.links.byte_s[link] * byte * 1e6  # in microseconds, as solvers' tolerances need
    time[:, -1] = -1e6
    used = np.bincount(groups.link, minlength=links) > 0
    limits = np.where(used, -groups.links.message_s * 1e6, np.inf)
    found = milp(
        cost,
        constraints=[LinearConstraint(one, 1, 1), LinearConstraint(sparse.csr_array(time), -np.inf, limits)],
        integrality=np.append(np.ones(count * levels), 0),
        bounds=Bounds(0, np.append(np.ones(count * levels), np.inf)),
        options={"mip_rel_gap": 2e-3},
    )
    assert found.success, found.message
    return float(found.mip_dual_bound)


def objective(groups: Groups, bits: np.ndarray, weight: float) -> float:
    return groups.objective(np.searchsorted(BITS, bits), weight)


def check(seed: int, links: int, groups: tuple[int, int]) -> float:
    """Check one instance; returns by which share its objective may be above the least one."""
    case, weight = instance(seed, links, groups), float(np.random.default_rng(seed).choice([0.1, 0.5, 0.9]))
    found = objective(case, choose_bits(case, weight), weight)
    for bits in BITS:
        assert found <= objective(case, np.full(len(case.beta), bits), weight)
    return found / least_objective(case, weight) - 1


@pytest.mark.parametrize("seed", range(4))
def test_it_is_near_the_exact_optimum(seed: int) -> None:
    assert -1e-6 <= check(seed, 3, (50, 60)) <= 0.02


@pytest.mark.slow
def test_it_is_near_the_exact_optimum_in_100_instances() -> None:
    above = [check(seed, 2 + seed % 5, (50, 70)) for seed in range(100, 200)]
    print(f"objective above the exact optimum: at most {max(above):.2e}, on average {np.mean(above):.2e}")
    assert min(above) >= -1e-6  # the tolerance of the integer program
    assert max(above) <= 0.02


@pytest.mark.parametrize("seed", range(30))
def test_it_is_never_worse_than_equal_bits_for_all(seed: int) -> None:
    case = instance(seed, 1 + seed % 4, (1, 4))  # of so few groups a message the method may miss a lot
    for weight in (0.0, 0.3, 0.5, 1.0):
        found = objective(case, choose_bits(case, weight), weight)
        assert all(found <= objective(case, np.full(len(case.beta), bits), weight) for bits in BITS)


def test_it_is_deterministic() -> None:
    case = instance(7, 12, (5, 30))
    assert choose_bits(case, 0.5).tolist() == choose_bits(instance(7, 12, (5, 30)), 0.5).tolist()


def test_the_ends_of_the_weight() -> None:
    case = instance(3, 4, (10, 20))
    assert set(choose_bits(case, 1.0).tolist()) == {8}
    fewest = case.slowest_s(np.zeros(len(case.beta), dtype=np.int64))
    assert case.slowest_s(np.searchsorted(BITS, choose_bits(case, 0.0))) == fewest


def test_rows_without_variance_get_the_fewest_bits() -> None:
    case = instance(5, 3, (10, 20))
    constant = Groups(np.where(np.arange(len(case.beta)) % 2, case.beta, 0), *list(vars(case).values())[1:6])
    assert set(choose_bits(constant, 0.9)[::2].tolist()) == {2}
    nothing = Groups(0 * case.beta, *list(vars(case).values())[1:6])
    assert set(choose_bits(nothing, 0.5).tolist()) == {2}


def test_no_groups_need_no_bits() -> None:
    empty = np.empty(0, dtype=np.int64)
    case = Groups(empty.astype(float), empty, empty, Links(np.ones(1), np.ones(1)), BITS, (10, 12, 16))
    assert choose_bits(case, 0.5).tolist() == []


def test_links_without_messages_do_not_count() -> None:
    case = instance(11, 3, (10, 20))
    slow = Links(np.append(case.links.byte_s, 1.0), np.append(case.links.message_s, 100.0))
    more = Groups(case.beta, case.rows, case.link, slow, BITS, case.row_bytes)
    assert choose_bits(more, 0.5).tolist() == choose_bits(case, 0.5).tolist()
