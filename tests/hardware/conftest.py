"""Profiles for tests. Their numbers are invented: nothing here describes a machine that exists."""

import copy
import tomllib
from pathlib import Path
from typing import Any

import pytest

from simgnn.hardware.profile.profile import Profile, load_profile

DATA = Path(__file__).parent / "data"


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
