"""A feature store on real ranks: rows by a formula, ids by a seed, and what must travel, counted one id at a time."""

import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from executor.state.context import GroupHandle
from executor.store.features import FeatureStore, Places
from executor.store.shared import FOLDER
from simgnn.partition.local.contiguous_ids import IdMaps
from simgnn.partition.local.serving import Serving

VERTICES, WIDTH = 43, 3
CASES = {"1x1": (1, 1), "2x1": (2, 1), "1x2": (1, 2), "4x1": (4, 1), "2x2": (2, 2)}
"""Hosts and ranks of each: P in {1, 2, 4}, G in {1, 2}."""
RANKS = 4
ROWS = np.random.default_rng(5).standard_normal((VERTICES, WIDTH)).astype(np.float32)
"""By oid."""


def maps_of(hosts: int) -> IdMaps:
    """Random owners; with four hosts one of them holds nothing."""
    owner = np.random.default_rng(hosts).integers(0, hosts - (hosts == 4), VERTICES)
    return IdMaps.of(owner.astype(np.int32), hosts)


def serving_of(case: str) -> Serving:
    """Ranks 0..G-1 on host 0, and so on."""
    hosts, each = CASES[case]
    return Serving(tuple(rank // each for rank in range(hosts * each)))


def store_of(case: str, rank: int, group: GroupHandle) -> FeatureStore:
    """The rank's end of a case, with nothing shared yet."""
    return FeatureStore(Places(rank, maps_of(CASES[case][0]), serving_of(case)), group)


def share(store: FeatureStore) -> None:
    """``ROWS``, those of each host in the order of their gids."""
    places = store.places
    store.share("feat", WIDTH, "float32", lambda: ROWS[places.maps.core(places.host)])


def ids_of(rank: int, seed: int = 0) -> torch.Tensor:
    """Every gid and some of them again, in a random order of this rank's own."""
    draw = np.random.default_rng([seed, rank])
    every = np.concatenate((np.arange(VERTICES), draw.integers(0, VERTICES, 9 * rank)))
    return torch.from_numpy(draw.permutation(every))


def groups() -> dict[str, GroupHandle]:
    """A process group for each case, of its first ranks; all ``RANKS`` ranks make them together."""
    made = {}
    for case, (hosts, each) in CASES.items():
        members = tuple(range(hosts * each))
        group = dist.new_group(list(members))
        made[case] = GroupHandle(group if len(members) > 1 else None, members, torch.device("cpu"))
    return made


def wanted_rows(case: str, ids: list[torch.Tensor]) -> NDArray[np.int64]:
    """Rows [P, P] that each rank asks of each other: an id of another host of its peer there (C1), each time it is
    named."""
    hosts, each = CASES[case]
    maps = maps_of(hosts)
    owner = {int(gid): part for part in range(hosts) for gid in range(*maps.node_map[part : part + 2])}
    rows = np.zeros((hosts * each, hosts * each), dtype=np.int64)
    for rank, gids in enumerate(ids):
        for gid in gids.tolist():
            if owner[gid] != rank // each:
                rows[rank, owner[gid] * each + rank % each] += 1
    return rows


def tapped_bytes(calls: list[tuple[str, int, int]], ranks: int) -> list[int]:
    """Bytes handed to ``isend`` for each rank."""
    nbytes = [0] * ranks
    for name, peer, size in calls:
        nbytes[peer] += size * (name == "isend")
    return nbytes


def names_left() -> list[str]:
    """Shared memory of this process that still has a name."""
    return [path.name for path in FOLDER.glob(f"simgnn-{os.getpid()}-*")]


def mapping_of(address: int) -> tuple[str, int]:
    """Name and inode of what the kernel has mapped where this process reads ``address``."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= address < last:
            return line.split(maxsplit=5)[5], int(line.split()[4])
    raise AssertionError("the address is in no mapping")
