"""Runs with caches of halo rows: settings, and what is moved by each of their copies, counted from the tensors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from unittest.mock import patch

import executor.handlers as handlers
from executor.state.buffers import Now
from executor.state.context import Factory, Handler, RankContext
from simgnn.emit.halo_cache.actions import CheckAges, PickRows, SwapRows
from simgnn.policy import PolicyContext
from simgnn.program.kinds import Form, OpKind
from simgnn.program.ops import Op
from simgnn.program.program import Template
from tests.cached_reference import Caching
from tests.executor.runs import train_in_process

KIND = "freshness.kind=refresh-interval"
Moved = dict[tuple[int, int, str, str], int]
"""(epoch, layer, phase, way) -> bytes that a rank moved; ``way``: "device", "load" or "store", and "merge" where rows
that are stored leave the device first."""


def settings_of(caching: Caching) -> tuple[str, ...]:
    """The settings of an experiment with these caches."""
    layers = () if caching.layers is None else (f"freshness.layers={sorted(caching.layers)}",)
    return (
        KIND, f"freshness.refresh_interval={caching.interval}", f"freshness.grad={caching.grad}",
        f"freshness.order={caching.order}", f"freshness.top_k={caching.top_k}", f"freshness.mode={caching.mode}",
        f"freshness.global_rank={caching.global_rank}", f"placement.device_rows={caching.rows}",
        f"placement.host_rows={caching.host_rows}", *layers,
    )  # fmt: skip


def train_counting(rank: int, ranks: int, folders: Sequence[str]) -> list[dict[str, Any]]:
    """Carry out runs as :func:`train_in_process` does; ``moved`` of each is what its copies moved: (epoch, layer,
    phase, way, bytes), in order; ``checked``: (epoch, layer, phase, rows, oldest, newest) of each check of rows from
    caches, the latter two epochs in which rows were written. Checks of no rows are left out."""
    return [_counted_run(rank, ranks, folder) for folder in folders]


def _counted_run(rank: int, ranks: int, folder: str) -> dict[str, Any]:
    moved: list[tuple[int, int, str, str, int]] = []
    pick: Callable[..., Any] = PickRows.run
    swap: Callable[..., Any] = SwapRows.run
    check: Callable[..., Any] = CheckAges.run
    checked: list[tuple[int, int, str, int, int, int]] = []

    def counted(factory: Factory, way: str) -> Factory:
        def make(op: Op, template: Template, context: RankContext) -> Handler:
            run, get = factory(op, template, context), context.store.getter(op.writes[0])
            rows = None if way == "load" else context.route(op).leaving

            def run_and_count(now: Now) -> None:
                run(now)
                held = get(now)
                count = held.shape[0] if rows is None else len(rows)
                moved.append((now.epoch, op.layer, op.phase, way, count * held.shape[1] * held.element_size()))

            return run_and_count

        return make

    def pick_and_count(self: Any, here: PolicyContext, cache: Any) -> Any:
        moved.append((here.epoch, here.layer, here.phase, "device", cache.numel() * cache.element_size()))
        return pick(self, here, cache)

    def swap_and_count(self: Any, here: PolicyContext, halo: Any, cache: Any, version: Any) -> Any:
        moved.append((here.epoch, here.layer, here.phase, "device", cache.numel() * cache.element_size()))
        return swap(self, here, halo, cache, version)

    def check_and_note(self: Any, here: PolicyContext, versions: Any) -> Any:
        if len(versions):
            written = int(versions.min()) - 1, int(versions.max()) - 1
            checked.append((here.epoch, here.layer, here.phase, len(versions), *written))
        return check(self, here, versions)

    plain, forms = cast(Any, handlers.HANDLERS), cast(Any, handlers.FORM_HANDLERS)
    copies = {kind: counted(plain[kind], way) for kind, way in ((OpKind.H2D, "load"), (OpKind.D2H, "store"))}
    writes = {form: counted(forms[form], way) for form, way in ((Form.OWN_ROWS, "store"), (Form.MERGED_ROWS, "merge"))}
    with (
        patch.dict(plain, copies),
        patch.dict(forms, writes),
        patch.object(PickRows, "run", pick_and_count),
        patch.object(SwapRows, "run", swap_and_count),
        patch.object(CheckAges, "run", check_and_note),
    ):
        (result,) = train_in_process(rank, ranks, [folder])
    return {**result, "moved": moved, "checked": checked}


def summed(moved: Sequence[Sequence[Any]]) -> Moved:
    """Bytes by (epoch, layer, phase, way); those of copies that moved nothing are left out."""
    found: Moved = {}
    for epoch, layer, phase, way, nbytes in moved:
        key = (epoch, layer, phase, way)
        found[key] = found.get(key, 0) + nbytes
    return {key: nbytes for key, nbytes in found.items() if nbytes}


def wanted(found: Mapping[tuple[int, int, str, str], int]) -> Moved:
    """Bytes as a formula states them, without zeros."""
    return {key: int(nbytes) for key, nbytes in found.items() if nbytes}
