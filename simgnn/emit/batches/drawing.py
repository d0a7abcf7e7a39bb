"""Ops that draw a mini-batch where each host holds only a part of the graph structure: one chain, hop after hop.

At each hop a rank splits its frontier by the host that holds each vertex, sends requests to these hosts, draws from its
own part meanwhile, draws what other ranks request, and joins its own draws with the replies (DistDGL: Zheng et al., IA3
2020, section 5.5.1; docs/systems/distdgl.md). Messages are those of C7 in docs/systems/mini-batches.md: counts, ids
(int64), degrees (int32), ids of neighbours (int64). Deviation: a reply holds each vertex's degree, so that the
requester knows how many neighbours follow without waiting for the draws."""

from collections.abc import Callable, Iterable
from typing import Any

from simgnn.emit.batches.names import BATCHES, DRAW, FEATURE_ROWS, edges_of, rows_after
from simgnn.emit.batches.on_rank import OfOne, RankAction
from simgnn.emit.batches.staging import add_route, received, sent
from simgnn.emit.builder import ProgramBuilder, accesses
from simgnn.policy import Action, Array, PolicyContext
from simgnn.program.kinds import Form, OpKind
from simgnn.program.ops import Access, Dependency, Nature, Op, Transfer, Work
from simgnn.program.sizes import Column, Scratch, rows_of
from simgnn.sampling.batches.sizes import DEGREE_BYTES, ID_BYTES, NEIGHBOUR_BYTES, PartedSizes, SampleRequests

DEGREES, STRUCTURE = "degrees", "structure"


class AskHosts(RankAction[Callable[..., tuple[Array]]]):
    """Split the frontier by the hosts that draw for it. At the first hop, which reads no frontier, it is the seeds."""


class LocateVertices(RankAction[Callable[[PolicyContext, Array], tuple[Array, Array]]]):
    """Find the frontier vertices that other hosts hold: (rank, row on that rank) int64 [k] each, ordered by rank."""


class DrawHere(RankAction[OfOne]):
    """Draw neighbours of the vertices that this host holds."""


class DrawForOthers(RankAction[OfOne]):
    """Draw neighbours of the vertices that other ranks request."""


Stitch = Callable[[PolicyContext, Array, Array, Array, Array], tuple[Array, ...]]


class StitchFrontier(RankAction[Stitch]):
    """Build the next hop's frontier from own draws and replies."""


class FinishBatch(RankAction[Stitch]):
    """Build the batch from own draws and replies after the last hop."""


DRAWING: tuple[type[Action[Any]], ...] = (
    AskHosts, LocateVertices, DrawHere, DrawForOthers, StitchFrontier, FinishBatch
)  # fmt: skip


def asked(hop: int) -> str:
    """Name of the buffer of a hop's frontier, split by host, and of the route from replying to requesting ranks."""
    return f"asked/{hop}"


def returned(hop: int) -> str:
    """Name both of the buffer and of the route of the neighbours that replies to a hop's requests contain."""
    return f"returned/{hop}"


def drawn_over_hosts(builder: ProgramBuilder, parted: PartedSizes, written: Iterable[Access]) -> list[Op]:
    """Return the chain of ops that draws a batch and writes ``written``; the last op is ``DRAW``. Its buffers hold one
    batch: a chain starts when the chain of the previous batch has ended."""
    builder.natures.append(Nature.REQUESTING)
    builder.buffer(DEGREES, FEATURE_ROWS, 1, "int32", space="host-shared", persistent=True)
    size = builder.column("structure/bytes", parted.structure_bytes)
    builder.buffer(STRUCTURE, size, 1, "uint8", space="host-shared", persistent=True)
    hops = parted.requests.hops
    ops: list[Op] = []
    for hop in range(1, hops + 1):
        before = Dependency(ops[-1].name) if ops else Dependency(DRAW, steps_back=1)
        ops += _hop(builder, parted.requests, hop, before, tuple(written) if hop == hops else None)
    return ops


def _hop(
    builder: ProgramBuilder, requests: SampleRequests, hop: int, before: Dependency, written: tuple[Access, ...] | None
) -> list[Op]:
    name, options = f"draw/{hop}", {"hop": hop}
    here, kept, wanted, served = (f"{part}/{hop}" for part in ("here", "kept", "wanted", "served"))
    add_route(builder, asked(hop), requests.answering(hop))
    add_route(builder, returned(hop), requests.returning(hop))
    vertices, edges = requests.drawn(hop)
    vertices_here = builder.column(f"{here}/vertices", vertices)
    edges_here = builder.column(f"{here}/edges", edges)
    # where each vertex of the frontier is, and its row there
    builder.buffer(asked(hop), rows_after(hop - 1), 2, "int64", space="host")
    builder.buffer(here, edges_here, 1, "int32", space="host")
    builder.buffer(kept, received(asked(hop)), 1, "int32", space="host")
    builder.buffer(wanted, sent(asked(hop)), 1, "int64", space="host")
    builder.buffer(served, sent(returned(hop)), 1, "int64", space="host")
    builder.buffer(returned(hop), received(returned(hop)), 1, "int64", space="host")
    frontier = [f"frontier/{hop}"] if hop > 1 else []
    if written is None:
        written = accesses([builder.buffer(f"frontier/{hop + 1}", rows_after(hop), 1, "int64", space="host")])
        last, action = f"{name}/stitch", StitchFrontier.label
    else:
        last, action = DRAW, FinishBatch.label
    after = (Dependency(f"{name}/ask"),)
    return [
        Op(
            f"{name}/ask", OpKind.COPY, Nature.DRAWING, accesses(frontier), accesses([asked(hop)]), (before,),
            _picked(rows_after(hop - 1)), module=BATCHES, action=AskHosts.label, options=options,
        ),
        Op(
            f"{name}/request", OpKind.FETCH, Nature.REQUESTING, accesses([asked(hop), DEGREES]),
            accesses([kept, wanted]), after, transfer=Transfer(DEGREE_BYTES), route=asked(hop), module=BATCHES,
            action=LocateVertices.label, category="comm", form=Form.REMOTE_ROWS, options=options,
            scratch=Scratch(rows_of(sent(asked(hop)), DEGREE_BYTES)),
        ),
        Op(
            f"{name}/here", OpKind.SAMPLE, Nature.DRAWING, accesses([asked(hop)]), accesses([here]), after,
            _drawing(vertices_here, edges_here), module=BATCHES, action=DrawHere.label, options=options,
        ),
        Op(
            f"{name}/serve", OpKind.SAMPLE, Nature.DRAWING, accesses([wanted]), accesses([served]),
            (Dependency(f"{name}/request"),), _drawing(sent(asked(hop)), sent(returned(hop))), module=BATCHES,
            action=DrawForOthers.label, options=options,
        ),
        Op(
            f"{name}/return", OpKind.EXCHANGE, Nature.REQUESTING, accesses([served]), accesses([returned(hop)]),
            (Dependency(f"{name}/serve"),), transfer=Transfer(NEIGHBOUR_BYTES), route=returned(hop), category="comm",
        ),
        Op(
            last, OpKind.COPY, Nature.DRAWING, accesses([asked(hop), here, kept, returned(hop)]), written,
            (Dependency(f"{name}/here"), Dependency(f"{name}/return")), _picked(edges_of(hop)), module=BATCHES,
            action=action, options=options,
        ),
    ]  # fmt: skip


def _picked(rows: Column) -> tuple[Work, ...]:
    """Return the cost of looking up one id per row."""
    return (Work("gather", {"rows": rows, "width": 1, "item_bytes": ID_BYTES}),)


def _drawing(vertices: Column, edges: Column) -> tuple[Work, ...]:
    return (Work("sample", {"vertices": vertices, "edges": edges, "item_bytes": ID_BYTES}),)
