"""Max-min fair rates of flows on shared links, by progressive filling of the part of the network that changed.

All rates rise together. A class of flows stops rising when it reaches its own cap or when a link that it crosses is
full. A flow may take more or less of a link than its nominal rate (its ``share``); this is how a collective occupies
the links of its ring. Source of the method: Bertsekas and Gallager, Data Networks, section 6.5.2; caps and shares are
added here. The next link to become full is found with a heap whose keys are updated only when they come to the top: the
common rate at which a link becomes full can only increase as classes stop rising. ``order`` lists the classes that have
not ended, sorted by cap, then by join.
"""

import numba as nb
import numpy as np

from simgnn.sim.clock import FOREVER_PS, PICOSECONDS
from simgnn.sim.network.flow_table import Bools, Crossings, Floats, Flows, Ints, Paths, sort_by

TICK_S = 1.0 / PICOSECONDS
LATEST = float(FOREVER_PS)


@nb.njit(cache=True)
def _sink(key: Floats, who: Ints, size: int, place: int) -> None:
    """Move an entry of a heap of (key, link) down to its place."""
    value, link = key[place], who[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (key[other] < key[child] or (key[other] == key[child] and who[other] < who[child])):
            child = other
        if value < key[child] or (value == key[child] and link < who[child]):
            break
        key[place], who[place] = key[child], who[child]
        place = child
    key[place], who[place] = value, link


@nb.njit(cache=True)
def fill(
    order: Ints, ended: Bools, dirty: Bools, cap: Floats, capacity: Floats, reach: Floats, crossings: Crossings
) -> Floats:
    """Compute the max-min fair rate of classes in changed (``dirty``) components, float64 [room]; -1 for all others.

    Updates ``reach`` [links] of those components: the highest rate that one more flow could get on each link.
    """
    first, link, take, begin, length, crossing, root, full_load, full_rising = crossings
    left = capacity.copy()
    load = full_load.copy()
    rising = full_rising.copy()
    fastest = np.zeros(capacity.size)
    key = np.empty(capacity.size)
    who = np.empty(capacity.size, dtype=np.int64)
    size = 0
    for i in range(capacity.size):
        if rising[i] > 0 and dirty[root[i]]:
            key[size] = max(left[i], 0.0) / load[i]
            who[size] = i
            size += 1
    for i in range(size // 2 - 1, -1, -1):
        _sink(key, who, size, i)
    rate = np.full(cap.size, -1.0)
    waiting = np.empty(order.size, dtype=np.int64)
    count = 0
    for k in order:
        if dirty[root[link[first[k]]]]:
            waiting[count] = k
            count += 1
    unfrozen = count
    stack = np.empty(count, dtype=np.int64)
    lowest = 0
    while unfrozen > 0:
        level = np.inf
        bottleneck = -1
        while size > 0:
            here = who[0]
            if rising[here] == 0:
                size -= 1
                key[0], who[0] = key[size], who[size]
                _sink(key, who, size, 0)
                continue
            reached = max(left[here], 0.0) / load[here]
            if reached == key[0]:
                level, bottleneck = reached, here
                break
            key[0] = reached
            _sink(key, who, size, 0)
        top = 0
        while lowest < count and (rate[waiting[lowest]] >= 0.0 or cap[waiting[lowest]] <= level):
            k = waiting[lowest]
            if rate[k] < 0.0:
                stack[top] = k
                top += 1
                rate[k] = cap[k]
            lowest += 1
        if top == 0:
            for c in range(begin[bottleneck], begin[bottleneck] + length[bottleneck]):
                k = crossing[c]
                if rate[k] < 0.0 and not ended[k]:
                    stack[top] = k
                    top += 1
                    rate[k] = level
        unfrozen -= top
        for t in range(top):
            k = stack[t]
            for q in range(first[k], first[k + 1]):
                here = link[q]
                fastest[here] = max(fastest[here], rate[k])
                left[here] -= rate[k] * take[q]
                load[here] -= take[q]
                rising[here] -= 1
    for i in range(capacity.size):
        if dirty[root[i]]:
            reach[i] = max(left[i], fastest[i])
    return rate


@nb.njit(cache=True)
def share_out(
    now: int, order: Ints, flows: Flows, capacity: Floats, dirty: Bools, reach: Floats, crossings: Crossings
) -> int:
    """Set the new rate and end time of every class in a changed (``dirty``) component, in place.

    The bytes that a class has moved are computed from the exact elapsed ticks, and only when its rate changes; its
    first rate counts from the instant at which it joined, which may be a little before ``now``. Returns a class that
    would not end before the end of the clock, or -1.
    """
    rate, remaining, since, end = flows.rate, flows.remaining, flows.since, flows.end
    fresh = fill(order, flows.ended, dirty, flows.cap, capacity, reach, crossings)
    starved = -1
    for k in order:
        if fresh[k] < 0.0 or fresh[k] == rate[k]:
            continue
        if rate[k] >= 0.0:
            remaining[k] = max(remaining[k] - rate[k] * ((now - since[k]) * TICK_S), 0.0)
            since[k] = now
        rate[k] = fresh[k]
        needed = remaining[k] / (fresh[k] * TICK_S) if fresh[k] > 0.0 else np.inf
        if needed < LATEST - since[k]:
            end[k] = max(since[k] + np.int64(needed + 0.5), now)
        else:
            end[k] = FOREVER_PS
            starved = k
    return starved


@nb.njit(cache=True)
def smallest(values: Ints, rank: int) -> int:
    """Return the ``rank``-th smallest of ``values``, counted from 0, by Hoare's selection; reorders ``values``.

    Numba takes eight seconds to compile np.partition on a fresh machine, and a fraction of a second for this.
    """
    low, high = 0, values.size - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            break
    return int(values[rank])


@nb.njit(cache=True)
def next_batch(order: Ints, flows: Flows, window: float, part: float) -> tuple[int, Ints, int]:
    """Find the classes that end together: (first end, classes, instant at which others can use their bandwidth).

    They end within ``window`` times the mean age of the flowing classes after the first end, and are at most the share
    ``part`` of these, but at least one. The instant is the mean of their ends, weighted by rate, so that bandwidth
    freed too late and bandwidth freed too early cancel.
    """
    end, born, weight, rate = flows.end, flows.born, flows.weight, flows.rate
    first = np.int64(FOREVER_PS)
    for k in order:
        first = min(first, end[k])
    flowing = order.size
    ages = 0.0
    for k in order:
        ages += first - born[k]
    horizon = first + np.int64(window * max(ages / flowing, 0.0)) if flowing > 0 else first
    found = np.empty(flowing, dtype=np.int64)
    count = 0
    for k in order:
        if end[k] <= horizon:
            found[count] = k
            count += 1
    most = max(1, int(part * flowing))
    if count > most:
        horizon = np.int64(smallest(end[found[:count]], most - 1))
    taken = 0
    late = 0.0
    moved = 0.0
    for i in range(count):
        k = found[i]
        if end[k] <= horizon:
            found[taken] = k
            taken += 1
            late += weight[k] * rate[k] * (end[k] - first)
            moved += weight[k] * rate[k]
    release = first + np.int64(late / moved) if moved > 0.0 else first
    return int(first), found[:taken].copy(), int(release)


def solve(
    now: int, order: Ints, flows: Flows, capacity: Floats, dirty: Bools, reach: Floats, crossings: Crossings,
    window: float, part: float,
) -> tuple[int, int, Ints, Ints, int]:  # fmt: skip
    """Update rates (:func:`share_out`) and find the classes that end next (:func:`next_batch`), in one call.

    Returns a class that would not end before the end of the clock, or -1; the first end; the classes of the next batch,
    by end; [owner, low, high, end] of each of these; and the instant at which others can use their bandwidth.
    """
    found: tuple[int, int, Ints, Ints, int]
    found = _solve(now, order, *flows, capacity, dirty, reach, tuple(crossings), window, part)
    return found


@nb.njit(cache=True)
def _solve(
    now: int, order: Ints, path: Ints, weight: Floats, cap: Floats, remaining: Floats, rate: Floats, since: Ints,
    born: Ints, end: Ints, owner: Ints, low: Ints, high: Ints, ended: Bools, capacity: Floats, dirty: Bools,
    reach: Floats, crossings: Crossings, window: float, part: float,
) -> tuple[int, int, Ints, Ints, int]:  # fmt: skip
    # Numba takes 0.5 us to enter a function with ten arrays, 6 us with a NamedTuple of ten: names are put on inside.
    flows = Flows(path, weight, cap, remaining, rate, since, born, end, owner, low, high, ended)
    starved = share_out(now, order, flows, capacity, dirty, reach, crossings)
    first, gone, release = next_batch(order, flows, window, part)
    sort_by(gone, end)
    rows = np.empty((gone.size, 4), dtype=np.int64)
    for i in range(gone.size):
        k = gone[i]
        rows[i, 0], rows[i, 1], rows[i, 2], rows[i, 3] = owner[k], low[k], high[k], end[k]
    return starved, first, gone, rows, release


@nb.njit(cache=True)
def patience(path: Ints, cap: Floats, size: Floats, paths: Paths, reach: Floats, window: float) -> int:
    """Ticks that new classes may wait to join: ``window`` times the shortest time that one of them could take now."""
    shortest = LATEST * TICK_S
    for c in range(path.size):
        rate = cap[c]
        for q in range(paths.pointer[path[c]], paths.pointer[path[c] + 1]):
            rate = min(rate, reach[paths.link[q]] / paths.share[q])
        shortest = min(shortest, size[c] / rate)
    return int(window * shortest * PICOSECONDS)
