"""Syncs whose rows travel encoded, all of them in every epoch: evaluations excepted, which are exact."""

from dataclasses import replace
from typing import Any

from simgnn.emit.sync import Stage, Sync, emit_plainly, land, pack, receiving_buffer
from simgnn.policy import Codec, DecodeRows, EncodeRows
from simgnn.program.builder import ProgramBuilder
from simgnn.program.kinds import Form, OpKind
from simgnn.program.ops import Work
from simgnn.program.program import EVALUATE
from simgnn.program.scratch import Scratch
from simgnn.program.sizes import Size, reverse_of


def training_part(builder: ProgramBuilder, sync: Sync) -> Sync:
    """The sync in training alone; what evaluation needs of it is emitted plainly."""
    if EVALUATE in sync.templates:
        emit_plainly(builder, replace(sync, templates=(EVALUATE,)))
    return replace(sync, templates=tuple(name for name in sync.templates if name != EVALUATE))


def emit_encoded(builder: ProgramBuilder, sync: Sync, codec: Codec) -> None:
    """Every row of every stage: pack, encode, exchange, decode, put or add. No row has a history, so each is encoded
    itself."""
    training = training_part(builder, sync)
    row_bytes = codec.row_bytes(sync.width, builder.dtype)
    for stage in training.stages:
        pack(builder, training, stage)
        coded = builder.buffer(buffer_name("coded", training, stage), stage.leaving, row_bytes, "uint8")
        arrived = builder.buffer(buffer_name("arrived", training, stage), stage.arriving, row_bytes, "uint8")
        receive = receiving_buffer(builder, training, stage)
        fields: dict[str, Any] = {"layer": sync.layer, "phase": sync.phase}
        builder.compute(
            training.templates, training.op(stage, "encode"), OpKind.ENCODE, [stage.packed], [coded],
            codec.encode_work(stage.leaving, sync.width, builder.dtype),
            route=stage.route, module="codec", action=EncodeRows, category="comm_overhead",
            scratch=Scratch(codec.encode_scratch(stage.leaving, sync.width, builder.dtype)), **fields,
        )  # fmt: skip
        builder.exchange(
            training.templates, training.op(stage, "exchange"), stage.route, [coded], arrived, row_bytes, **fields
        )
        builder.compute(
            training.templates, training.op(stage, "decode"), OpKind.DECODE, [arrived], [receive],
            codec.decode_work(stage.arriving, sync.width, builder.dtype),
            module="codec", action=DecodeRows, category="comm_overhead", **fields,
        )  # fmt: skip
        land(builder, training, stage)
        if stage.in_place:
            _take_own(builder, training, stage, codec, coded)


def _take_own(builder: ProgramBuilder, sync: Sync, stage: Stage, codec: Codec, coded: str) -> None:
    """Owners go on with what their copies decode, so that all hold the same rows."""
    fields: dict[str, Any] = {"layer": sync.layer, "phase": sync.phase, "category": "comm_overhead"}
    taken = builder.buffer(buffer_name("taken", sync, stage), stage.leaving, sync.width)
    builder.compute(
        sync.templates, sync.op(stage, "decode_own"), OpKind.DECODE, [coded], [taken],
        codec.decode_work(stage.leaving, sync.width, builder.dtype), module="codec", action=DecodeRows, **fields,
    )  # fmt: skip
    sizes: dict[str, Size] = {"rows": stage.leaving, "width": sync.width, "item_bytes": builder.item_bytes}
    builder.compute(
        sync.templates, sync.op(stage, "put_own"), OpKind.COPY, [taken, stage.target], [stage.target],
        (Work("gather", sizes),), route=reverse_of(stage.route), form=Form.PUT, **fields,
    )  # fmt: skip
    builder.keep_rows_of(reverse_of(stage.route), stage.arriving)


def buffer_name(what: str, sync: Sync, stage: Stage) -> str:
    """Name of a buffer that a stage needs for itself."""
    return "/".join(word for word in (what, sync.point, stage.name) if word)
