"""Every example of docs/graphs.md loads: its Python makes the files, its TOML names them."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from simgnn.experiment.load import load_experiment
from simgnn.graph.graph import Graph
from simgnn.planner.prepare import read_graph

PAGE = Path(__file__).resolve().parents[2] / "docs" / "graphs.md"
BLOCK = re.compile(r"^```(python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATH_INDICES = [1, 0, 2, 1, 3, 2]


def examples() -> Iterator[tuple[str, list[str], list[str]]]:
    """Title, Python blocks and experiments of each section."""
    for section in PAGE.read_text().split("\n## ")[1:]:
        title = section.splitlines()[0]
        code: list[str] = []
        tables: list[str] = []
        for kind, text in BLOCK.findall(section):
            if kind == "python" and tables:
                yield title, code, tables
                code, tables = [], []
            (code if kind == "python" else tables).append(text)
        if tables:
            yield title, code, tables


EXAMPLES = list(examples())


def loaded(code: list[str], tables: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    monkeypatch.chdir(folder)
    for text in code:
        exec(compile(text, str(PAGE), "exec"), {})
    graphs = []
    for table in tables:
        (folder / "mine.toml").write_text(f'extends = "vanilla"\n{table}')
        graphs.append(read_graph(load_experiment(folder / "mine.toml")))
    return graphs


@pytest.mark.parametrize(
    ("code", "tables"), [example[1:] for example in EXAMPLES], ids=[f"{k}-{e[0]}" for k, e in enumerate(EXAMPLES)]
)
def test_every_example_loads(
    code: list[str], tables: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if any("import dgl" in text for text in code):
        pytest.importorskip("dgl", reason="DGL is not installed (it ends at Python 3.11)")
    graphs = loaded(code, tables, tmp_path, monkeypatch)
    for graph in graphs:
        assert graph.labels is not None
        assert graph.features is not None
        assert graph.train_mask is not None
        assert graph.train_mask.any()
        if graph.vertices == 4:  # the same path in every format
            assert graph.csr.indices.tolist() == PATH_INDICES


def test_the_page_shows_every_format(tmp_path: Path) -> None:
    sources = " ".join(line for _, _, tables in EXAMPLES for line in " ".join(tables).split() if '"' in line)
    for suffix in (".csv", ".tsv", ".parquet", ".npy", ".npz", ".mtx", ".pt", ".bin", "synthetic:"):
        assert suffix in sources


def test_names_become_numbers_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (graph,) = loaded(*EXAMPLES[0][1:], tmp_path, monkeypatch)
    assert isinstance(graph.vertex_ids, np.ndarray)
    assert graph.vertex_ids.tolist() == ["ann", "bob", "carl", "dora"]
    assert graph.class_names == ("blue", "red")
