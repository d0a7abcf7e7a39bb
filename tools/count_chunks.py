"""``python -m tools.count_chunks``: counts on available graphs how many rows the chunks of METIS's parts share, which a
``published`` suite assumes of other graphs."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from simgnn.errors import SimgnnError
from simgnn.graph.load import load_graph
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.transfer_rates import transfer_rates
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.chunks.counts import counted
from simgnn.partition.partitioners.metis_chunks import MetisChunks
from simgnn.partition.store import partition_artifact


def main(arguments: Sequence[str] | None = None) -> int:
    """Print TOML for the file of a suite; exit status 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m tools.count_chunks", description=__doc__)
    parser.add_argument("graphs", type=Path, nargs="+", help="graphs to count")
    parser.add_argument("--ranks", type=int, default=4, help="number of ranks, on one host")
    parser.add_argument("--chunks", type=int, nargs="+", default=[8, 32], help="numbers of chunks of each rank")
    parser.add_argument("--hardware", required=True, help="profile whose rates choose the order of chunks")
    chosen = parser.parse_args(arguments)
    try:
        found = [
            each for path in chosen.graphs for each in _counted(path, chosen.ranks, chosen.chunks, chosen.hardware)
        ]
        print(tomli_w.dumps({"chunks": {"of": found}}))
    except SimgnnError as error:
        print(f"simgnn: {error}", file=sys.stderr)
        return 2
    return 0


def _counted(path: Path, ranks: int, chunks: Sequence[int], hardware: str) -> Iterator[dict[str, Any]]:
    graph, hosts = load_graph(str(path)), np.zeros(ranks, dtype=np.int64)
    rates = transfer_rates(Machine.place(load_profile(hardware), tuple(hosts.tolist())))
    policy = MetisChunks(rates=rates)
    parts = partition_artifact(graph, policy, hosts, 0, None)
    for number in chunks:
        one = counted(graph, parts, policy.settings(number))
        shares = {"phi": one.volumes.v_p2p / one.volumes.v_ori, "psi": one.volumes.v_ru / one.volumes.v_ori}
        rounded = {key: round(share, 3) for key, share in shares.items()}
        rho = round(one.replication_factor, 3)
        yield {"graph": path.stem, "ranks": ranks, "chunks": number, "rho": rho, **rounded}


if __name__ == "__main__":
    sys.exit(main())
