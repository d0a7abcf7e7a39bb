"""From an argument of the command line to a checked :class:`Experiment`."""

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.experiment.slots import SLOTS
from simgnn.names import nearest
from simgnn.tomlfile import Layer, Table, deep_merge, inherited, parse_override


def system_names() -> tuple[str, ...]:
    """Names of the shipped systems, sorted."""
    return tuple(sorted(path.stem for path in _systems().glob("*.toml")))


def system_path(name: str) -> Path | None:
    """The file of a shipped system, or None."""
    path = _systems() / f"{name}.toml"
    return path if path.parent == _systems() and path.is_file() else None


def load_experiment(
    argument: str | Path,
    overrides: Sequence[str] = (),
    *,
    ranks: int | None = None,
    epochs: int | None = None,
    hardware: str | None = None,
    trains: bool = True,
) -> Experiment:
    """Read an experiment: a TOML file or the name of a shipped system, under ``overrides`` such as "train.epochs=20".

    ``ranks`` means one host with that many ranks; ``trains`` as in :meth:`Experiment.from_table`. Relative paths of a
    file (graph, profile) are relative to that file; those of the command line to the working directory. Raises
    :class:`ConfigError` with all faults at once.
    """
    layers = inherited(_locate(argument), system_path, system_names())
    layers += _command_line(overrides, ranks, epochs, hardware)
    table: Table = {}
    for layer in layers:
        table = deep_merge(table, _absolute_paths(layer), SLOTS)
    return Experiment.from_table(table, _origin(layers), trains)


def _systems() -> Path:
    return Path(str(resources.files("simgnn.experiment"))) / "systems"


def _locate(argument: str | Path) -> Path:
    text = str(argument)
    path = Path(text).expanduser()
    if path.is_file():
        return path
    system = system_path(text)
    if system is not None:
        return system
    known = system_names()
    raise ConfigError(
        f"EXPERIMENT: got '{text}', expected a TOML file or the name of a shipped system ({', '.join(known)})"
        f"{nearest(text, known)}"
    )


def _command_line(overrides: Iterable[str], ranks: int | None, epochs: int | None, hardware: str | None) -> list[Layer]:
    here = Path.cwd()
    merged: Table = {}
    for text in overrides:
        merged = deep_merge(merged, parse_override(text))
    layers = [Layer("--set", here, merged)] if merged else []
    if "extends" in merged:
        raise ConfigError("--set extends: got an override, expected 'extends' only inside an experiment file")
    if ranks is not None:
        layers.append(Layer("--ranks", here, {"cluster": {"hosts": 1, "ranks_per_host": ranks}}))
    if epochs is not None:
        layers.append(Layer("--epochs", here, {"train": {"epochs": epochs}}))
    if hardware is not None:
        layers.append(Layer("--hardware", here, {"hardware": {"profile": hardware}}))
    return layers


def _absolute_paths(layer: Layer) -> Table:
    """The layer's table with its relative paths resolved against the folder that they were written for."""
    table = dict(layer.table)
    for section, key in (("graph", "source"), ("graph", "root"), ("batching", "storage"), ("hardware", "profile")):
        entries = table.get(section)
        if isinstance(entries, Mapping) and isinstance(entries.get(key), str):
            table[section] = {**entries, key: _absolute(entries[key], layer.folder, is_name=key == "profile")}
    return table


def _absolute(text: str, folder: Path, is_name: bool) -> str:
    scheme, colon, rest = text.partition(":")
    if colon and len(scheme) > 1:
        if scheme in ("dgl", "pyg", "stats") and ("/" in rest or Path(rest).suffix):
            return f"{scheme}:{_absolute(rest, folder, is_name=False)}"
        return text
    if not text or (is_name and "/" not in text and not text.endswith(".toml")):
        return text
    return str((folder / Path(text).expanduser()).resolve())


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
