"""Bundles of messages in dense rounds: messages between one rank and all ranks of one host are simulated as one.

Where every rank sends to every other, a round of P ranks has P (P - 1) messages, each with its own flow. A bundle joins
the messages between one rank and the ranks of one host that start at one instant. They have the mean of their sizes and
caps, take an even share of each link that any message between this rank and that host crosses, and end together. So
bytes by rank, by host and by link between hosts are exact. Not modelled: the order in which messages of a bundle end,
and how unevenly the ranks of a host share its bytes. A message starts when the later of its two ends is ready; it
belongs to the bundle of that rank and of the host at the other end.
"""

from typing import NamedTuple

import numpy as np

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.messages import end_pairs
from simgnn.sim.network.flow_table import Floats, Ints, Paths

BUNDLED_ABOVE = 65_536
"""Rounds with more messages than this (256 ranks that all send to one another) are simulated in bundles."""


class BundlePaths(NamedTuple):
    """Paths of bundles. For each message of a round: the path of its bundle if its sender is ready last (``sent``) and
    if its receiver is (``received``), as a position in ``paths``."""

    paths: Paths
    sent: Ints
    received: Ints


def bundle_paths(machine: Machine, source: Ints, target: Ints, backend: str) -> BundlePaths:
    """Compute the paths of the bundles of a round, whose message k goes from ``source[k]`` to ``target[k]``."""
    host = np.array(machine.hosts, dtype=np.int64)
    message, link = crossed_links(machine, source, target, backend)
    hosts, links = int(host.max()) + 1, len(machine.links) + 1
    keys = source * hosts + host[target], host[source] * machine.ranks + target
    numbers, parts, base = [], [], 0
    for key in keys:
        groups, which, sizes = np.unique(key, return_inverse=True, return_counts=True)
        taken, counts = np.unique(which[message] * links + link, return_counts=True)
        group = taken // links
        parts.append((np.bincount(group, minlength=len(groups)), taken % links, counts / sizes[group]))
        numbers.append(which + base)
        base += len(groups)
    lengths, crossed, shares = (np.concatenate(column) for column in zip(*parts, strict=True))
    return BundlePaths(Paths(np.append(0, np.cumsum(lengths)), crossed, shares), *numbers)


def even_out(starts: Ints, bundles: Ints, values: Floats) -> Floats:
    """Replace the value of each message by the mean over the messages of its bundle that start at the same instant."""
    order = np.lexsort((bundles, starts))
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = (np.diff(starts[order]) != 0) | (np.diff(bundles[order]) != 0)
    heads = np.flatnonzero(fresh)
    counts = np.diff(np.append(heads, len(order)))
    means = np.empty(len(order))
    means[order] = np.repeat(np.add.reduceat(values[order], heads) / counts, counts)
    return means


def crossed_links(machine: Machine, source: Ints, target: Ints, backend: str) -> tuple[Ints, Ints]:
    """All pairs (message, link that it crosses). A message without links gets an extra last link that never fills."""
    which, routes = end_pairs(machine, source, target, backend)
    lengths = np.array([len(route.links) for route in routes], dtype=np.int64)
    flat = np.array([link for route in routes for link in route.links], dtype=np.int64)
    begin = np.cumsum(lengths) - lengths
    counts = lengths[which]
    message = np.repeat(np.arange(len(source)), counts)
    place = np.arange(len(message)) - np.repeat(np.cumsum(counts) - counts, counts)
    link = flat[begin[which[message]] + place]
    name, _ = machine.backend(backend)
    if name in machine.ports:
        port = machine.ports[name]
        ends = np.concatenate((port + 2 * source, port + 2 * target + 1))
        return np.concatenate((message, np.tile(np.arange(len(source)), 2))), np.concatenate((link, ends))
    free = np.flatnonzero(counts == 0)
    return np.concatenate((message, free)), np.concatenate((link, np.full(len(free), len(machine.links))))
