"""Moves rows of a batch from hosts to devices and between devices, and gradients of rows the other way."""

from dataclasses import dataclass
from typing import Any, Literal

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.chunks.names import (
    FAR,
    GRADIENTS_HELD,
    HELD,
    MERGED,
    NEAR,
    NEED,
    READ,
    ROWS,
    all_merged,
    at_list,
    first_rows,
    listed,
    rows_in,
)
from simgnn.model.costs import pass_over
from simgnn.program.kinds import Form, OpKind
from simgnn.program.ops import Space
from simgnn.program.sizes import Scratch, reverse_of, rows_of

Phase = Literal["forward", "backward"]


@dataclass(frozen=True)
class ChunkTransfers:
    """Emits the transfers of chunks. ``exchanges``: whether a chunk of any rank needs rows of another. ``host``: the
    space of buffers on hosts. ``widest``: elements of the widest rows. ``both``: a pass backward needs rows and
    gradients at the same time."""

    builder: ProgramBuilder
    exchanges: bool
    host: Space
    widest: int
    both: bool

    @property
    def gradients_held(self) -> str:
        """The merged buffer of gradients."""
        return GRADIENTS_HELD if self.both else HELD

    def add_to(self) -> None:
        """Add the merged buffers."""
        for name in dict.fromkeys((HELD, self.gradients_held)):
            self.builder.buffer(name, MERGED, self.widest, persistent=True)

    def bring(self, templates: tuple[str, ...], phase: Phase, layer: int, source: str, width: int) -> None:
        """Emit the arrival of the rows of a chunk, of ``source`` on the host, in the merged buffer."""
        builder, row_bytes = self.builder, width * self.builder.item_bytes
        builder.host_copy(
            templates, f"{phase}/{layer}/load", OpKind.H2D,
            [at_list(source, "load_from"), listed("load_from"), listed("load_to")], [at_list(HELD, "load_to", width)],
            rows_in("load_to"), row_bytes, layer=layer, phase=phase, category="comm",
        )  # fmt: skip
        if not self.exchanges:
            return
        scratch = (*rows_of(rows_in("sent"), row_bytes), *rows_of(rows_in("received"), row_bytes))
        builder.peer_read(
            templates, f"{phase}/{layer}/gather", READ,
            [at_list(HELD, "sent", width), listed("sent"), listed("received")], [at_list(HELD, "received", width)],
            row_bytes, layer=layer, phase=phase, scratch=Scratch(scratch),
        )  # fmt: skip

    def give_back(self, templates: tuple[str, ...], layer: int, own: str, others: str, target: str, width: int) -> None:
        """Emit the way of gradients of a chunk's own rows (``own``) and of others that it needs (``others``: of the
        rank, then of other ranks) to their owners, whose sums go to ``target`` on the host as rows leave the device."""
        builder, row_bytes, held = self.builder, width * self.builder.item_bytes, self.gradients_held
        fields: dict[str, Any] = {"layer": layer, "phase": "backward"}
        builder.compute(
            templates, f"backward/{layer}/clear_slots", OpKind.ELEMENTWISE,
            [all_merged(held, width), listed("load_to")], [at_list(held, "load_to", width)],
            builder.work([pass_over(rows_in("load_to"), width, 1)]), form=Form.ZEROS, **fields,
        )  # fmt: skip
        arrived = f"arrived/{layer}"
        if self.exchanges:
            builder.buffer(arrived, rows_in("collected"), width)
            builder.peer_read(
                templates, f"backward/{layer}/push", reverse_of(NEED), [first_rows(others, FAR, NEAR)], [arrived],
                row_bytes, **fields,
            )  # fmt: skip
        for name, count, source in (("own", ROWS, own), ("near", NEAR, first_rows(others, NEAR))):
            builder.compute(
                templates, f"backward/{layer}/add_{name}", OpKind.ADD,
                [source, all_merged(held, width), listed(name)], [at_list(held, name, width)],
                (builder.row_work("scatter_add", count, width),), **fields,
            )  # fmt: skip
        if self.exchanges:
            builder.compute(
                templates, f"backward/{layer}/collect", OpKind.ADD,
                [arrived, all_merged(held, width), listed("collected")], [at_list(held, "collected", width)],
                (builder.row_work("scatter_add", rows_in("collected"), width),), route=NEED,
                category="comm_overhead", **fields,
            )  # fmt: skip
        leaving, rows = rows_in("evict_from"), f"evicted/{width}"
        builder.buffer(rows, leaving, width, space=self.host)
        builder.host_copy(
            templates, f"backward/{layer}/evict", OpKind.D2H,
            [at_list(held, "evict_from", width), listed("evict_from")], [rows], leaving, row_bytes, category="comm",
            scratch=Scratch(rows_of(leaving, row_bytes)), **fields,
        )  # fmt: skip
        builder.compute(
            templates, f"backward/{layer}/add_on_host", OpKind.ADD, [rows, target, listed("evict_to")],
            [at_list(target, "evict_to")], (builder.row_work("scatter_add", rows_in("evict_to"), width),),
            category="comm_overhead", **fields,
        )  # fmt: skip
