"""The feature store's pulls on two real ranks, beside the least that the same rows could cost.

    python tests/benchmarks/bench_store.py [--rows 50000] [--rounds 15]

One host: a pull against a bare ``index_select`` of the table. Two hosts over loopback, half of the ids remote: a pull
against a bare exchange of as many ready rows. Every round runs all contenders once, in an order drawn anew, the same on
both ranks. No bar: it tells what bookkeeping costs.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from paired import alternate, ratio

from executor.handlers.wire import all_to_all, counts_of, member_counts
from executor.memory.allocator import tune_allocator
from executor.state.context import GroupHandle
from executor.store.features import FeatureStore, Places
from simgnn.partition.local.contiguous_ids import IdMaps
from simgnn.partition.local.serving import Serving
from tests.executor.harness import run_ranks

RANKS = 2


def _contenders(rank: int, hosts: int, rows: int, vertices: int, width: int) -> dict[str, Callable[[], object]]:
    owner = np.random.default_rng(0).integers(0, hosts, vertices).astype(np.int32)
    maps, serving = IdMaps.of(owner, hosts), Serving((0, 1) if hosts == RANKS else (0, 0))
    group = GroupHandle(dist.new_group([0, 1]), (0, 1), torch.device("cpu"))
    store = FeatureStore(Places(rank, maps, serving), group)
    store.share("feat", width, "float32", lambda: np.ones((store.places.rows, width), dtype=np.float32))
    gids = torch.from_numpy(np.random.default_rng(rank).choice(vertices, rows, replace=False))
    table = store.table("feat")
    pull = {f"{hosts} hosts, pull": lambda: store.pull("feat", gids)}
    if hosts == 1:
        return {**pull, "1 hosts, least": lambda: table.index_select(0, gids)}
    part = store.places.part_of(gids)
    receive = member_counts(part[part != store.places.host], group)  # with a rank a host, partitions are ranks
    send, _ = counts_of(receive, group)
    ready = torch.ones(sum(send), width)
    return {**pull, "2 hosts, least": lambda: all_to_all(ready, send, receive.tolist(), group)}


def _measure(rank: int, ranks: int, rounds: int, rows: int, vertices: int, width: int) -> dict[str, list[float]]:
    tune_allocator()  # as a run does: large tensors otherwise fault their pages in anew on every call
    found: dict[str, list[float]] = {}
    for hosts in (1, RANKS):
        contenders = _contenders(rank, hosts, rows, vertices, width)
        found |= {name: times.tolist() for name, times in alternate(contenders, rounds).items()}
    return found


def main() -> None:
    """Print milliseconds of rank 0's pulls, and their ratios to the least."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000, help="of a batch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--vertices", type=int, default=169_343)
    parser.add_argument("--width", type=int, default=128)
    arguments = parser.parse_args()
    sizes = arguments.rounds, arguments.rows, arguments.vertices, arguments.width
    with tempfile.TemporaryDirectory() as folder:
        found = {n: np.array(t) for n, t in run_ranks(RANKS, _measure, Path(folder), *sizes)[0].items()}
    for name, seconds in found.items():
        least = found[f"{name.split(',')[0]}, least"]
        print(f"{name}: median {1e3 * np.median(seconds):.2f} ms, {ratio(seconds, least)} of the least")


if __name__ == "__main__":
    main()
