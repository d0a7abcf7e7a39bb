"""Loads a checked :class:`Experiment` from a file or a shipped system's name, with overrides."""

import math
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.experiment.slots import SLOTS, Stated, kinds_in
from simgnn.outside import expanded
from simgnn.registry import add_to_path
from simgnn.spelling import nearest
from simgnn.tomlfile import Layer, Table, deep_merge, inherited, leaves, nested, parse_override

PATHS = (
    *(("graph", key) for key in ("source", "root", "features", "labels", "splits")),
    ("batching", "storage"),
    ("hardware", "profile"),
)
"""Section and key of each path in an experiment."""


def system_names() -> tuple[str, ...]:
    """Return the names of the shipped systems, sorted."""
    return tuple(sorted(path.stem for path in _systems().glob("*.toml")))


def system_path(name: str) -> Path | None:
    """Return the file of a shipped system, or None."""
    path = _systems() / f"{name}.toml"
    return path if path.parent == _systems() and path.is_file() else None


def load_experiment(
    argument: str | Path | Experiment,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    ranks: int | None = None,
    epochs: int | None = None,
    hardware: str | None = None,
    trains: bool = True,
) -> Experiment:
    """Read an experiment, a TOML file or the name of a shipped system, and apply ``overrides``: texts such as
    "train.epochs=20", or values by key (``{"train.epochs": 20}``). Of an experiment that is loaded already, options
    that an override leaves without effect go back to their defaults.

    ``ranks`` is the total number of ranks, on the hosts of ``overrides``, else of the experiment; ``trains`` as in
    :meth:`Experiment.from_table`. Relative paths in a file (graph, profile) are relative to that file; those of
    overrides to the working directory. Raises :class:`ConfigError` with all faults at once."""
    if isinstance(argument, Experiment):
        below = [Layer("the loaded experiment", Path.cwd(), argument.to_table())]
        over = own = _overriding(overrides, ranks, epochs, hardware, below)
        if not over:
            return argument
    else:
        below = inherited(_locate(argument), system_path, system_names())
        over = _overriding(overrides, ranks, epochs, hardware, below)
        own = [layer for layer in below if system_path(Path(layer.label).stem) != Path(layer.label)] + over
    layers, table = below + over, Table()
    for layer in layers:
        table = deep_merge(table, _absolute_paths(layer), SLOTS)
    if any(":" in str(kind) for kind in kinds_in(table).values()):
        for layer in reversed(own):
            add_to_path(str(layer.folder))  # a policy of the user's own lies beside the file that names it
    return Experiment.from_table(table, _origin(layers), trains, stated_in([layer.table for layer in own]))


def stated_in(tables: Sequence[Table]) -> Stated:
    """Return a function that checks whether any of ``tables`` (a user's, not a shipped system's) holds a key path."""
    known = {path for table in tables for path, _ in leaves(table)}
    return lambda path: path in known


def _systems() -> Path:
    return Path(str(resources.files("simgnn.experiment"))) / "systems"


def _locate(argument: str | Path) -> Path:
    text = str(argument)
    path = expanded(text)
    if path.is_file():
        return path
    system = system_path(text)
    if system is not None:
        return system
    known = system_names()
    systems = f"the name of a shipped system ({', '.join(known)})"
    if not path.exists() and (path.suffix == ".toml" or path.name != text):
        raise ConfigError(
            f"EXPERIMENT: got '{text}', but {path.absolute()} does not exist; expected the path of a TOML file, or "
            f"{systems}{nearest(path.stem, known)}"
        )
    raise ConfigError(f"EXPERIMENT: got '{text}', expected a TOML file or {systems}{nearest(text, known)}")


def _overriding(
    overrides: Sequence[str] | Mapping[str, Any],
    ranks: int | None,
    epochs: int | None,
    hardware: str | None,
    below: Sequence[Layer],
) -> list[Layer]:
    here = Path.cwd()
    merged: Table = {}
    if isinstance(overrides, Mapping):
        tables = [_override(key, value) for key, value in overrides.items()]
    else:
        tables = [parse_override(text) for text in overrides]
    for table in tables:
        merged = deep_merge(merged, table)
    layers = [Layer("--set", here, merged)] if merged else []
    if "extends" in merged:
        raise ConfigError("--set extends: got an override, expected 'extends' inside an experiment file; move it there")
    stated = merged.get("cluster", {})
    if ranks is not None and isinstance(stated, Mapping):
        layers.append(Layer("--ranks", here, {"cluster": _ranks_on_hosts(ranks, stated, below)}))
    said = dict(leaves(merged))
    for option, path, value in (
        ("--epochs", ("train", "epochs"), epochs),
        ("--hardware", ("hardware", "profile"), hardware),
    ):
        if value is None:
            continue
        if said.get(path, value) != value:
            other = f"--set {'.'.join(path)}={said[path]}"
            raise ConfigError(f"{option}: got {value} with {other}, expected one of the two: remove the other")
        layers.append(Layer(option, here, {path[0]: {path[1]: value}}))
    return layers


def _override(key: object, value: object) -> Table:
    parts = key.split(".") if isinstance(key, str) else []
    if not parts or not all(parts):
        raise ConfigError(f"--set: got the key {key!r}, expected one such as 'train.epochs'")
    return nested(parts, os.fspath(value) if isinstance(value, os.PathLike) else value)


def _ranks_on_hosts(ranks: int, stated: Mapping[str, Any], below: Sequence[Layer]) -> Table:
    """Return ``[cluster]`` for a total of so many ranks: with the hosts or ranks per host of ``stated`` (``--set``),
    else on the hosts of the layers ``below``. Raises :class:`ConfigError` if the numbers disagree. The schema rejects
    values that are not numbers."""
    where = "--set"
    counts: dict[str, int] = {key: stated[key] for key in ("hosts", "ranks_per_host") if _is_count(stated.get(key))}
    if not any(key in stated for key in ("hosts", "ranks_per_host")):
        hosts, where = _written_hosts(below)
        counts = {"hosts": hosts}
    each = math.prod(counts.values())
    if ranks % each or (len(counts) == 2 and ranks != each):
        told = " and ".join(f"cluster.{key} = {value}" for key, value in counts.items())
        expected = f"{each}" if len(counts) == 2 else f"a multiple of {each}"
        key = next(iter(counts))
        other = f"--set cluster.{key}={_divisor(ranks, each)}" if where != "--set" else f"cluster.{key}"
        raise ConfigError(
            f"--ranks: got {ranks} with {told} ({where}), expected {expected}: --ranks is the total number of "
            f"processes on all hosts; change it, or {'remove it' if len(counts) == 2 else other}"
        )
    if "ranks_per_host" in stated:
        return {} if "hosts" in stated else {"hosts": ranks // each}
    placed = {"ranks_per_host": ranks // each}
    return placed if "hosts" in stated else {"hosts": counts["hosts"], **placed}


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _written_hosts(layers: Sequence[Layer]) -> tuple[int, str]:
    """Return the number of hosts that files state, and the file that does so last; 1 if none states a number."""
    for layer in reversed(layers):
        cluster = layer.table.get("cluster")
        hosts = cluster.get("hosts") if isinstance(cluster, Mapping) else None
        if hosts is not None:
            return (hosts, layer.label) if _is_count(hosts) else (1, layer.label)
    return 1, "default"


def _divisor(ranks: int, most: int) -> int:
    """Return the greatest number of hosts up to ``most`` on which so many ranks are equally many each."""
    return next(hosts for hosts in range(min(most, ranks), 0, -1) if ranks % hosts == 0)


def _absolute_paths(layer: Layer) -> Table:
    """Return the layer's table with its relative paths resolved against the folder that they are relative to."""
    table = dict(layer.table)
    for section, key in PATHS:
        entries = table.get(section)
        if isinstance(entries, Mapping) and key in entries:
            table[section] = {**entries, key: _absolute_in(entries[key], layer.folder, is_name=key == "profile")}
    return table


def _absolute_in(value: Any, folder: Path, is_name: bool) -> Any:
    """Resolve a path, or the paths of a table such as ``graph.splits``; other values stay as they are."""
    if isinstance(value, Mapping):
        return {key: _absolute_in(entry, folder, is_name) for key, entry in value.items()}
    return _absolute(value, folder, is_name) if isinstance(value, str) else value


def _absolute(text: str, folder: Path, is_name: bool) -> str:
    scheme, colon, rest = text.partition(":")
    if colon and len(scheme) > 1:
        if scheme in ("dgl", "pyg", "stats") and ("/" in rest or Path(rest).suffix):
            return f"{scheme}:{_absolute(rest, folder, is_name=False)}"
        return text
    if not text or (is_name and "/" not in text and not text.endswith(".toml")):
        return text
    return str((folder / expanded(text)).resolve())


def _origin(layers: Sequence[Layer]) -> Any:
    def origin(path: tuple[str, ...]) -> str:
        for length in range(len(path), 0, -1):
            for layer in reversed(layers):
                value: Any = layer.table
                for key in path[:length]:
                    value = value.get(key) if isinstance(value, Mapping) else None
                if value is not None:
                    return layer.label
        return layers[-1].label

    return origin
