"""Moves rows of a batch from hosts to devices and between devices, and gradients of rows the other way."""

from dataclasses import dataclass
from typing import Literal

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.chunks.names import (
    FAR,
    MERGED,
    NEAR,
    NEED,
    READ,
    ROWS,
    at_list,
    first_rows,
    listed,
    merged,
    merged_gradients,
    rows_in,
)
from simgnn.model.costs import pass_over
from simgnn.program.kinds import Form, OpKind
from simgnn.program.sizes import reverse_of


@dataclass(frozen=True)
class ChunkTransfers:
    """Emits the transfers of one layer's chunks. ``exchanges``: whether a chunk of any rank needs rows of another."""

    builder: ProgramBuilder
    exchanges: bool

    def bring(
        self, templates: tuple[str, ...], phase: Literal["forward", "backward"], layer: int, source: str, width: int
    ) -> str:
        """Emit the arrival of the rows of a chunk, of ``source`` on the host, in the merged buffer; returns that."""
        builder, row_bytes = self.builder, width * self.builder.item_bytes
        held = builder.buffer(merged(width), MERGED, width, persistent=True)
        builder.host_copy(
            templates, f"{phase}/{layer}/load", OpKind.H2D,
            [at_list(source, "load_from"), listed("load_from"), listed("load_to")], [at_list(held, "load_to")],
            rows_in("load_to"), row_bytes, layer=layer, phase=phase, category="comm",
        )  # fmt: skip
        if self.exchanges:
            builder.peer_read(
                templates, f"{phase}/{layer}/gather", READ,
                [at_list(held, "sent"), listed("sent"), listed("received")], [at_list(held, "received")], row_bytes,
                layer=layer, phase=phase,
            )  # fmt: skip
        return held

    def give_back(
        self, templates: tuple[str, ...], layer: int, own: str, others: str, target: str, width: int
    ) -> None:
        """Emit the way of gradients of a chunk's own rows (``own``) and of others that it needs (``others``: of the
        rank, then of other ranks) to their owners, whose sums go to ``target`` on the host as rows leave the device."""
        builder, row_bytes = self.builder, width * self.builder.item_bytes
        held = builder.buffer(merged_gradients(width), MERGED, width, persistent=True)
        fields = {"layer": layer, "phase": "backward"}
        builder.compute(
            templates, f"backward/{layer}/clear_slots", OpKind.ELEMENTWISE, [held, listed("load_to")],
            [at_list(held, "load_to")], builder.work([pass_over(rows_in("load_to"), width, 1)]), form=Form.ZEROS,
            **fields,
        )  # fmt: skip
        arrived = f"arrived/{layer}"
        if self.exchanges:
            builder.buffer(arrived, rows_in("collected"), width)
            builder.peer_read(
                templates, f"backward/{layer}/push", reverse_of(NEED), [first_rows(others, FAR, NEAR)], [arrived],
                row_bytes, **fields,
            )  # fmt: skip
        for name, rows, source in (("own", ROWS, own), ("near", NEAR, first_rows(others, NEAR))):
            builder.compute(
                templates, f"backward/{layer}/add_{name}", OpKind.ADD, [source, held, listed(name)],
                [at_list(held, name)], (builder.row_work("scatter_add", rows, width),), **fields,
            )  # fmt: skip
        if self.exchanges:
            builder.compute(
                templates, f"backward/{layer}/collect", OpKind.ADD, [arrived, held, listed("collected")],
                [at_list(held, "collected")], (builder.row_work("scatter_add", rows_in("collected"), width),),
                route=NEED, category="comm_overhead", **fields,
            )  # fmt: skip
        leaving = builder.buffer(f"evicted/{layer}", rows_in("evict_from"), width, space="host")
        builder.host_copy(
            templates, f"backward/{layer}/evict", OpKind.D2H, [at_list(held, "evict_from"), listed("evict_from")],
            [leaving], rows_in("evict_from"), row_bytes, category="comm", **fields,
        )  # fmt: skip
        builder.compute(
            templates, f"backward/{layer}/add_on_host", OpKind.ADD, [leaving, target, listed("evict_to")],
            [at_list(target, "evict_to")], (builder.row_work("scatter_add", rows_in("evict_to"), width),),
            category="comm_overhead", **fields,
        )  # fmt: skip
