"""Sizes of a run's batches as a file, so that it is simulated again without its graph: an ``.npz`` of plain arrays."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.npzfile import read_npz
from simgnn.program.sizes import Route
from simgnn.sampling.batches.sizes import BatchSizes, CacheSizes, PartedSizes
from simgnn.sampling.draw.request_sizes import SampleRequests

HOT_ROWS = "hot_rows"
LOCALITY = "locality/"
PLAIN = ("rows", "edges", "local", "hits", "training")


def save_sizes(sizes: BatchSizes, hot_rows: int, path: Path) -> None:
    """Write ``sizes`` and the number of hot rows that they were counted with, whole or not at all."""
    arrays: dict[str, Any] = {HOT_ROWS: np.int64(hot_rows)}
    arrays |= {name: getattr(sizes, name) for name in PLAIN}
    arrays |= {LOCALITY + name: table for name, table in sizes.locality.items()}
    arrays |= _route("pulled", sizes.pulled)
    if sizes.cache is not None:
        arrays |= {"cache/rows": sizes.cache.rows, "cache/kept": sizes.cache.kept}
        arrays |= _route("cache/first", sizes.cache.first) | _route("cache/pulled", sizes.cache.pulled)
    if sizes.parted is not None:
        requests = sizes.parted.requests
        arrays |= {"parted/asked": requests.asked, "parted/returned": requests.returned}
        arrays["parted/structure_bytes"] = sizes.parted.structure_bytes
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.npz")
    try:
        np.savez_compressed(temporary, **arrays)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_sizes(path: Path) -> tuple[BatchSizes, int]:
    """What :func:`save_sizes` wrote: sizes and hot rows. Raises :class:`ConfigError` for anything else."""
    try:
        arrays = read_npz(path)
        cache = parted = None
        if "cache/rows" in arrays:
            first, pulled = _read_route("cache/first", arrays), _read_route("cache/pulled", arrays)
            cache = CacheSizes(arrays["cache/rows"], first, pulled, arrays["cache/kept"])
        if "parted/asked" in arrays:
            requests = SampleRequests(arrays["parted/asked"], arrays["parted/returned"])
            parted = PartedSizes(requests, arrays["parted/structure_bytes"])
        plain = {name: arrays[name] for name in PLAIN}
        locality = {name.removeprefix(LOCALITY): table for name, table in arrays.items() if name.startswith(LOCALITY)}
        pulled = _read_route("pulled", arrays)
        sizes = BatchSizes(**plain, pulled=pulled, cache=cache, locality=locality, parted=parted)
        return sizes, int(arrays[HOT_ROWS])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not the sizes of a run's batches ({error}); prepare it again") from None


def _route(name: str, route: Route) -> dict[str, NDArray[Any]]:
    return {f"{name}/source": route.source, f"{name}/target": route.target, f"{name}/rows": route.rows}


def _read_route(name: str, arrays: Mapping[str, NDArray[Any]]) -> Route:
    return Route(arrays[f"{name}/source"], arrays[f"{name}/target"], arrays[f"{name}/rows"])
