"""The notebook of examples/ runs from its first cell to its last, in a kernel as a user's."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_prediction.ipynb"


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells), "outputs are stripped"
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [_html(cell) for cell in cells]
    assert "vanilla: predicted on 2 ranks" in shown[1]
    assert all(system in shown[4] for system in ("vanilla", "cagnet", "rapidgnn"))
    assert shown[5].count("<tr") == 1 + 10
    assert "payload between ranks: 0 bytes and 0 messages differ" in shown[6]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["vanilla"]


def _html(cell: nbformat.NotebookNode) -> str:
    return "".join(output.data.get("text/html", "") for output in cell.outputs if "data" in output)
