"""Cases of a validation suite: each combines one level of every axis into one experiment."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from simgnn.errors import ConfigError
from simgnn.experiment.load import stated_in, system_names, system_path
from simgnn.experiment.schema import Experiment
from simgnn.experiment.slots import SLOTS
from simgnn.spelling import nearest
from simgnn.tomlfile import Table, deep_merge, inherited

Axis = Literal["graph", "partition", "ranks", "topology", "experiment"]
AXES: tuple[Axis, ...] = ("graph", "partition", "ranks", "topology", "experiment")
DATA = "$SIMGNN_DATA/"
"""Prefix of paths in suites that stands for the folder of real graphs, which differs between machines."""


@dataclass(frozen=True, order=True)
class Case:
    """One case of a suite: names of graph, partition, topology and experiment, and the number of ranks."""

    graph: str
    partition: str
    ranks: int
    topology: str
    experiment: str

    @property
    def name(self) -> str:
        """The name of the case in messages, and of its folders."""
        return f"{self.graph}-{self.partition}-P{self.ranks}-{self.topology}-{self.experiment}"

    def level(self, axis: Axis) -> str:
        """Return the name of the case's level on an axis."""
        return str(getattr(self, axis))

    def levels(self) -> tuple[str, ...]:
        """Return the names of the case's levels in the order of ``AXES``."""
        return tuple(self.level(axis) for axis in AXES)

    def without(self, axes: Sequence[Axis]) -> tuple[str, ...]:
        """Return the names of the case's levels on all axes other than ``axes``."""
        return tuple(self.level(axis) for axis in AXES if axis not in axes)


def case_experiment(extends: str, settings: Sequence[Table], hardware: str | None = None) -> Experiment:
    """Build an experiment: ``settings`` on top of the shipped system ``extends``. Raises :class:`ConfigError`."""
    path = system_path(extends)
    if path is None:
        known = system_names()
        raise ConfigError(
            f"extends: got '{extends}', expected a shipped system: {', '.join(known)}{nearest(extends, known)}"
        )
    layers = [layer.table for layer in inherited(path, system_path, system_names())]
    own: list[Table] = [] if hardware is None else [{"hardware": {"profile": hardware}}]
    table: Table = reduce(lambda below, above: deep_merge(below, above, SLOTS), [*layers, *settings, *own], {})
    return Experiment.from_table(table, stated=stated_in(settings))


def with_data_folder(experiment: Experiment) -> Experiment:
    """Replace ``$SIMGNN_DATA/`` in a graph source. Raises :class:`ConfigError` if the graph is missing."""
    source = experiment.graph.source
    if not source.startswith(DATA):
        return experiment
    folder = os.environ.get("SIMGNN_DATA", "")
    if not os.path.isdir(folder):
        raise ConfigError(
            f"graph.source: got '{source}', and SIMGNN_DATA is {f'{folder!r}, not a folder' if folder else 'not set'}; "
            "set it to the folder of the real graphs"
        )
    found = os.path.join(os.path.abspath(folder), source.removeprefix(DATA))
    if not os.path.exists(found):
        raise ConfigError(f"graph.source: got '{source}', but {found} does not exist; put it there, or set SIMGNN_DATA")
    return experiment.model_copy(update={"graph": experiment.graph.model_copy(update={"source": found})})
