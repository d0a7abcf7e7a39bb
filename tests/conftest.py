"""Shared fixtures: where the real graphs lie, an artefact cache of the test run alone; the turns of tests."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.turns import turn

REPOSITORY = Path(__file__).resolve().parent.parent
pytest_plugins = ("tests.equality.largest",)  # here, since the process that tells the result reads no other conftest
if "PYTEST_XDIST_WORKER" in os.environ:
    # threads of several processes that spin while they wait for one another made tests 1.5 to 2.6 times as long
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# else DGL writes its choice into the home folder when it is imported, and two processes may do so at once
os.environ.setdefault("DGLBACKEND", "pytorch")
settings.register_profile("no deadline", deadline=None)  # examples are no slower for being beside other tests
settings.load_profile("no deadline")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Where processes share the tests (pytest-xdist), one that is marked ``alone`` has the machine to itself."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    # each process has a temporary folder of its own in that of the run
    with turn(Path(item.config.getoption("basetemp")).parent, item.get_closest_marker("alone") is not None):
        return (yield)


LONGEST = (
    "study/test_ground_truth.py", "executor/memory/test_memory_peak.py", "equality/test_cached_hosts.py",
    "executor/testbed/test_testbed_runs.py", "equality/test_conservation.py", "equality/test_skipped_blocks.py",
    "equality/test_cached_replicas.py", "equality/test_vertex_cut.py", "executor/testbed/test_testbed_holds.py",
    "executor/testbed/test_testbed.py", "executor/test_faults.py", "executor/test_launch.py",
    "executor/memory/test_warmup.py", "executor/minibatch/test_mini_batches.py", "extension/test_toys.py",
    "cli/test_run.py", "api/test_notebook.py", "study/test_published.py", "tools/test_fit_nccl_measured.py",
)  # fmt: skip
"""Files that take 15 s or more."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where processes share the tests, they begin with the longest files, so that all end at about the same time."""
    if hasattr(config, "workerinput"):
        places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """What was imported and collected lasts to the end: no later collection of cycles looks at it."""
    gc.freeze()


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
