"""Blocks around labelled vertices beside METIS and random: labels by part, rows of other hosts, seconds.

    python tests/benchmarks/bench_khop.py [--graphs pubmed ...] [--parts 2 4 8] [--out FILE]
    python tests/benchmarks/bench_khop.py --large 10000000 [--scale 20] [--share 0.02]

The first form divides three real graphs (SIMGNN_DATA) and an R-MAT graph among hosts of one rank each, with 2 % of the
vertices labelled and as they come. Rows of other hosts are those of one pass over the training, the validation and the
test vertices: 2 hops of 15 and 10, batches of 16 (2 %) or 512, all of them drawn, each rank from its own vertices. It
ends with status 1 where a bar is missed: each kind of label at most max(1.05 x mean rounded up, 1) a part, no block
forced, and with 2 % labelled fewer rows than random on the real graphs. METIS's figures decide nothing.

The second form times the blocks of a generated graph of so many drawn edges into 16 parts on one thread, in a process
of its own that opens the graph, and reports its largest resident memory. Above ten million edges it lies on disk.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from simgnn.graph.graph import MASKS, Graph
from simgnn.graph.load import load_graph
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.khop_blocks import KhopBlocks
from simgnn.partition.partitioners.metis import Metis
from simgnn.partition.partitioners.random import Random
from simgnn.policy import Partitioner
from simgnn.sampling.fetches.label_parts import Draws, LabelParts, label_parts

HOPS, FANOUTS, SEED, FEW = 2, (15, 10), 0, 0.02
REAL = ("pubmed", "amazon_computers", "ogbn_arxiv")
KINDS: dict[str, Partitioner] = {
    "khop-blocks": KhopBlocks(hops=HOPS),
    "metis": Metis(balance=("vertices",)),
    "metis, labels": Metis(balance=MASKS),
    "random": Random(seed=1),  # by seed 0, NumPy shuffles as whoever made the masks of amazon_computers did
}
SECONDS_BAR, LARGE_PARTS = 20.0, 16


def loaded(name: str, share: float | None) -> Graph:
    """A graph of the benchmark; ``share``: of its vertices that stay labelled, None: as it comes."""
    source = "synthetic:rmat" if name == "rmat" else str(Path(os.environ["SIMGNN_DATA"]) / f"{name}.npz")
    options = {"feature_width": 0} if name == "rmat" else {}
    graph = load_graph(source, options={**options, "labelled": share}, seed=SEED)
    return replace(graph, features=None)


def most_labels(found: LabelParts) -> dict[str, tuple[int, int]]:
    """By kind, the labelled vertices of the part that has most, and how many the bar allows."""
    counts = {name: getattr(found, name) for name in MASKS}
    bars = {name: max(ceil(Fraction(21, 20) * Fraction(sum(each), len(each))), 1) for name, each in counts.items()}
    return {name: (max(each), bars[name]) for name, each in counts.items()}


def rows_of(graph: Graph, name: str, share: float | None, parts: int) -> Iterator[dict[str, Any]]:
    """Divide a graph by every kind, and count."""
    hosts = np.arange(parts)
    draws = Draws(FANOUTS, 16 if share else 512, SEED, most_batches=1 << 40)
    for kind, policy in KINDS.items():
        began = time.perf_counter()
        divided = partitioned(policy, graph, hosts, SEED)
        seconds = time.perf_counter() - began
        found = label_parts(kind, graph, divided.owner, hosts, draws)
        labels = most_labels(found)
        yield {
            "graph": name,
            "labelled": share or "as it comes",
            "parts": parts,
            "kind": kind,
            **{f"{mask}_rows": found.rows_from[mask] for mask in MASKS},
            "labels_over_bar": max(most / bar for most, bar in labels.values()),
            "forced": divided.counted.get("forced_blocks"),
            "vertex_imbalance": max(found.vertices) * parts / graph.vertices,
            "seconds": seconds,
        }


def missed(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Name what misses its bar, and say where METIS needs fewer rows, which is no bar."""
    by = {(row["graph"], row["labelled"], row["parts"], row["kind"]): row for row in rows}
    for (graph, share, parts, kind), row in by.items():
        if kind != "khop-blocks":
            continue
        where = f"{graph}, {share}, {parts} parts"
        if row["labels_over_bar"] > 1 or row["forced"]:
            yield f"{where}: labels over the bar {row['labels_over_bar']:.3f}, forced {row['forced']}"
        for mask in MASKS:
            mine, random = row[f"{mask}_rows"], by[graph, share, parts, "random"][f"{mask}_rows"]
            if graph in REAL and share == FEW and mine >= random:
                yield f"{where}: {mine:,} rows from {mask}, random {random:,}"


def metis_wins(rows: list[dict[str, Any]]) -> str:
    """In how many of all settings and kinds of vertices METIS needs fewer rows than the blocks."""
    by = {(row["graph"], row["labelled"], row["parts"], row["kind"]): row for row in rows}
    told = []
    for other in ("metis", "metis, labels"):
        pairs = [
            (by[graph, share, parts, other][f"{mask}_rows"], row[f"{mask}_rows"], f"{graph} ({share})")
            for (graph, share, parts, kind), row in by.items()
            for mask in MASKS
            if kind == "khop-blocks"
        ]
        lost = sorted({where for theirs, mine, where in pairs if theirs >= mine})
        won = sum(theirs < mine for theirs, mine, _ in pairs)
        told.append(f"{other} needs fewer rows in {won} of {len(pairs)}; not always on: {', '.join(lost) or 'none'}")
    return "\n".join(told)


def compared(arguments: argparse.Namespace) -> int:
    rows = []
    for name in arguments.graphs:
        for share in (FEW, None):
            graph = loaded(name, share)
            for parts in arguments.parts:
                for row in rows_of(graph, name, share, parts):
                    cells = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values())
                    print(" | ".join(cells), flush=True)
                    rows.append(row)
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    faults = list(missed(rows))
    print(metis_wins(rows))
    print("\n".join(faults) or "every bar is held")
    return bool(faults)


def large(arguments: argparse.Namespace) -> int:
    """Make the graph if it is not kept, then divide it in a process of its own."""
    words = [sys.executable, __file__, "--large", str(arguments.large), "--scale", str(arguments.scale)]
    words += ["--share", str(arguments.share), "--here"]
    if not arguments.here:
        shape = {"vertices": 2**arguments.scale, "edges": arguments.large, "feature_width": 0}
        load_graph("synthetic:rmat", options=shape)
        return subprocess.run(words, check=False, env={**os.environ, "NUMBA_NUM_THREADS": "1"}).returncode
    shape = {"vertices": 2**arguments.scale, "edges": arguments.large, "feature_width": 0, "labelled": arguments.share}
    graph, hosts = load_graph("synthetic:rmat", options=shape), np.arange(LARGE_PARTS)
    small = load_graph("synthetic:rmat", options={"vertices": 1000, "edges": 4000, "labelled": 0.5})
    partitioned(KhopBlocks(hops=HOPS), small, hosts, SEED)  # compiles, or reads what was compiled
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    found = partitioned(KhopBlocks(hops=HOPS), graph, hosts, SEED)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    told = {
        "stored_edges": graph.edges,
        **found.counted,
        "seconds": seconds,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "resident_GiB": after.ru_maxrss / 2**20,
        "resident_before_GiB": before.ru_maxrss / 2**20,
        "vertex_imbalance": float(found.rows().max() / found.rows().mean()),
    }
    print(json.dumps(told))
    return arguments.large <= 10_000_000 and seconds > SECONDS_BAR


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=[*REAL, "rmat"])
    parser.add_argument("--parts", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--out", type=Path, help="JSON file for all figures")
    parser.add_argument("--large", type=int, help="drawn edges of an R-MAT graph to time")
    parser.add_argument("--scale", type=int, default=20, help="its vertices, as a power of 2")
    parser.add_argument("--share", type=float, default=FEW, help="share of them that is labelled")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.exit(compared(arguments) if arguments.large is None else large(arguments))


if __name__ == "__main__":
    main()
