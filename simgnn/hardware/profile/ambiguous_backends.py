"""Descriptions of a backend that nothing tells apart, so that the order of a file would decide a price."""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import combinations
from math import inf
from typing import TYPE_CHECKING

from simgnn.units import format_quantity

if TYPE_CHECKING:
    from simgnn.hardware.profile.links import Choice, Collective


def undecided(collectives: Sequence["Collective"], choices: Sequence["Choice"]) -> list[str]:
    """Pairs of entries that :func:`simgnn.hardware.price.collectives.choose_collective` has no rule to tell apart, and
    scopes of several choices, in sentences."""
    scopes = Counter(choice.scope for choice in choices)
    faults = [f"choices: {times} for scope '{scope}'; expected one" for scope, times in scopes.items() if times > 1]
    for (first, one), (second, other) in combinations(enumerate(collectives), 2):
        sizes = _sizes_of_both(one, other)
        if (one.kind, one.scope) != (other.kind, other.scope) or sizes is None:
            continue
        asked = [scope for scope in ("host", "cluster") if _asked(one, scope, collectives)]
        if _chosen(one, other, asked, scopes):
            continue
        ways = " and ".join(dict.fromkeys((one.algorithm, other.algorithm)))
        shared = ", ".join(map(str, sorted({*(one.ranks or ())} & {*(other.ranks or ())})))
        ranks = f"{shared} ranks" if shared else "any rank count"
        regime = "" if sizes == (0.0, inf) else f", sizes from {format_quantity(sizes[0], 'bytes')}"
        regime += "" if sizes[1] == inf else f" to {format_quantity(sizes[1], 'bytes')}"
        remedy = "" if one.algorithm == other.algorithm or one.kind != "allreduce" else ", or choices of each scope"
        faults.append(
            f"collectives: {first} and {second} both tell {one.kind} (scope '{one.scope}', {ways}) of {ranks}{regime}; "
            f"expected one{remedy}"
        )
    return faults


def _sizes_of_both(one: "Collective", other: "Collective") -> tuple[float, float] | None:
    """Sizes that two entries are both for, where no rank count tells them apart: both are for any, or each was measured
    at as many, of them one at both. None: there are none."""
    mine, theirs = set(one.ranks or ()), set(other.ranks or ())
    if len(mine) != len(theirs) or (mine and not mine & theirs):
        return None
    (low, high), (lower, higher) = one.sizes or (0.0, inf), other.sizes or (0.0, inf)
    return (max(low, lower), min(high, higher)) if max(low, lower) < min(high, higher) else None


def _asked(entry: "Collective", scope: str, collectives: Sequence["Collective"]) -> bool:
    """Whether an entry is looked at for groups of a scope: one for any only where none is of that scope itself."""
    own = any((other.kind, other.scope) == (entry.kind, scope) for other in collectives)
    return entry.scope == scope or (entry.scope == "any" and not own)


def _chosen(one: "Collective", other: "Collective", asked: Sequence[str], scopes: Collection[str]) -> bool:
    """Whether choices of these scopes tell two all-reduces apart in every scope in which they are looked at."""
    differ = one.kind == "allreduce" and one.algorithm != other.algorithm
    return all(differ and scope in scopes for scope in asked)
