"""How fast graphs were partitioned on this machine: the only way to tell how long a partitioner will take, since METIS
reports no progress."""

import json
from pathlib import Path
from typing import Any

from simgnn.errors import ConfigError
from simgnn.outside import read_json
from simgnn.tomlfile import write_atomically

FILE = "partition-speed.json"
LEAST_EDGES = 500_000
"""A smaller graph says nothing of a larger one: loading the partitioner takes longer than its work."""


def expected_seconds(folder: Path, label: str, edges: int) -> float | None:
    """Return how long the partitioner ``label`` will take for so many edges if it is as fast as it was the last time;
    None if it was never timed. ``folder``: the cache."""
    speed = _speeds(folder).get(label)
    return edges / speed if isinstance(speed, float) and speed > 0 else None


def remember(folder: Path, label: str, edges: int, seconds: float) -> None:
    """Keep how many edges a second the partitioner ``label`` divided."""
    if edges >= LEAST_EDGES and seconds > 0.0:
        write_atomically(folder / FILE, json.dumps(_speeds(folder) | {label: edges / seconds}, indent=1) + "\n")


def _speeds(folder: Path) -> dict[str, Any]:
    if not (folder / FILE).is_file():
        return {}
    try:
        found = read_json(folder / FILE, "table of speeds", remedy="remove it", error=ConfigError)
    except ConfigError:
        return {}  # only an estimate is lost
    return found if isinstance(found, dict) else {}
