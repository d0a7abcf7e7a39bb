"""Max-min fair rates on shared links, at flow level: progressive filling over the part of the network that changed.

All rates rise together; a class of flows stops rising when it reaches its own cap or when a link that it crosses is
full. A flow may take more or less of a link than its nominal rate (its ``share``), which is how a collective occupies
the links of its ring. Source of the method: Bertsekas and Gallager, Data Networks, section 6.5.2; caps and shares are
ours. Classes are numbered by their position, sorted by cap; links that flows of one label cross feel each other.
"""

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from simgnn.sim.clock import FOREVER_PS, PICOSECONDS

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
TICK_S = 1.0 / PICOSECONDS
LATEST = float(FOREVER_PS)


class Crossings(NamedTuple):
    """Which class crosses which link, built when classes join; classes that end are marked and stay until then.

    ``first`` [classes + 1], ``link``, ``take``: links of each class and what one unit of its rate takes of them.
    ``start`` [links + 1], ``crossing``: the same by link. ``label`` [links]: component, -1 where nothing flows.
    ``load`` and ``rising`` [links]: sum of ``take`` and number of the classes that have not ended.
    """

    first: Ints
    link: Ints
    take: Floats
    start: Ints
    crossing: Ints
    label: Ints
    load: Floats
    rising: Ints


@nb.njit(cache=True)
def cross(path: Ints, weight: Floats, pointer: Ints, path_link: Ints, path_share: Floats, links: int) -> Crossings:
    """The crossings of classes that take the paths ``path`` (CSR ``pointer``, ``path_link``, ``path_share``)."""
    first = np.zeros(path.size + 1, dtype=np.int64)
    for k in range(path.size):
        first[k + 1] = first[k] + pointer[path[k] + 1] - pointer[path[k]]
    link = np.empty(first[-1], dtype=np.int64)
    take = np.empty(first[-1])
    start = np.zeros(links + 1, dtype=np.int64)
    load = np.zeros(links)
    root = np.arange(links)
    for k in range(path.size):
        origin = pointer[path[k]]
        for q in range(first[k], first[k + 1]):
            here = path_link[origin + q - first[k]]
            link[q] = here
            take[q] = weight[k] * path_share[origin + q - first[k]]
            start[here + 1] += 1
            load[here] += take[q]
            # Join the components of this class's first link and this one.
            a, b = link[first[k]], here
            while root[a] != a:
                root[a] = root[root[a]]
                a = root[a]
            while root[b] != b:
                root[b] = root[root[b]]
                b = root[b]
            root[max(a, b)] = min(a, b)
    rising = start[1:].copy()
    label = np.full(links, -1, dtype=np.int64)
    for i in range(links):
        start[i + 1] += start[i]
        if rising[i] > 0:
            a = i
            while root[a] != a:
                a = root[a]
            label[i] = a
    crossing = np.empty(first[-1], dtype=np.int64)
    filled = start[:-1].copy()
    for k in range(path.size):
        for q in range(first[k], first[k + 1]):
            crossing[filled[link[q]]] = k
            filled[link[q]] += 1
    return Crossings(first, link, take, start, crossing, label, load, rising)


@nb.njit(cache=True)
def fill(ended: Bools, dirty: Bools, cap: Floats, capacity: Floats, crossings: Crossings) -> Floats:
    """Max-min fair rate of the classes whose component has a dirty label, float64 [classes]; -1 for all others."""
    first, link, take, start, crossing, label, full_load, full_rising = crossings
    left = capacity.copy()
    load = full_load.copy()
    rising = full_rising.copy()
    rate = np.full(cap.size, -1.0)
    queue = np.empty(capacity.size, dtype=np.int64)
    queued = 0
    for i in range(capacity.size):
        if rising[i] > 0 and dirty[label[i]]:
            queue[queued] = i
            queued += 1
    waiting = np.empty(cap.size, dtype=np.int64)
    count = 0
    for k in range(cap.size):
        if not ended[k] and dirty[label[link[first[k]]]]:
            waiting[count] = k
            count += 1
    unfrozen = count
    stack = np.empty(count, dtype=np.int64)
    lowest = 0
    while unfrozen > 0:
        level = np.inf
        bottleneck = -1
        i = 0
        while i < queued:
            here = queue[i]
            if rising[here] == 0:
                queued -= 1
                queue[i] = queue[queued]
                continue
            reached = max(left[here], 0.0) / load[here]
            if reached < level or (reached == level and here < bottleneck):
                level = reached
                bottleneck = here
            i += 1
        top = 0
        while lowest < count and (rate[waiting[lowest]] >= 0.0 or cap[waiting[lowest]] <= level):
            k = waiting[lowest]
            if rate[k] < 0.0:
                stack[top] = k
                top += 1
                rate[k] = cap[k]
            lowest += 1
        if top == 0:
            for c in range(start[bottleneck], start[bottleneck + 1]):
                k = crossing[c]
                if rate[k] < 0.0 and not ended[k]:
                    stack[top] = k
                    top += 1
                    rate[k] = level
        unfrozen -= top
        if unfrozen == 0:
            break
        for t in range(top):
            k = stack[t]
            for q in range(first[k], first[k + 1]):
                here = link[q]
                left[here] -= rate[k] * take[q]
                load[here] -= take[q]
                rising[here] -= 1
    return rate


@nb.njit(cache=True)
def end_classes(gone: Ints, dirty: Bools, crossings: Crossings) -> None:
    """Take the load of ended classes off their links, and mark their components dirty."""
    for i in range(gone.size):
        k = gone[i]
        dirty[crossings.label[crossings.link[crossings.first[k]]]] = True
        for q in range(crossings.first[k], crossings.first[k + 1]):
            here = crossings.link[q]
            crossings.load[here] -= crossings.take[q]
            crossings.rising[here] -= 1


@nb.njit(cache=True)
def share_out(
    now: int,
    dirty: Bools,
    ended: Bools,
    cap: Floats,
    rate: Floats,
    remaining: Floats,
    since: Ints,
    end: Ints,
    capacity: Floats,
    crossings: Crossings,
) -> int:
    """Give every class in a dirty component its new rate and end, in place.

    What a class has moved is carried from the exact elapsed ticks, and only when its rate changes. Returns a class that
    would not end before the clock does, or -1.
    """
    fresh = fill(ended, dirty, cap, capacity, crossings)
    starved = -1
    for k in range(cap.size):
        if fresh[k] < 0.0 or fresh[k] == rate[k]:
            continue
        remaining[k] = max(remaining[k] - rate[k] * ((now - since[k]) * TICK_S), 0.0)
        since[k] = now
        rate[k] = fresh[k]
        needed = remaining[k] / (fresh[k] * TICK_S) if fresh[k] > 0.0 else np.inf
        if needed < LATEST - now:
            end[k] = now + np.int64(needed + 0.5)
        else:
            end[k] = FOREVER_PS
            starved = k
    return starved


@nb.njit(cache=True)
def smallest(values: Ints, rank: int) -> int:
    """The value that would stand at ``rank`` if ``values`` were sorted; reorders them. Hoare's selection.

    np.partition would do, but takes Numba eight seconds to compile on a fresh machine, this a fraction of one.
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
def next_batch(
    ended: Bools, end: Ints, born: Ints, weight: Floats, rate: Floats, window: float, part: float
) -> tuple[int, Ints, int]:
    """The classes to end together: (first end, classes, instant at which their rate is given to others).

    The batch reaches from the first end over ``window`` times the mean age of the classes that flow, and holds no more
    than ``part`` of them, or one. The instant is the mean of the ends, weighted by rate, so that what is
    given away too late and too early cancels.
    """
    first = np.int64(FOREVER_PS)
    births = 0.0
    flowing = 0
    for k in range(end.size):
        if not ended[k]:
            flowing += 1
            first = min(first, end[k])
            births += born[k]
    age = first - births / flowing if flowing > 0 else 0.0
    horizon = first + np.int64(window * max(age, 0.0))
    found = np.empty(end.size, dtype=np.int64)
    count = 0
    for k in range(end.size):
        if not ended[k] and end[k] <= horizon:
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
