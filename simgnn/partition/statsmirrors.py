"""Whether the tables of a vertex-cut's mirrors can be those of its routes: pairs, numbers of copies, and their sums."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from simgnn.partition.replicas import BY_HOSTS, BY_REPLICAS, LEVELS, SHARED
from simgnn.partition.stats import PartitionStats
from simgnn.partition.statscheck import Fault, rows_of_a_rank
from simgnn.program.sizes import IntArray

HOPS = (*LEVELS, BY_HOSTS)


def mirror_faults(stats: PartitionStats, spread: bool) -> Iterator[Fault]:
    """What contradicts the rest of ``stats``, whose tables have their shapes and hold no number below zero. ``spread``:
    rows of pairs are even shares, which bound no table but a histogram, whose pairs are those of halo."""
    tables = {name: stats.tables[name] for name in (SHARED, BY_REPLICAS, *LEVELS, BY_HOSTS) if name in stats.tables}
    if tables and stats.kind != "vertex-cut":
        for name in tables:
            yield f"tables.{name}", "is of a vertex-cut's mirrors, but partition.kind is 'edge-cut'"
        return
    if SHARED in tables:
        yield from _shared(stats, tables[SHARED], spread)
    if BY_REPLICAS in tables:
        yield from _by_replicas(stats, tables[BY_REPLICAS], tables.get(SHARED))
    if any(name in tables for name in (*LEVELS, BY_HOSTS)):
        yield from _levels(stats, tables, spread)


def _shared(stats: PartitionStats, shared: IntArray, spread: bool) -> Iterator[Fault]:
    key, halo, ranks = f"tables.{SHARED}", stats.halo, stats.ranks
    masters, words = rows_of_a_rank(stats, spread)
    if np.any(shared > masters):
        yield key, f"a rank has more masters with mirrors than {words}"
        return
    if spread:
        # nor are there bounds by all mirrors, since a replication_factor is told to a few digits
        if int(shared.sum()) > stats.facts.vertices:
            yield key, f"add up to {int(shared.sum())}, expected at most graph.vertices = {stats.facts.vertices}"
        return
    least = np.zeros(ranks, dtype=np.int64)
    np.maximum.at(least, halo.source, halo.rows)
    most = np.bincount(halo.source, halo.rows, minlength=ranks)
    if np.any((shared < least) | (shared > most)):
        yield key, "expected at least the mirrors that one other rank has of a rank's rows, at most those of all"


def _by_replicas(stats: PartitionStats, table: IntArray, shared: IntArray | None) -> Iterator[Fault]:
    key, halo, ranks = f"tables.{BY_REPLICAS}", stats.halo, stats.ranks
    pair, replicas, rows = table.T
    if np.any(pair >= len(halo.rows)):
        yield key, f"names pair {int(pair.max())}, expected places in halo, 0..{len(halo.rows) - 1}"
    elif np.any((replicas < 2) | (replicas > ranks)):
        yield (
            key,
            f"got {int(replicas.min())}..{int(replicas.max())} replicas, expected 2..{ranks}, the number of ranks",
        )
    elif _unordered(pair, replicas) or np.any(rows < 1):
        yield key, "expected rows of one mirror at least, in the order of pairs and replicas, none told twice"
    elif not np.array_equal(_summed(pair, rows, len(halo.rows)), halo.rows):
        yield key, "does not add up to the rows of each pair in halo"
    else:
        yield from _masters(key, halo.source[pair], replicas, rows, shared, exact=True)


def _levels(stats: PartitionStats, tables: Mapping[str, IntArray], spread: bool) -> Iterator[Fault]:
    missing = [name for name in LEVELS if name not in tables]
    if missing:
        yield f"tables.{missing[0]}", f"missing, though there is a table '{next(n for n in tables if n in HOPS)}'"
        return
    faults = [fault for name in LEVELS for fault in _hop(stats, name, tables[name], near=name == LEVELS[1])]
    yield from faults
    if faults:
        return
    ranks, halo = stats.ranks, stats.halo
    arriving = np.zeros(ranks, dtype=np.int64)
    for name in LEVELS:
        arriving += _summed(tables[name][:, 1], tables[name][:, 2], ranks)
    if not np.array_equal(arriving, stats.halo_rows()):
        yield f"tables.{LEVELS[1]}", f"does not add up, with {LEVELS[0]}, to the mirrors of each rank in halo"
    source, target, rows = tables[LEVELS[0]].T
    direct = dict(zip((halo.source.astype(np.int64) * ranks + halo.target).tolist(), halo.rows.tolist(), strict=True))
    pairs = (source * ranks + target).tolist()
    reach = all(rows_ <= direct.get(pair, 0) for pair, rows_ in zip(pairs, rows.tolist(), strict=True))
    if not spread and not reach:
        yield f"tables.{LEVELS[0]}", "a rank gets more rows of a master's than it has mirrors of them in halo"
    if BY_HOSTS in tables:
        yield from _by_hosts(stats, tables[BY_HOSTS], dict(zip(pairs, rows.tolist(), strict=True)), tables.get(SHARED))


def _hop(stats: PartitionStats, name: str, table: IntArray, near: bool) -> Iterator[Fault]:
    key, (source, target, rows) = f"tables.{name}", table.T
    if np.any(table[:, :2] >= stats.ranks):
        yield key, f"sender and receiver must be 0..{stats.ranks - 1}, got {int(table[:, :2].max())}"
    elif _unordered(source, target) or np.any(rows < 1) or np.any(source == target):
        yield key, "expected two ranks and one row at least, in the order of pairs, none told twice"
    elif np.any((stats.hosts[source] == stats.hosts[target]) != near):
        yield key, f"expected pairs of ranks {'on one host' if near else 'on two hosts'}, by partition.hosts"


def _by_hosts(
    stats: PartitionStats, table: IntArray, across: Mapping[int, int], shared: IntArray | None
) -> Iterator[Fault]:
    key, ranks, most = f"tables.{BY_HOSTS}", stats.ranks, len(np.unique(stats.hosts))
    source, target, hosts, rows = table.T
    if np.any(table[:, :2] >= ranks):
        yield key, f"sender and receiver must be 0..{ranks - 1}, got {int(table[:, :2].max())}"
        return
    if np.any((hosts < 2) | (hosts > most)):
        yield (
            key,
            f"got {int(hosts.min())}..{int(hosts.max())} hosts of a vertex, expected 2..{most}, all that there are",
        )
        return
    pair = source * ranks + target
    if _unordered(pair, hosts) or np.any(rows < 1):
        yield key, "expected rows of one mirror at least, in the order of pairs and hosts, none told twice"
        return
    each, place = np.unique(pair, return_inverse=True)
    if dict(zip(each.tolist(), _summed(place, rows, len(each)).tolist(), strict=True)) != dict(across):
        yield key, f"does not add up to the rows of {LEVELS[0]}"
        return
    yield from _masters(key, source, hosts, rows, shared, exact=False)


def _masters(
    key: str, source: NDArray[np.integer], copies: IntArray, rows: IntArray, shared: IntArray | None, exact: bool
) -> Iterator[Fault]:
    """A master with so many ``copies`` (or hosts) sends one row to each but its own; ``exact``: these are all."""
    kinds, place = np.unique(np.stack((source.astype(np.int64), copies)), axis=1, return_inverse=True)
    sent = _summed(place.reshape(-1), rows, kinds.shape[1])
    if np.any(sent % (kinds[1] - 1)):
        yield key, "rows of a master's rank do not come in whole numbers of vertices"
    elif shared is not None:
        found = _summed(kinds[0], sent // (kinds[1] - 1), len(shared))
        if np.any(found != shared if exact else found > shared):
            yield key, f"tells {'other' if exact else 'more'} masters than {SHARED}"


def _unordered(first: IntArray, second: IntArray) -> bool:
    """Whether pairs of numbers do not ascend strictly."""
    rises = (np.diff(first) > 0) | ((np.diff(first) == 0) & (np.diff(second) > 0))
    return not bool(np.all(rises))


def _summed(place: IntArray, rows: IntArray, length: int) -> IntArray:
    """Sums of whole ``rows`` by ``place``, int64 [length]."""
    found = np.zeros(length, dtype=np.int64)
    np.add.at(found, place, rows)
    return found
