"""Messages of dense rounds, bundled: what a rank exchanges with all ranks of one host flows as one.

Where every rank talks to every other, a round of P ranks has P (P - 1) messages, each a flow of its own. In a bundle
the messages between one rank and the ranks of one host that start at one instant have the mean of their sizes and
caps, take an even share of each link that any message between this rank and that host takes, and end together. So
bytes are kept by rank, by host and by link between hosts; what is lost is which of a bundle's messages ends first and
how unevenly a host's own ranks share its bytes. The rank of a bundle is the one that came last, as a message starts
with the later of its two ends.
"""

from typing import NamedTuple

import numpy as np

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.messages import end_pairs
from simgnn.sim.network.flow_table import Floats, Ints, Paths

BUNDLED_ABOVE = 65_536
"""Rounds of more messages than this (256 ranks that all talk to one another) are bundled."""


class BundlePaths(NamedTuple):
    """Paths of bundles, and of each message of a round the path of its bundle when its sender comes last (``sent``)
    and when its receiver does (``received``), counted from the first of ``paths``."""

    paths: Paths
    sent: Ints
    received: Ints


def bundle_paths(machine: Machine, source: Ints, target: Ints, backend: str) -> BundlePaths:
    """Message k of a round goes from rank ``source[k]`` to rank ``target[k]``."""
    host = np.array(machine.hosts, dtype=np.int64)
    message, link = _crossed(machine, source, target, backend)
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
    """The mean of the values of messages that start at one instant in one bundle, for each of them."""
    order = np.lexsort((bundles, starts))
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = (np.diff(starts[order]) != 0) | (np.diff(bundles[order]) != 0)
    heads = np.flatnonzero(fresh)
    counts = np.diff(np.append(heads, len(order)))
    means = np.empty(len(order))
    means[order] = np.repeat(np.add.reduceat(values[order], heads) / counts, counts)
    return means


def _crossed(machine: Machine, source: Ints, target: Ints, backend: str) -> tuple[Ints, Ints]:
    """(message, link that it crosses) of all messages; without any, the link after the last, which never fills."""
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
