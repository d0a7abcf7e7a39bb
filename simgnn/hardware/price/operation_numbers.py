"""The numbers of a profile that the price of one op depends on, each with its source and its spread."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import hypot
from typing import Any, NamedTuple

import numpy as np

from simgnn.hardware.price.communication import find_collective
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.operations import Question
from simgnn.hardware.price.work import choose_level, stand_in_of
from simgnn.hardware.primitives import COPY, Primitive
from simgnn.hardware.profile.quantities import SOURCES, Source, Strict


class Told(NamedTuple):
    """A number that a price is made of: where the profile holds it, and where it comes from."""

    key: str
    source: Source
    spread: float | None


def numbers_behind(
    question: Question, machine: Machine, at_once: Sequence[int], crossed: Sequence[int] = ()
) -> list[Told]:
    """Every number of the profile that the op's price on this machine depends on, each once.

    ``at_once`` [P]: at which concurrency each rank's work is priced. ``crossed``: positions in ``machine.links`` of
    the links of copies from and to a host's memory; empty where there is no such copy, or it is work of the processor.
    """
    form = question.form
    parts: list[Iterator[Told]]
    if form.moves == "copy" and crossed:
        parts = [_links(machine, crossed)]
    elif form.primitive is not None or form.moves == "copy":
        parts = [_curves(form.primitive or COPY, question.sizes, machine, at_once)]
    elif machine.ranks < 2:
        parts = []
    else:
        call = _call(question, machine)
        parts = [iter(call), _links(machine, crossed)]
        told_whole = question.op == "barrier" or any(told.key.endswith(".bus_bandwidth") for told in call)
        whole = form.moves == "collective" and told_whole
        if not whole:
            library, described = machine.backend(question.backend)
            parts += [_walk(f"backends.{library}.{part}", getattr(described, part)) for part in ("message", "ports")]
            routes = (machine.route(i, j, question.backend) for i, j in _pairs(question, machine.ranks))
            parts.append(_links(machine, [link for route in routes for link in route.links]))
    return list({told.key: told for told in chain(*parts)}.values())


def _curves(primitive: Primitive, sizes: Mapping[str, int], machine: Machine, at_once: Sequence[int]) -> Iterator[Told]:
    """The curve that each kind of device reads, or what stands in for one: how far that is off nobody has measured."""
    for rank, kind in enumerate(machine.types):
        stand_in = stand_in_of(machine.device(rank), primitive.name)
        if stand_in is not None:
            pieces = stand_in({name: np.array(float(size)) for name, size in sizes.items()})
            names = " and ".join(dict.fromkeys(name for name, _ in pieces))
            yield Told(f"devices.{kind}.curves.{primitive.name} (none: as {names})", "assumed", None)
            continue
        level = choose_level(machine.device(rank), kind, primitive.name, at_once[rank], machine.threads_per_rank[rank])
        curve = level.curve
        where = f"devices.{kind}.curves.{primitive.name} ({curve.concurrency} x {curve.threads})"
        # how far the curve is off, and how far one execution is from the mean of many
        apart = [share for share in (curve.spread, curve.jitter, curve.drift) if share is not None]
        yield Told(where, curve.source, hypot(*apart) if apart else None)


def _links(machine: Machine, positions: Sequence[int]) -> Iterator[Told]:
    """The kinds of links at these positions of ``machine.links``."""
    network, described = machine.network, machine.profile.links
    names = {id(link): name for name, link in described.items()}
    kinds = {edge["link"]: names[id(edge["type"])] for _, _, edge in network.graph.edges(data=True)}
    kinds |= {position: names[id(link)] for position, link in network.loops.values()}
    for name in dict.fromkeys(kinds[position] for position in positions):
        yield from _walk(f"links.{name}", described[name])


def _call(question: Question, machine: Machine) -> list[Told]:
    """What a call of the whole group is described by; a send is none."""
    if question.form.moves == "send":
        return []
    library, _ = machine.backend(question.backend)
    nbytes = float(question.sizes.get("bytes", 0))
    entry, exact = find_collective(machine, question.op, question.backend, range(machine.ranks), nbytes)
    key = f"backends.{library}.{question.op}"
    told = list(_walk(key, entry))
    name = "own_spread" if exact else "carried_spread"
    if getattr(entry, name) is None:
        return told
    # that of the size asked for, instead of those of a whole regime
    here = Told(f"{key}.{name}", entry.floor.source, entry.spread_at(nbytes, exact))
    return [*(number._replace(spread=None) for number in told), here]


def weakest(numbers: Sequence[Told]) -> Source | None:
    """The least trustworthy source among them: a price is no better."""
    return max((told.source for told in numbers), key=SOURCES.index, default=None)


def _pairs(question: Question, ranks: int) -> Iterator[tuple[int, int]]:
    """Who sends to whom; of a collective the ring, which every algorithm's hops are alike to."""
    if question.form.moves == "send":
        yield question.sizes["from"], question.sizes["to"]
    elif question.form.moves == "collective":
        yield from ((rank, (rank + 1) % ranks) for rank in range(ranks) if ranks > 1)
    else:
        matrix = question.matrix
        yield from (
            (i, j) for i in range(ranks) for j in range(ranks) if i != j and (matrix is None or matrix[i][j] > 0)
        )


def _walk(key: str, value: Any) -> Iterator[Told]:
    """Every sourced number of a table."""
    if isinstance(value, tuple):
        for number, entry in enumerate(value):
            yield from _walk(f"{key}.{number}", entry)
    elif isinstance(value, Strict):
        source = getattr(value, "source", None)
        if source is not None:
            yield Told(key, source, getattr(value, "spread", None))
        for name in type(value).model_fields:
            yield from _walk(f"{key}.{name}", getattr(value, name))
