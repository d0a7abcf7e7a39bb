"""From measured times of NCCL's calls to the entries of a profile: a law for all rank counts, a curve for each table.

The form is that of :class:`simgnn.hardware.links.Collective`; what holds for all rank counts is a law
(:mod:`simgnn.analysis.fit_nccl_law`), the rest is one curve a table (:mod:`simgnn.analysis.fit_nccl_entries`). Rank
counts that were not measured are carried over from the mean of the tables' curves; how far that may miss is told by
tables whose rank count is left out.
"""

from collections.abc import Sequence

import numpy as np

from simgnn.analysis.fit_nccl_curve import read, smooth_curve
from simgnn.analysis.fit_nccl_entries import Fitted, fit_scope, points
from simgnn.analysis.fit_nccl_law import fit_law
from simgnn.analysis.fit_nccl_spread import CARRIED_BANDS, rounded, spread_of, spread_steps
from simgnn.analysis.fit_nccl_tables import Floats, Table
from simgnn.errors import HardwareError
from simgnn.hardware.collectives import bus_seconds, choose_collective, hops, joined
from simgnn.hardware.links import Backend, Choice, Collective, Message
from simgnn.hardware.quantities import Bandwidth, Duration, Points


def fit_machine(tables: Sequence[Table], gpu: str, across_hosts: bool) -> Fitted:
    """All-reduces of one machine, inside a host and, if asked for, across hosts, by scope, rank count and algorithm."""
    mine = [table for table in tables if table.gpu == gpu]
    scopes = ("host", "cluster") if across_hosts else ("host",)
    if not any(table.collective == "all_reduce" and table.scope in scopes for table in mine):
        known = ", ".join(sorted({table.gpu for table in tables if table.collective == "all_reduce"})) or "none"
        raise HardwareError(f"{gpu}: no table of its all-reduce; there are tables of: {known}")
    entries: list[Collective] = []
    choices: list[Choice] = []
    for scope in scopes:
        found = [table for table in mine if (table.collective, table.scope) == ("all_reduce", scope)]
        if found:
            fitted = fit_scope(found, fit_law(mine, scope))
            entries += with_carried_spread(fitted.entries, mine, scope)
            choices += fitted.choices
    return Fitted(tuple(entries), tuple(choices))


def with_carried_spread(entries: Sequence[Collective], tables: Sequence[Table], scope: str) -> list[Collective]:
    """Entries of several rank counts with the spread at others, by size: what tables whose rank count is left out are
    missed by."""
    mine = [table for table in tables if (table.collective, table.scope) == ("all_reduce", scope)]
    if len({table.ranks for table in mine}) < 2:
        return list(entries)
    missed = [np.log(table.seconds / predict_left_out(tables, table)) for table in mine]
    sizes, logs = np.concatenate([table.nbytes for table in mine]), np.concatenate(missed)
    told = []
    for entry in entries:
        several = entry.ranks is not None and len(entry.ranks) > 1
        steps = spread_steps(sizes, logs, entry.sizes, CARRIED_BANDS)
        told.append(Collective.model_validate({**entry.model_dump(), "carried_spread": steps}) if several else entry)
    return told


def predict_left_out(tables: Sequence[Table], table: Table) -> Floats:
    """Seconds [n] of a table's sizes by the all-reduces of its machine that have another rank count."""
    rest = [one for one in tables if one.gpu == table.gpu]
    rest = [one for one in rest if one.collective != "all_reduce" or one.ranks != table.ranks]
    mine = [one for one in rest if (one.collective, one.scope) == ("all_reduce", table.scope)]
    if not mine:
        raise HardwareError(f"{table.name}: no other rank count of its machine and scope to predict it from")
    fitted = fit_scope(mine, fit_law(rest, table.scope))
    message = Message(floor=Duration.of(0.0, "assumed"))
    backend = Backend(message=message, collectives=fitted.entries, choices=fitted.choices)
    seconds = []
    for nbytes in table.nbytes.tolist():
        chosen, exact = choose_collective(backend, "nccl", "allreduce", table.ranks, table.scope == "cluster", nbytes)
        parts = joined(backend, chosen, exact, nbytes)
        seconds.append(sum(share * _alone(entry, table, nbytes) for entry, share in parts))
    return np.array(seconds)


def _alone(entry: Collective, table: Table, nbytes: float) -> float:
    """Seconds of a call of a table's group by one entry."""
    assert entry.hop is not None
    hopping = hops(entry, table.ranks, nbytes) * entry.hop.value
    return entry.floor.value + hopping + bus_seconds(entry, table.ranks, table.ranks_per_host, nbytes)


def fit_messages(table: Table) -> tuple[Duration, Bandwidth, Points]:
    """Of single messages between two ranks: the floor, the best rate, and the share of it that each size reaches."""
    if table.collective != "send_recv":
        raise HardwareError(f"{table.name}: got the collective '{table.collective}', expected 'send_recv'")
    floor = 0.9 * float(table.seconds.min())
    knots, seconds = smooth_curve(table.nbytes, table.seconds - floor, table.seconds)
    bandwidth = rounded(1.0 / float(seconds.min()))
    fitted = read(knots, seconds, table.nbytes) * table.nbytes + floor
    spread = rounded(spread_of(np.log(table.seconds / fitted)))
    told = f"{table.name}.csv, {len(table.nbytes)} sizes"
    reach = (float(table.nbytes[0]), float(table.nbytes[-1]))
    return (
        Duration.of(rounded(floor), "measured", spread=spread, note=told),
        Bandwidth.of(bandwidth, "measured", spread=spread, range=reach, note=told),
        points(knots, np.minimum(1.0 / (seconds * bandwidth), 1.0), spread),
    )
