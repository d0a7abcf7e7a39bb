"""Profiles for tests. Their numbers are invented: nothing here describes a machine that exists."""

import copy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simgnn.hardware.profile.profile import Profile, load_profile
from simgnn.hardware.show.describe import Node

DATA = Path(__file__).parent / "data"


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
