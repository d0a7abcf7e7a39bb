"""How labelled vertices are divided into training, validation and test: names of the parts, and seeded shares."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.hashing import permutation_slice, stream_key

SPLIT_NAMES: Mapping[str, str] = MappingProxyType(
    {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}
)
"""Names of parts as people write them -> the name that simgnn uses."""

STANDARD_SHARES: Mapping[str, float] = MappingProxyType({"train": 0.6, "validation": 0.2, "test": 0.2})
"""Shares where nothing is stated."""


def shared_masks(candidates: NDArray[np.bool_], shares: Mapping[str, float], seed: int) -> dict[str, NDArray[np.bool_]]:
    """Divide the vertices of ``candidates`` (bool [V]) at random, by seed, into parts of these shares of them. Equal
    seeds give equal masks. Shares that add up to less than 1 leave vertices out."""
    vertices = np.flatnonzero(candidates)
    place = permutation_slice(0, len(vertices), max(len(vertices), 1), stream_key(seed, "splits"))
    masks, total = {}, 0.0
    for part, share in shares.items():
        first, total = round(total * len(vertices)), total + share
        masks[part] = np.zeros(len(candidates), np.bool_)
        masks[part][vertices[(place >= first) & (place < round(total * len(vertices)))]] = True
    return masks
