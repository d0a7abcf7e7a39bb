"""The real graphs: counts as their .json state them, features kept in the form that they come in."""

import json

import numpy as np
import pytest

from simgnn.graph.build import is_symmetric
from simgnn.graph.load import load_graph

NAMES = (
    "amazon_computers",
    "coauthor_cs",
    "coauthor_physics",
    "cora",
    "cora_full_structure",
    "minesweeper",
    "ogbn_arxiv",
    "pubmed",
    "tolokers",
)

pytestmark = pytest.mark.realdata


@pytest.mark.parametrize("name", NAMES)
def test_counts(data_dir, name):
    if not (data_dir / f"{name}.npz").is_file():
        pytest.skip(f"{name}.npz is not in {data_dir}")
    stated = json.loads((data_dir / f"{name}.json").read_text())
    graph = load_graph(f"{name}.npz", base=data_dir)
    facts = graph.facts()
    assert (facts.name, facts.vertices, facts.edges) == (name, stated["num_nodes"], stated["num_edges_directed"])
    assert (facts.classes, facts.feature_width) == (stated["num_classes"], stated["num_features"])
    counts = (facts.train_vertices, facts.validation_vertices, facts.test_vertices)
    assert counts == (stated["train"], stated["val"], stated["test"])
    assert int(graph.csr.degrees().max()) == stated["max_degree"]
    assert is_symmetric(graph.csr)
    if stated["features"].startswith("csr"):
        assert facts.feature_nonzeros == stated["feature_nnz"]
    elif stated["features"] == "absent":
        assert graph.features is None
    else:
        assert str(graph.features.dtype) in stated["features"]
    assert graph.synthetic_labels == (name == "cora_full_structure")
    assert not graph.synthetic_features


def test_stand_in_features_of_arxiv(data_dir):
    if not (data_dir / "ogbn_arxiv.npz").is_file():
        pytest.skip(f"ogbn_arxiv.npz is not in {data_dir}")
    graph = load_graph("ogbn_arxiv.npz", base=data_dir, options={"stand_in_features": 128})
    assert graph.synthetic_features
    assert graph.features.shape == (169_343, 128)
    assert graph.features.dtype == np.float32
