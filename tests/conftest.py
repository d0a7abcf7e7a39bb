"""Shared fixtures: where the real graphs lie, and an artefact cache that belongs to the test run alone."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of real graphs (``SIMGNN_DATA``, default ../shared/data); skips with a reason when it is absent."""
    path = Path(os.environ.get("SIMGNN_DATA", REPOSITORY.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"real graphs not found at {path}: set SIMGNN_DATA to the folder that holds them")
    return path


@pytest.fixture(scope="session", autouse=True)
def artefact_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Partitions and shards of tests go to a folder of their own, never to the user's cache."""
    previous = os.environ.get("SIMGNN_CACHE")
    path = tmp_path_factory.mktemp("simgnn-cache")
    os.environ["SIMGNN_CACHE"] = str(path)
    yield path
    if previous is None:
        del os.environ["SIMGNN_CACHE"]
    else:
        os.environ["SIMGNN_CACHE"] = previous
