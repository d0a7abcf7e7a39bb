"""What the tests of commands share."""

from pathlib import Path

import pytest

from tests.executor.forked import forked_ranks

__all__ = ["forked_ranks"]

SMALL = """\
extends = "vanilla"
name = "small"
[graph]
vertices = 400
edges = 2500
classes = 4
feature_width = 16
[model]
hidden = 8
[train]
epochs = 4
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path
