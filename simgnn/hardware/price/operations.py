"""The ops whose time ``simgnn hardware time`` predicts: parse an op and its sizes from text, and place its ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, permutations
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from simgnn.errors import ConfigError, HardwareError
from simgnn.hardware.price.collectives import find_collective
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.uncertainty import (
    Effect,
    assumed_spread,
    call_spread,
    curve_spread,
    effect_of,
    stand_in_spread,
)
from simgnn.hardware.price.work import choose_level, features, stand_in_of
from simgnn.hardware.primitives import COPY, LARGEST, PRIMITIVES, SIZES, SPMM, Primitive
from simgnn.hardware.profile.error_model import combined
from simgnn.hardware.profile.profile import Profile
from simgnn.hardware.profile.quantities import SOURCES, Source, sourced
from simgnn.limits import MAX_RANKS
from simgnn.spelling import nearest
from simgnn.units import parse


@dataclass(frozen=True)
class Form:
    """The inputs of an op. ``sizes``: name -> default (None: required; a name: equal to that size).

    ``primitive``: the device work of the op, or None. ``moves``: how the op communicates: "collective", "exchange",
    "send", "copy" (between host and device), or "" (not at all).
    """

    sizes: Mapping[str, int | str | None]
    primitive: Primitive | None = None
    moves: str = ""
    help: str = ""


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _work(primitive: Primitive) -> Form:
    words = {name: option(name) for name in primitive.sizes}
    words |= {
        name: f"[{words[name]}, default: {default}]" for name, default in primitive.sizes.items() if default is not None
    }
    return Form(MappingProxyType({**primitive.sizes, "item_bytes": 4}), primitive, help=" ".join(words.values()))


FORMS: Mapping[str, Form] = MappingProxyType(
    {
        "allreduce": Form({"bytes": None}, moves="collective", help="--bytes of the buffer"),
        "broadcast": Form({"bytes": None, "root": 0}, moves="collective", help="--bytes of the buffer, [--root R]"),
        "allgather": Form({"bytes": None}, moves="collective", help="--bytes of one rank's part"),
        "barrier": Form({}, moves="collective"),
        "send": Form({"bytes": None, "from": 0, "to": 1}, moves="send", help="--bytes, [--from R] [--to R]"),
        "exchange": Form({"bytes": 0}, moves="exchange", help="--matrix FILE, or --bytes for every pair"),
        "h2d": Form({"bytes": None}, moves="copy", help="--bytes from host memory to the device, on every rank"),
        "d2h": Form({"bytes": None}, moves="copy", help="--bytes from the device to host memory, on every rank"),
        "aggregate": _work(SPMM),
        **{name: _work(primitive) for name, primitive in PRIMITIVES.items()},
    }
)
"""Every op whose time a user can ask for, by name."""


@dataclass(frozen=True)
class Question:
    """One op with all sizes, as integers in SI units. ``matrix``: bytes [sender][receiver] of an exchange.

    ``ranks``: the number of ranks that take part (0: as many as the machine has), placed host by host.
    """

    op: str
    sizes: Mapping[str, int]
    ranks: int = 0
    matrix: tuple[tuple[int, ...], ...] | None = None
    backend: str = "default"
    form: Form = field(repr=False, default=Form({}))


def read_question(
    op: str,
    given: Mapping[str, str],
    *,
    ranks: int | None = None,
    matrix: Sequence[Sequence[int]] | None = None,
    backend: str = "default",
) -> Question:
    """Parse an op and its options from text: bytes with a unit ("64MiB"), counts without ("1e6").

    Raises :class:`ConfigError` with every invalid option.
    """
    form = FORMS.get(op)
    if form is None:
        raise ConfigError(f"OP: got '{op}', expected one of {', '.join(FORMS)}{nearest(op, FORMS)}")
    faults, sizes = [], {}
    for name, text in given.items():
        if name not in form.sizes:
            accepted = ", ".join(map(option, form.sizes)) or "no sizes"
            faults.append(f"{option(name)}: '{op}' has no such size{nearest(name, form.sizes)}; it takes: {accepted}")
            continue
        try:
            sizes[name] = _whole(name, text)
        except ValueError as error:
            faults.append(f"{option(name)}: {error}")
    for name, default in form.sizes.items():
        if name not in given and default is None:
            faults.append(f"{option(name)}: missing; '{op}' takes {form.help}")
        elif name not in given and default is not None:
            sizes[name] = sizes.get(default, 0) if isinstance(default, str) else default
    if ranks is not None and not 1 <= ranks <= MAX_RANKS:
        faults.append(f"--ranks: got {ranks:,}, expected 1 to {MAX_RANKS:,}")
    faults += _matrix_faults(op, form, given, matrix, ranks)
    if form.moves == "send" and not faults and sizes["from"] == sizes["to"]:
        faults.append(f"--to: got rank {sizes['to']}, which also sends; expected a different rank than --from")
    highest = max((sizes.get(name, 0) for name in ("from", "to", "root")), default=0)
    if not faults and ranks is not None and highest >= ranks:
        faults.append(f"--ranks: got {ranks}, expected more than {highest}, the highest rank in --from, --to or --root")
    if faults:
        raise ConfigError(faults)
    if matrix is not None:
        rows = tuple(tuple(int(entry) for entry in row) for row in matrix)
        return Question(op, MappingProxyType({}), len(rows), rows, backend, form)
    count = max(ranks or 0, highest + 1) if form.moves == "send" else ranks or 0
    return Question(op, MappingProxyType(sizes), count, None, backend, form)


def _whole(name: str, text: str) -> int:
    """Parse a size as an integer: bytes must have a unit, counts may have one."""
    if name in ("from", "to", "root"):
        if not text.strip().isdecimal() or int(text) >= MAX_RANKS:
            raise ValueError(f"got '{text}', expected a rank, numbered from 0 to {MAX_RANKS - 1:,}")
        return int(text)
    dimension, least, most = SIZES[name]
    try:
        value = float(text) if dimension != "bytes" or name == "item_bytes" else parse(text, dimension)
    except ValueError:
        value = parse(text, dimension)
    if not isfinite(value) or value != int(value) or not least <= value <= LARGEST:
        raise ValueError(f"got '{text}', expected a whole number from {least} to 2^62 ({LARGEST:.1e})")
    if value > most:
        raise ValueError(f"got '{text}', expected {least} or {most}")
    return int(value)


def _matrix_faults(
    op: str, form: Form, given: Mapping[str, str], matrix: Sequence[Sequence[int]] | None, ranks: int | None
) -> list[str]:
    if form.moves != "exchange":
        return [] if matrix is None else [f"--matrix: '{op}' takes no matrix; only 'exchange' does"]
    if matrix is None:
        return [] if "bytes" in given else [f"--matrix: missing; '{op}' takes --matrix FILE, or --bytes for every pair"]
    faults = ["--bytes: an exchange takes --matrix or --bytes, got both"] if "bytes" in given else []
    count = len(matrix)
    if count < 1 or any(len(row) != count for row in matrix):
        lengths = ", ".join(map(str, sorted({len(row) for row in matrix}))) or "none"
        return [
            *faults,
            f"--matrix: got {count} rows of {lengths} numbers, expected P rows of P numbers: bytes from rank i to j",
        ]
    if ranks is not None and ranks != count:
        faults.append(
            f"--ranks: got {ranks}, but the matrix has {count} ranks; expected the same number, or no --ranks"
        )
    wrong = next((entry for entry in chain(*matrix) if entry != int(entry) or not 0 <= entry <= LARGEST), None)
    if wrong is not None:
        faults.append(f"--matrix: got {wrong:g}, expected whole numbers of bytes, 0 to {LARGEST:g}")
    return faults


def spread_ranks(profile: Profile, ranks: int, per_host: int | None = None) -> tuple[int, ...]:
    """Return the host of each of ``ranks`` ranks (0: as many as fit). Hosts are filled in order, one rank per GPU.

    On CPUs, a host takes the number of ranks that the testbed declares, else the number of its processors or of the
    calibrated ranks, whichever is larger. More ranks are spread evenly. ``per_host`` fixes the number. Raises
    :class:`HardwareError` for more ranks than the machine holds.
    """
    machines = profile.topology.host_names()
    if per_host is not None and not 1 <= per_host <= MAX_RANKS:
        raise HardwareError(f"--ranks-per-host: got {per_host:,}, expected 1 to {MAX_RANKS:,}")
    room, flexible = [], True
    for _, host in machines:
        kinds = [profile.devices[placed.type].kind for placed in host.devices for _ in placed.names()]
        gpus = kinds.count("gpu")
        flexible = flexible and not gpus
        room.append(per_host or gpus or profile.usual_ranks(len(kinds)))
    if ranks > sum(room) and flexible and per_host is None:
        room = [-(-ranks // len(machines))] * len(machines)
    count = ranks or sum(room)
    if count > MAX_RANKS:
        raise HardwareError(
            f"--ranks: the hosts of '{profile.meta.name}' would take {count:,} ranks, expected 1 to {MAX_RANKS:,}"
        )
    if count > sum(room):
        raise HardwareError(
            f"--ranks: got {ranks}, but '{profile.meta.name}' has room for {sum(room)} ranks "
            f"({len(machines)} host{'s' if len(machines) > 1 else ''}); use fewer ranks"
        )
    hosts = [number for number, places in enumerate(room) for _ in range(places)]
    return tuple(hosts[:count])


class Told(NamedTuple):
    """A number of the profile that a price depends on: key, source and relative standard deviation.

    ``effect``: of an assumed number, whose spread the error model states, the part of the op's time that it determines;
    None: the spread is that of the whole time."""

    key: str
    source: Source
    spread: float | None
    effect: Effect | None = None


def numbers_behind(
    question: Question, machine: Machine, at_once: Sequence[int], crossed: Sequence[int] = ()
) -> list[Told]:
    """Return every number of the profile that the price of the op on this machine depends on, each once.

    ``at_once`` [P]: concurrency at which the work of each rank is priced. ``crossed``: links, as positions in
    ``machine.links``, of the copies to and from host memory; empty if there are none.
    """
    form = question.form
    found: list[Told]
    if form.moves == "copy" and crossed:
        found = _links(machine, crossed)
    elif form.primitive is not None or form.moves == "copy":
        found = _curves(form.primitive or COPY, question.sizes, machine, at_once)
    elif machine.ranks < 2:
        found = []
    else:
        found = [*_call(question, machine), *_links(machine, crossed)]
        whole = question.op == "barrier" or any(number.key.endswith(".bus_bandwidth") for number in found)
        if form.moves != "collective" or not whole:
            name, library = machine.backend(question.backend)
            found += _table(f"backends.{name}.message", library.message, name)
            found += _table(f"backends.{name}.ports", library.ports, name)
            routes = [machine.route(i, j, question.backend) for i, j in _pairs(question, machine.ranks)]
            found += _links(machine, [link for route in routes for link in route.links], name)
    return list({number.key: number for number in found}.values())


def weakest(numbers: Sequence[Told]) -> Source | None:
    """Return the least trustworthy source of the numbers that a price depends on."""
    return max((number.source for number in numbers), key=SOURCES.index, default=None)


def _curves(primitive: Primitive, sizes: Mapping[str, int], machine: Machine, at_once: Sequence[int]) -> list[Told]:
    """The curve that prices the work on each kind of device. Where other work stands in for a curve, it is assumed."""
    found = []
    for rank in range(machine.ranks):
        kind, device, origin = machine.worker(rank, primitive.name, at_once[rank])
        key = f"devices.{kind}.curves.{primitive.name}"
        stand_in = stand_in_of(device, primitive.name)
        if stand_in is not None:
            pieces = stand_in({name: np.array(float(size)) for name, size in sizes.items()})
            names = " and ".join(dict.fromkeys(name for name, _ in pieces))
            found.append(Told(f"{key} (none: as {names})", "assumed", stand_in_spread(device.kind, primitive.name)))
            continue
        threads = machine.threads_per_rank[rank]
        curve = choose_level(device, kind, primitive.name, at_once[rank], threads).curve
        # the error of the curve, and the deviation of one execution from the mean of many
        spread = combined(
            curve_spread(device.kind, curve, features(primitive.name, sizes), sizes), curve.jitter, curve.drift
        )
        where = f"none: from {origin}" if origin else f"{curve.concurrency} x {curve.threads}"
        found.append(Told(f"{key} ({where})", curve.source, spread))
    return found


def _links(machine: Machine, positions: Sequence[int], library: str | None = None) -> list[Told]:
    """Numbers of the kinds of links at these positions of ``machine.links``, for messages of a library."""
    network, described = machine.network, machine.profile.links
    names = {id(link): name for name, link in described.items()}
    kinds = {edge["link"]: names[id(edge["type"])] for _, _, edge in network.graph.edges(data=True)}
    kinds |= {position: names[id(link)] for position, link in network.loops.values()}
    used = dict.fromkeys(kinds[position] for position in positions)
    return [number for name in used for number in _table(f"links.{name}", described[name], library)]


def _call(question: Question, machine: Machine) -> list[Told]:
    """Numbers of the profile entry that prices a call of the whole group; empty for a send."""
    if question.form.moves == "send":
        return []
    library, _ = machine.backend(question.backend)
    nbytes = float(question.sizes.get("bytes", 0))
    everyone = range(machine.ranks)
    entry, exact = find_collective(machine, question.op, question.backend, everyone, nbytes)
    key = f"backends.{library}.{question.op}"
    measured, beyond = call_spread(entry, library, machine.ranks, machine.least_ranks_per_host(everyone), nbytes)
    numbers = _table(key, entry, library)
    further = [Told(f"{key} beyond what was measured", entry.floor.source, beyond, "distance")] if beyond else []
    if not exact and entry.bus_bandwidth is not None:
        return [*(number._replace(spread=None) for number in numbers), *further]
    if measured is None:
        return [*numbers, *further]
    # the spread at the requested size, instead of those of a whole regime
    at_size = Told(f"{key}.own_spread", entry.floor.source, measured)
    return [*(number._replace(spread=None) for number in numbers), at_size, *further]


def _pairs(question: Question, ranks: int) -> list[tuple[int, int]]:
    """(sender, receiver) pairs of the op. For a collective: those of a ring, whose hops all algorithms use."""
    if question.form.moves == "send":
        return [(question.sizes["from"], question.sizes["to"])]
    if question.form.moves == "collective":
        return [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    matrix = question.matrix
    return [(i, j) for i, j in permutations(range(ranks), 2) if matrix is None or matrix[i][j] > 0]


def _table(key: str, value: Any, library: str | None = None) -> list[Told]:
    found = []
    for at, part in sourced(value, key):
        assumed = assumed_spread(part, at, library)
        stated = getattr(part, "spread", None)
        found.append(
            Told(at, part.source, stated) if assumed is None else Told(at, part.source, assumed, effect_of(part))
        )
    return found
