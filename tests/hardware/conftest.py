"""Profiles for tests. Their numbers are invented: nothing here describes a machine that exists."""

import copy
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from numpy.typing import ArrayLike

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.work import Prices, price_work
from simgnn.hardware.profile.profile import Profile, load_profile
from simgnn.hardware.show.describe import Node

DATA = Path(__file__).parent / "data"


class Price(NamedTuple):
    """One of the prices of :class:`simgnn.hardware.price.work.Prices`."""

    seconds: float
    spread: float | None
    extrapolated: bool
    source: str


def price_at(prices: Prices, index: int) -> Price:
    """One of several prices."""
    return Price(float(prices.seconds[index]), prices.spread, bool(prices.extrapolated[index]), prices.source)


def work_seconds(
    machine: Machine, rank: int, primitive: str, sizes: Mapping[str, float], locality: ArrayLike | None = None
) -> Price:
    """Price of one piece of work on a rank's device while all ranks there are at work."""
    level = machine.concurrency(rank), machine.threads_per_rank[rank]
    return price_at(price_work(machine.device(rank), machine.types[rank], primitive, sizes, locality, *level), 0)


def tree_lines(node: Node, depth: int = 0) -> Iterator[tuple[int, str]]:
    """Every line of a tree with its depth."""
    yield depth, node.text
    for child in node.children:
        yield from tree_lines(child, depth + 1)


@pytest.fixture(scope="session")
def cluster() -> Profile:
    """Eight invented CPU hosts."""
    return load_profile(DATA / "invented-8x8.toml")


@pytest.fixture(scope="session")
def server() -> Profile:
    """Two invented hosts with GPUs on two PCIe switches each, and NVLink between some of them."""
    return load_profile(DATA / "invented-server.toml")


@pytest.fixture
def table() -> dict[str, Any]:
    """The table of a small valid profile, to be spoilt."""
    return copy.deepcopy(tomllib.loads((DATA / "invented-server.toml").read_text()))
