"""Ops that move rows within a rank: packing by a route, and between host and device."""

from collections.abc import Sequence

import torch

from executor.handlers.sparse_rows import pack_rows, unpack_rows
from executor.kernels.rows import gather_rows, put_rows
from executor.state.buffers import Getter, Now, Setter, Value
from executor.state.context import Handler, RankContext
from simgnn.errors import BackendError
from simgnn.program.ops import Op
from simgnn.program.program import Template


def copy(op: Op, template: Template, context: RankContext) -> Handler:
    """With a route: gather its rows into a send buffer, peers ascending. Without: a copy of what is read."""
    read, put_whole = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])
    if op.route is None:
        return lambda now: put_whole(now, read(now).clone())
    rows = _named(op, context.route(op).leaving)
    return lambda now: put_whole(now, gather_rows(read(now), rows))


def put(op: Op, template: Template, context: RankContext) -> Handler:
    """Rows that arrived replace those that the route names, in place."""
    read, target = context.store.getter(op.reads[0]), context.store.getter(op.writes[0])
    rows = _named(op, context.route(op).arriving)
    return lambda now: put_rows(target(now), rows, read(now))


def _named(op: Op, rows: torch.Tensor | None) -> torch.Tensor:
    if rows is None:
        raise BackendError(f"op '{op.name}' copies along the route '{op.route}', which names no local rows")
    return rows


def sparse(op: Op, template: Template, context: RankContext) -> Handler:
    """Rows of a sparse matrix that the route names become one block of bytes a peer, and bytes become rows."""
    read, put_whole = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])
    features = context.task.features if context.task is not None else None
    if features is None or features.layout != torch.sparse_csr:
        raise BackendError(f"op '{op.name}' packs sparse rows, but this run's features are dense")
    width, dtype, route = int(features.shape[1]), features.dtype, context.route(op)

    def run(now: Now) -> None:
        value = read(now)
        if value.layout == torch.sparse_csr:
            assert route.gather is not None
            put_whole(now, pack_rows(value, route.gather, route.send))
        else:
            put_whole(now, unpack_rows(value, route.receive, width, dtype))

    return run


def to_device(op: Op, template: Template, context: RankContext) -> Handler:
    """Host rows to the device, without blocking the host where they are pinned.

    Several buffers are taken one by one, and stay what they are where the device is the host.
    """
    getters = [context.store.getter(access) for access in op.reads]
    setters = [context.store.setter(access) for access in op.writes]
    if len(getters) > 1:
        return lambda now: _each(now, getters, setters, context.device)
    read, put = getters[0], setters[0]
    return lambda now: put(now, _detached_copy(read(now), context.device))


def _each(now: Now, getters: Sequence[Getter], setters: Sequence[Setter], device: torch.device) -> None:
    for get, put in zip(getters, setters, strict=True):
        value: Value = get(now)
        put(now, tuple(part.to(device) for part in value) if isinstance(value, tuple) else value.to(device))


def to_host(op: Op, template: Template, context: RankContext) -> Handler:
    """Device rows to the host; they have arrived when the op ends."""
    read, put = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])
    host = torch.device("cpu")
    return lambda now: put(now, _detached_copy(read(now), host))


def _detached_copy(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    if value.device == device:
        return value.clone()
    return value.to(device, non_blocking=value.device.type == "cpu" and value.is_pinned())
