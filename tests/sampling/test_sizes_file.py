"""Sizes of batches kept as a file: statistics and it make the program that the graph makes."""

from pathlib import Path

import numpy as np
import pytest

from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.partition.statistics.file import save_stats
from simgnn.planner.prepare import prepare
from simgnn.program.storage import program_digest
from simgnn.sampling.batches.sizes import load_sizes, save_sizes

SMALL = ("graph.vertices=400", "graph.edges=3000", "graph.classes=4", "graph.feature_width=8", "model.hidden=8",
         "batching.batch_size=40", "cluster.hosts=2", "cluster.ranks_per_host=2", "train.epochs=3")  # fmt: skip


@pytest.mark.parametrize(
    ("system", "settings"),
    [
        ("rapidgnn", ()),
        ("rapidgnn", ("placement.pull=delta",)),
        ("rapidgnn", ("placement.hot_scope=run",)),
        ("rapidgnn", ("placement.hot_rows=0", "communication.rows=requested")),
        ("distdgl", ()),
        ("distdgl", ("batching.structure=replicated",)),
        ("distdgl", ("placement.sparse_embedding=4",)),
        ("distdgl", ("batching.structure=replicated", "batching.unsupervised=true")),
    ],
)
def test_what_was_counted_makes_the_same_program(system: str, settings: tuple[str, ...], tmp_path: Path) -> None:
    fanouts = "[4, 4]" if system == "rapidgnn" else "[4, 4, 4]"
    experiment = load_experiment(system, [*SMALL, f"batching.fanouts={fanouts}", *settings])
    prepared = prepare(experiment)
    assert prepared.batches is not None
    assert prepared.partition is not None
    save_stats(prepared.partition.stats, tmp_path / "stats.toml")
    counted = tmp_path / "batches.npz"
    save_sizes(prepared.batches.sizes, prepared.batches.placement.cached_rows, counted)
    elsewhere = experiment.model_copy(
        update={"graph": type(experiment.graph)(source=f"stats:{tmp_path / 'stats.toml'}")}
    )
    again = prepare(elsewhere, counted=counted)
    assert program_digest(again.planned.program) == program_digest(prepared.planned.program)
    assert again.planned.resolved == prepared.planned.resolved
    assert again.estimated == ()
    assert again.stats.tables.keys() == prepared.stats.tables.keys()
    for name, table in again.stats.tables.items():
        assert np.array_equal(table, prepared.stats.tables[name]), name
    longer = elsewhere.model_copy(update={"train": elsewhere.train.model_copy(update={"epochs": 4})})
    with pytest.raises(ConfigError, match="of 4 ranks in 3 epochs, expected 4 and 4"):
        prepare(longer, counted=counted)


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batches.npz"
    np.savez(path, rows=np.zeros(3))
    with pytest.raises(ConfigError, match="not a readable file of the sizes of a run's batches"):
        load_sizes(path)
    with pytest.raises(ConfigError, match=r"none\.npz: cannot be read"):
        load_sizes(tmp_path / "none.npz")
