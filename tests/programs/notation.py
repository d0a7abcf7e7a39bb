"""A short way to write programs down by hand. ``after = "a b<2 c<<1"``: a of this turn, b two steps, c one epoch back;
``reads = "x y<1"`` likewise for copies of ring buffers. ``x[:part]``: the rows of x that the columns ``part/first`` and
``part/rows`` state; ``x[list]``: rows that the buffer ``list`` names, of which these columns state the turn's own."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from simgnn.program.calendar import Calendar
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Access, Buffer, Dependency, Group, Op, Part, Stream, Transfer, Work
from simgnn.program.program import Program, Template
from simgnn.program.sizes import Column, Route, SizeTable


def _parse(word: str) -> tuple[str, int, int]:
    match = re.fullmatch(r"(.+?)(?:<(\d+))?(?:<<(\d+))?", word)
    assert match is not None
    return match[1], int(match[2] or 0), int(match[3] or 0)


def accesses(words: str) -> tuple[Access, ...]:
    """Buffers that an op touches."""
    found = []
    for word in words.split():
        name, steps, epochs = _parse(word)
        match = re.fullmatch(r"(.+)\[(:?)(.+)\]", name)
        if match is None:
            found.append(Access(name, steps, epochs))
            continue
        part = Part(Column(f"{match[3]}/rows"), Column(f"{match[3]}/first"), "" if match[2] else match[3])
        found.append(Access(match[1], steps, epochs, part))
    return tuple(found)


def op(name: str, kind: str, stream: str, reads: str = "", writes: str = "", after: str = "", **fields: Any) -> Op:
    """One op; compute kinds get some elementwise work unless told otherwise."""
    if kind in ("aggregate", "transform", "elementwise", "loss", "select", "encode", "decode", "add", "optimize"):
        fields.setdefault("work", (Work("elementwise", {"rows": 1000, "width": 64, "passes": 3, "item_bytes": 4}),))
    if kind == "sample":
        fields.setdefault("work", (Work("sample", {"vertices": 100, "edges": 1000, "item_bytes": 8}),))
    if kind in ("h2d", "d2h", "copy"):
        fields.setdefault("transfer", Transfer(256, 100))
    if kind in ("allreduce", "allgather"):
        fields.setdefault("transfer", Transfer(1024))
    dependencies = tuple(Dependency(*_parse(word)) for word in after.split())
    read, written = accesses(reads), accesses(writes)
    lists = dict.fromkeys(a.part.places for a in read + written if a.part is not None and a.part.places)
    return Op(name, OpKind(kind), stream, read + tuple(map(Access, lists)), written, dependencies, **fields)


def program(
    name: str,
    templates: Mapping[str, Sequence[Op]],
    calendar: Calendar,
    buffers: Sequence[Buffer],
    streams: Sequence[Stream],
    hosts: Sequence[int],
    columns: Mapping[str, Any] | None = None,
    routes: Mapping[str, Route] | None = None,
) -> Program:
    """A program; every group that a stream names exists, on Gloo where there are several."""
    names = [stream.group for stream in streams if stream.group is not None]
    groups = {group: Group(group, backend="gloo" if len(names) > 1 else "default") for group in names}
    return Program(
        name=name,
        templates={key: Template(key, tuple(ops)) for key, ops in templates.items()},
        calendar=calendar,
        buffers={buffer.name: buffer for buffer in buffers},
        streams={stream.name: stream for stream in streams},
        groups=groups,
        sizes=SizeTable(
            len(hosts), {key: np.asarray(value, dtype=np.int64) for key, value in (columns or {}).items()}, routes or {}
        ),
        hosts=tuple(hosts),
    )


def all_pairs(ranks: int, rows: int) -> Route:
    """The same number of rows between any two ranks."""
    matrix = np.full((ranks, ranks), rows, dtype=np.int64)
    np.fill_diagonal(matrix, 0)
    return Route.from_matrix(matrix)
