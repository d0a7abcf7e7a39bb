"""The largest error of each quantity over all cases, told at the end, whichever process carried a case out."""

from collections.abc import Mapping
from typing import Any

import pytest

Place = tuple[str, str, str]
"""Training, model, graph."""
LARGEST = pytest.StashKey[dict[Place, dict[str, float]]]()
HANDED_OVER = "largest errors"


def note(config: pytest.Config, place: Place, found: Mapping[str, float]) -> None:
    """Keep what is larger than anything before."""
    noted = config.stash.setdefault(LARGEST, {}).setdefault(place, {})
    for name, value in found.items():
        noted[name] = max(value, noted.get(name, 0.0))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that shares the work hands over what it noted."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[HANDED_OVER] = list(session.config.stash.get(LARGEST, {}).items())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The one that tells the result takes it; a process that broke down hands over nothing."""
    for place, found in getattr(node, "workeroutput", {}).get(HANDED_OVER, []):
        note(node.config, place, found)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the largest error of each quantity."""
    largest = config.stash.get(LARGEST, {})
    if not largest:
        return
    terminalreporter.section("largest relative errors against one process")
    names = list(next(iter(largest.values())))
    terminalreporter.write_line(f"{'training':14}{'model':6}{'graph':24}" + "".join(f"{name:>17}" for name in names))
    for (training, model, graph), found in sorted(largest.items()):
        values = "".join(f"{found[name]:17.2e}" for name in names)
        terminalreporter.write_line(f"{training:14}{model:6}{graph:24}{values}")
