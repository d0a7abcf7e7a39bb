"""HongTu: whole epochs in chunks, with unlike steps. For two layers: forward chunks of layer 1, of layer 2, backward
chunks of layer 2 (of which the first also clears the gradients of its inputs), of layer 1, then the update. Aggregates
are kept on the host and only updates are computed again. An evaluation is a sweep of steps of its own: forward chunks
of layer 1, of layer 2, then a sum over ranks.

Layer l: a = A h, h' = a W, after all but the last with ReLU; the loss is cross entropy. Chunks of the last layer add
their metrics, of which the first begins with its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np

from programs.chunked_graph import ChunkedGraph, Ints, by_step
from programs.notation import op, program
from simgnn.planner.update import EVALUATION
from simgnn.policy import METRICS
from simgnn.program.calendar import Calendar, Stretch
from simgnn.program.ops import ITEM_BYTES, Buffer, Op, Stream, Transfer, Work
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Route, reverse_of

WIDTHS = (6, 5, 3)
LISTS = {
    "load_from": "host", "load_to": "device", "sent": "device", "received": "device",
    "owned": "device", "collected": "device", "evict_from": "device", "evict_to": "host",
}  # fmt: skip
"""Lists of rows, and the space in which they lie."""


@cache
def graph_of(ranks: int, chunks: int) -> ChunkedGraph:
    return ChunkedGraph(ranks, chunks)


def batches_of(layers: int, chunks: int) -> list[int]:
    """The batch of each step of an epoch, then of an evaluation; the update and the sum over ranks have none."""
    return [*(list(range(chunks)) * 2 * layers), -1, *(list(range(chunks)) * layers), -1]


@dataclass(frozen=True)
class Training:
    """The ops of a model of some ``widths``, rows of ``item`` bytes an element."""

    widths: tuple[int, ...]
    item: int

    @property
    def layers(self) -> range:
        return range(1, len(self.widths))

    def rows(self, width: int, column: str) -> Transfer:
        return Transfer(self.item * width, Column(column))

    def calendar(self, chunks: int) -> Calendar:
        """Steps of an epoch."""
        back = [
            stretch
            for layer in reversed(self.layers)
            for stretch in (
                Stretch(f"backward/{layer}/open", int(layer > 1)),
                Stretch(f"backward/{layer}", chunks - int(layer > 1)),
            )
        ]
        forward, evaluation = (
            [
                stretch
                for layer in self.layers
                for stretch in (
                    Stretch(f"{phase}/{layer}/open", int(layer == self.layers[-1])),
                    Stretch(f"{phase}/{layer}", chunks - int(layer == self.layers[-1])),
                )
            ]
            for phase in ("forward", "evaluate")
        )
        return Calendar.of_steps([*forward, *back, Stretch("update")], [*evaluation, Stretch("evaluate/sum")])

    def templates(self) -> dict[str, list[Op]]:
        """The ops of each kind of step."""
        found, top = dict[str, list[Op]](), self.layers[-1]
        for phase, make in (("forward", self.forward), ("evaluate", self.evaluate)):
            found |= {f"{phase}/{layer}": make(layer) for layer in self.layers}
            found |= {f"{phase}/{top}/open": make(top, opens=True)}
        found |= {f"backward/{layer}/open": self.backward(layer, opens=True) for layer in self.layers if layer > 1}
        found |= {f"backward/{layer}": self.backward(layer) for layer in self.layers}
        return found | {"update": self.update(), "evaluate/sum": self.sum_evaluation()}

    def evaluate(self, layer: int, opens: bool = False) -> list[Op]:
        """One chunk of a layer in an evaluation, whose last layer leaves metrics alone."""
        ops = [made for made in self.forward(layer, opens) if made.name not in ("keep", "loss")]
        if layer < self.layers[-1]:
            return [
                replace(made, after=tuple(d for d in made.after if d.op not in ("keep", "optimize"))) for made in ops
            ]
        reads = f"out{layer} labels[:own]" + ("" if opens else " evaluation")
        return [
            *(replace(made, after=tuple(d for d in made.after if d.op != "optimize")) for made in ops[:-2]),
            op("loss", "loss", "compute", reads, "evaluation", "transform loss<1", work=self.work(self.widths[-1])),
            op("saved", "select", "host", after="loss saved<1", work=(), module="layer", action="join"),
        ]

    def sum_evaluation(self) -> list[Op]:
        """Sum the metrics of an evaluation over ranks."""
        return [op("sum", "allreduce", "comm", "evaluation", "evaluation", "saved<1",
                   transfer=Transfer(8 * EVALUATION, control=True))]  # fmt: skip

    def forward(self, layer: int, opens: bool = False) -> list[Op]:
        """One chunk of a layer. All chunks of a layer read rows that any chunk of the one before may have saved: the
        first load of a layer waits for the last save, and saves end one after the other. Chunks of the last layer, but
        the one that ``opens`` it, add to the metrics."""
        width, up = self.widths[layer - 1 : layer + 1]
        last = layer == self.layers[-1]
        ops = [
            # "saved" closes each step: it waits for that of the step before, and so for all steps before
            op("load", "h2d", "copy_in", f"h{layer - 1}[load_from]", f"merged{layer}[load_to]",
               "saved<1 aggregate<1 gather<1", transfer=self.rows(width, "load_to/rows")),
            op("gather", "peer_read", "p2p", f"merged{layer}[sent]", f"merged{layer}[received]", "load", route="read",
               transfer=Transfer(self.item * width)),
            op("aggregate", "aggregate", "compute", f"merged{layer}", f"a{layer}", "gather", work=self.work(width),
               module="layer", action=f"aggregate{layer}"),
            op("keep", "d2h", "copy_out", f"a{layer}", f"kept{layer}[:own]", "aggregate",
               transfer=self.rows(width, "own/rows")),
            op("transform", "transform", "compute", f"a{layer} W{layer}", f"out{layer}", "aggregate optimize<1",
               work=self.work(up), module="layer", action=f"transform{layer}"),
        ]  # fmt: skip
        if last:
            reads = f"out{layer} labels[:own]" + ("" if opens else " metrics")
            ops.append(op("loss", "loss", "compute", reads, "gout metrics", "transform loss<1",
                          work=self.work(up)))  # fmt: skip
        source, target, made = ("gout", f"g{layer}", "loss") if last else (f"out{layer}", f"h{layer}", "transform")
        ops += [
            op("save", "d2h", "copy_out", source, f"{target}[:own]", made, transfer=self.rows(up, "own/rows")),
            op("saved", "select", "host", after="save keep saved<1", work=(), module="layer", action="join"),
        ]
        return ops

    def backward(self, layer: int, opens: bool = False) -> list[Op]:
        """One chunk of a layer, backward: the gradient of its output comes from the host, with the kept aggregate."""
        width, up = self.widths[layer - 1 : layer + 1]
        ops = [
            op("take", "h2d", "copy_in", f"g{layer}[:own]", f"gin{layer}", "saved<1 transform/backward<1",
               transfer=self.rows(up, "own/rows")),
            op("again", "h2d", "copy_in", f"kept{layer}[:own]", f"a{layer}", "saved<1 transform/backward<1",
               transfer=self.rows(width, "own/rows")),
            op("transform/backward", "transform", "compute", f"gin{layer} a{layer} W{layer} dW{layer}",
               f"da{layer} dW{layer}", "take again transform/backward<1 optimize<1", work=self.work(up),
               module="layer", action=f"backward{layer}"),
        ]  # fmt: skip
        if layer == 1:
            after = "transform/backward saved<1"
            return [*ops, op("saved", "select", "host", after=after, work=(), module="layer", action="join")]
        row, below, clear = Transfer(self.item * width), f"g{layer - 1}", "clear " if opens else ""
        own, remote, arrived, merged, evicted = (
            f"{name}{layer}" for name in ("gown", "gremote", "arrived", "gmerged", "evicted")
        )
        if opens:
            ops.insert(0, op("clear", "elementwise", "host", "", below, "saved<1", work=self.work(width),
                             module="layer", action=f"clear{layer}"))  # fmt: skip
        return [
            *ops,
            op("spread", "aggregate", "compute", f"da{layer} {merged}", f"{own} {remote} {merged}",
               "transform/backward evict<1 push<1", work=self.work(width), module="layer", action=f"spread{layer}"),
            op("push", "peer_read", "p2p", f"{remote}[:remote]", arrived, "spread", route=reverse_of("need"),
               transfer=row),
            op("own", "add", "compute", own, f"{merged}[owned]", "spread", work=self.work(width)),
            op("collect", "add", "compute", arrived, f"{merged}[collected]", "push own", route="need",
               work=self.work(width)),
            op("evict", "d2h", "copy_out", f"{merged}[evict_from]", evicted, "collect add<1",
               transfer=self.rows(width, "evict_from/rows")),
            op("add", "add", "host", evicted, f"{below}[evict_to]", f"{clear}evict add<1", work=self.work(width)),
            op("saved", "select", "host", after="add saved<1", work=(), module="layer", action="join"),
        ]  # fmt: skip

    def update(self) -> list[Op]:
        """Sum the weights' gradients over ranks, and take a step."""
        gradients = " ".join(f"dW{layer}" for layer in self.layers)
        weights = " ".join(f"W{layer}" for layer in self.layers)
        elements = sum(width * up for width, up in pairwise(self.widths))
        return [
            op("sum", "allreduce", "comm", gradients, gradients, "saved<1", transfer=Transfer(self.item * elements)),
            op("metrics", "allreduce", "comm", "metrics", "metrics", "saved<1",
               transfer=Transfer(8 * METRICS, control=True)),
            op("optimize", "optimize", "compute", f"{gradients} {weights} metrics", f"{gradients} {weights}",
               "sum metrics", module="layer", action="step"),
            op("saved", "select", "host", after="optimize saved<1", work=(), module="layer", action="join"),
        ]  # fmt: skip

    def work(self, width: int) -> tuple[Work, ...]:
        sizes = {"rows": Column("own/rows"), "width": width, "passes": 3, "item_bytes": self.item}
        return (Work("elementwise", sizes),)

    def buffers(self) -> Iterator[Buffer]:
        """All buffers, of float32."""
        for layer in range(len(self.widths)):
            yield Buffer(f"h{layer}", Column("rows"), self.widths[layer], space="host", persistent=not layer)
        yield Buffer("labels", Column("rows"), 8, "uint8", persistent=True)
        yield Buffer("metrics", 1, METRICS, "float64", persistent=True)
        yield Buffer("evaluation", 1, EVALUATION, "float64", persistent=True)
        yield Buffer("gout", Column("own/rows"), self.widths[-1])
        for name, space in LISTS.items():
            yield Buffer(name, Column(f"{name}/all"), 1, "int64", space, persistent=True)  # type: ignore[arg-type]
        for layer in self.layers:
            width, up = self.widths[layer - 1 : layer + 1]
            yield Buffer(f"g{layer}", Column("rows"), up, space="host")
            yield Buffer(f"kept{layer}", Column("rows"), width, space="host")
            yield Buffer(f"merged{layer}", Column("merged"), width, persistent=True)
            yield Buffer(f"gmerged{layer}", Column("merged"), width, persistent=True)
            yield Buffer(f"a{layer}", Column("own/rows"), width)
            yield Buffer(f"out{layer}", Column("own/rows"), up)
            yield Buffer(f"gin{layer}", Column("own/rows"), up)
            yield Buffer(f"da{layer}", Column("own/rows"), width)
            yield Buffer(f"W{layer}", width, up, persistent=True)
            yield Buffer(f"dW{layer}", width, up, persistent=True)
            yield Buffer(f"gown{layer}", Column("owned/rows"), width)
            yield Buffer(f"gremote{layer}", Column("remote/all"), width)
            yield Buffer(f"arrived{layer}", Column("collected/rows"), width)
            yield Buffer(f"evicted{layer}", Column("evict_from/rows"), width, space="host")


def made(
    widths: tuple[int, ...], chunks: int, columns: Mapping[str, Ints], routes: Mapping[str, Route],
    hosts: Sequence[int], dtype: str = "float32",
) -> Program:  # fmt: skip
    """The program of a model for the sizes of a graph."""
    training = Training(widths, ITEM_BYTES[dtype])
    streams = [*map(Stream, ("compute", "copy_in", "copy_out", "host")), Stream("p2p", group="p2p")]
    calendar, templates = training.calendar(chunks), training.templates()
    return program(
        "chunked-epoch",
        {name: templates[name] for name in dict.fromkeys((*calendar.templates, *calendar.sweep))},
        calendar,
        [replace(one, dtype=dtype) if one.dtype == "float32" else one for one in training.buffers()],
        [*streams, Stream("comm", group="world")],
        hosts=hosts,
        columns=columns,
        routes=routes,
    )


def mapped(program: Program) -> Program:
    """The program with all rows of hosts in mappings."""
    buffers = {
        name: replace(buffer, space="host-mapped") if buffer.space == "host" else buffer
        for name, buffer in program.buffers.items()
    }
    return replace(program, buffers=buffers)


def build(ranks: int = 2, chunks: int = 3, dtype: str = "float32") -> Program:
    """Two layers on a small graph: an epoch of 4 ``chunks`` + 1 steps, an evaluation of 2 ``chunks`` + 1."""
    graph, batches = graph_of(ranks, chunks), batches_of(2, chunks)
    columns = {"rows": np.diff(graph.starts), "merged": graph.merged_rows, **graph.chunk_columns(batches)}
    for name in LISTS:
        columns |= graph.columns(name, batches)
    remote = np.array([[len(graph.remote(rank, batch)) for batch in range(chunks)] for rank in range(ranks)])
    need = graph.route(graph.remote, len(batches), batches)
    columns |= {
        "remote/rows": by_step(remote, batches),
        "remote/first": np.zeros((ranks, len(batches)), np.int64),
        "remote/all": remote.max(axis=1),
    }
    read = graph.route(graph.read, len(batches), batches)
    routes = {"read": read, "need": need, reverse_of("need"): need.reversed()}
    return made(WIDTHS, chunks, columns, routes, [0] * ranks, dtype)


def drawn(ranks: int, layers: int, chunks: int, width: int = 64, seed: int = 0) -> Program:
    """A large program whose sizes are drawn: what a step loads, reads and evicts differs by rank and chunk."""
    random, batches = np.random.default_rng(seed), batches_of(layers, chunks)

    def of_steps(values: Ints) -> Ints:
        return by_step(values, batches)

    def part(name: str, count: Ints) -> dict[str, Ints]:
        first = np.cumsum(count, axis=1) - count
        sizes = {"first": of_steps(first), "rows": of_steps(count), "all": count.sum(axis=1)}
        return {f"{name}/{key}": value for key, value in sizes.items()}

    def route(most: int) -> Route:
        source, target = np.nonzero(~np.eye(ranks, dtype=np.bool_))
        rows = random.integers(1, most, (len(source), chunks))
        return Route(source.astype(np.int32), target.astype(np.int32), of_steps(rows))

    def at(ends: Ints, rows: Ints) -> Ints:
        total = np.zeros((ranks, len(batches)), np.int64)
        np.add.at(total, ends, rows)
        return total[:, :chunks]

    read, need = route(300), route(400)
    own, moved = (random.integers(most // 2, most, (ranks, chunks)) for most in (2000, 900))
    columns = part("own", own) | {"rows": own.sum(axis=1), "merged": np.full(ranks, 5000)}
    for name in ("load_from", "load_to", "evict_from", "evict_to"):
        columns |= part(name, moved)
    columns |= part("owned", own)
    columns |= part("sent", at(read.source, read.rows)) | part("received", at(read.target, read.rows))
    columns |= part("collected", at(need.source, need.rows)) | part("remote", at(need.target, need.rows))
    columns |= {"remote/first": np.zeros((ranks, len(batches)), np.int64)}
    columns |= {"remote/all": columns["remote/rows"].max(axis=1)}
    routes = {"read": read, "need": need, reverse_of("need"): need.reversed()}
    return made((width,) * (layers + 1), chunks, columns, routes, [0] * ranks)
