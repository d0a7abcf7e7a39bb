"""What may be installed: pinned here, and open enough for machines that bring a torch of their own."""

import tomllib

import pytest
from packaging.requirements import Requirement

from tests.conftest import REPOSITORY


def requirements(lines: list[str], python: str) -> dict[str, Requirement]:
    """The requirements that hold on a version of Python, by name."""
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    holds = {"python_version": python, "python_full_version": f"{python}.0"}
    return {each.name: each for each in found if each.marker is None or each.marker.evaluate(holds)}


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_torch_is_pinned_on_every_python_and_dgl_where_it_exists(python: str) -> None:
    pinned = requirements((REPOSITORY / "constraints.txt").read_text().splitlines(), python)
    assert str(pinned["torch"].specifier) == "==2.13.0"
    assert ("dgl" in pinned) == (python == "3.11")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    wanted = requirements(project["dependencies"], python)
    assert ("dgl" in wanted) == (python == "3.11")
    for version in ("2.13.0", "2.11.0", "2.11.0+cu130"):
        assert wanted["torch"].specifier.contains(version)
