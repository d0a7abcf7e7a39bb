"""Errors of predicted NCCL all-reduces: rank counts, ranks a host, and ranges of sizes left out of the tables."""

from collections.abc import Callable, Sequence
from itertools import combinations
from math import log2

import numpy as np

from simgnn.analysis.left_out.errors import Errors, Floats
from simgnn.analysis.nccl.law import fit_law
from simgnn.analysis.nccl.measured_tables import Table
from simgnn.analysis.nccl.profile_entries import Fitted, fit_scope
from simgnn.hardware.price.collectives import bus_seconds, choose_collective, hops, joined
from simgnn.hardware.profile.communication import Backend, Collective, Message
from simgnn.hardware.profile.quantities import Duration

BANDS = tuple(float(size) for size in (0, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24))
"""Bytes from which on errors are told apart: they fall with size, as chance decides the times of small calls."""
BLOCKS = tuple(2.0 ** np.arange(11, 28, 3))
"""Ends of the ranges of sizes that are left out in turn: 2 KiB, 16 KiB, ... 64 MiB and more."""


def predicted(fitted: Fitted, table: Table) -> Floats:
    """Predict the seconds [n] of an all-reduce of each size of a table with fitted entries."""
    message = Message(floor=Duration.of(0.0, "assumed"))
    backend = Backend(message=message, collectives=fitted.entries, choices=fitted.choices)

    def seconds(entry: Collective, nbytes: float) -> float:
        assert entry.hop is not None
        hopping = hops(entry, table.ranks, nbytes) * entry.hop.value
        return entry.floor.value + hopping + bus_seconds(entry, table.ranks, table.ranks_per_host, nbytes)

    found = []
    for nbytes in table.nbytes.tolist():
        chosen, exact = choose_collective(backend, "nccl", "allreduce", table.ranks, table.scope == "cluster", nbytes)
        found.append(sum(share * seconds(entry, nbytes) for entry, share in joined(backend, chosen, exact, nbytes)))
    return np.array(found)


def predicted_from(kept: Sequence[Table], table: Table) -> Floats:
    """Predict an all-reduce from other tables of its machine, those of its scope among them."""
    mine = [one for one in kept if (one.collective, one.scope) == ("all_reduce", table.scope)]
    return predicted(fit_scope(mine, fit_law(kept, table.scope)), table)


def without_ranks(tables: Sequence[Table]) -> list[Errors]:
    """Leave out rank counts: predict each all-reduce from every choice of other rank counts of its machine and scope.

    The distance is that of the nearest rank count that was kept.
    """
    return _left_out(tables, lambda table: table.ranks, "ranks")


def without_ranks_per_host(tables: Sequence[Table]) -> list[Errors]:
    """Leave out numbers of ranks a host, in groups inside a host and across hosts at once."""
    return _left_out(tables, lambda table: table.ranks_per_host, "ranks a host")


def _left_out(tables: Sequence[Table], count: Callable[[Table], int], what: str) -> list[Errors]:
    found = []
    for table in tables:
        if table.collective != "all_reduce":
            continue
        own = [one for one in tables if one.gpu == table.gpu]
        messages = [one for one in own if one.collective != "all_reduce"]
        others = [one for one in own if one.collective == "all_reduce" and count(one) != count(table)]
        near = sorted({count(one) for one in others if one.scope == table.scope})
        for size in range(1, len(near) + 1):
            for kept in combinations(near, size):
                rest = [one for one in others if one.scope != table.scope or count(one) in kept]
                seconds = predicted_from([*messages, *rest], table)
                octaves = min(abs(log2(count(table) / n)) for n in kept)
                group = f"{table.gpu}, {table.scope}, {count(table)} {what}"
                found.append(Errors.of(group, np.log(table.seconds / seconds), octaves, table.nbytes))
    return found


def without_sizes(tables: Sequence[Table]) -> list[Errors]:
    """Leave out ranges of sizes: predict those of each all-reduce from its other sizes.

    The distance is that of the nearest size that was kept, on either side.
    """
    found = []
    for table in tables:
        if table.collective != "all_reduce":
            continue
        rest = [one for one in tables if one.gpu == table.gpu and one is not table]
        for low, high in zip(BLOCKS, (*BLOCKS[1:-1], np.inf), strict=False):
            held = (table.nbytes >= low) & (table.nbytes < high)
            if not held.any() or held.all():
                continue
            seen, left = table.where(~held), table.where(held)
            seconds = predicted(fit_scope([seen], fit_law([*rest, seen], table.scope)), left)
            apart = np.abs(np.log2(left.nbytes[:, None] / seen.nbytes[None, :])).min(axis=1)
            found.append(
                Errors.of(f"{table.name}, from {low:.0f} B", np.log(left.seconds / seconds), apart, left.nbytes)
            )
    return found
