"""Finished ops, noted as they end, and turned into the columns of the trace."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import BackendError
from simgnn.program.kinds import GROUP_KINDS
from simgnn.program.program import Program
from simgnn.sim.clock import PICOSECONDS
from simgnn.sim.engine.compiled import Compiled
from simgnn.sim.network.max_min import Ints

Columns = Mapping[str, NDArray[Any]]
_FIELDS = (
    "rank",
    "epoch",
    "step",
    "op_id",
    "issued",
    "ended",
    "bytes_sent",
    "collective_bytes",
    "control_bytes",
    "messages",
)
_TYPES = {"rank": np.int32, "epoch": np.int32, "step": np.int32, "op_id": np.int32, "messages": np.int32}


class Recorder:
    """Rows in the order in which ops end; whole stretches of them can be repeated later in time."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._blocks: list[tuple[Ints, bool]] = []
        self._folded = 0

    def __len__(self) -> int:
        return self._folded + len(self._rows)

    @property
    def last_epoch(self) -> int:
        """The latest epoch of which an op was noted; -1: none."""
        noted = max((row[1] for row in self._rows), default=-1)
        return max([noted, *(int(block[:, 1].max(initial=-1)) for block, _ in self._blocks)])

    def add(self, row: tuple[int, ...]) -> None:
        """Note one op: rank, epoch, step, op id, issued and ended in ticks, then the four counts of what it sent."""
        self._rows.append(row)

    def repeat(self, since: int, times: int, epochs: int, ticks: int) -> None:
        """Repeat all rows from row ``since`` on, each time ``epochs`` epochs and ``ticks`` ticks later."""
        self._fold()
        stretch = np.concatenate([block for block, _ in self._blocks])[since:]
        shift = np.zeros(len(_FIELDS), dtype=np.int64)
        shift[[1, 4, 5]] = epochs, ticks, ticks
        self._blocks += [(stretch + number * shift, False) for number in range(1, times + 1)]
        self._folded += times * len(stretch)

    def table(self, copies: bool = True) -> dict[str, Ints]:
        """Columns of all rows, int64, sorted by (epoch, step, op_id, rank); without ``copies`` only noted ones."""
        self._fold()
        blocks = [block for block, noted in self._blocks if noted or copies]
        whole = np.concatenate([np.zeros((0, len(_FIELDS)), dtype=np.int64), *blocks])
        order = np.lexsort((whole[:, 0], whole[:, 3], whole[:, 2], whole[:, 1]))
        return {name: np.ascontiguousarray(whole[order, place]) for place, name in enumerate(_FIELDS)}

    def _fold(self) -> None:
        if self._rows:
            try:
                noted = np.array(self._rows, dtype=np.int64)
            except OverflowError as error:
                raise BackendError(
                    "the simulated time exceeds what the clock can count (about 106 days): simulate fewer epochs "
                    "(train.epochs), or check the sizes of the model and the rates of the hardware profile"
                ) from error
            self._blocks.append((noted, True))
            self._folded += len(self._rows)
            self._rows = []


def trace_columns(ticks: Mapping[str, Ints], compiled: Compiled) -> dict[str, NDArray[Any]]:
    """The columns of ``simgnn.record.trace.TRACE_SCHEMA``, in its order."""
    started = start_ticks(ticks, compiled)
    seconds = {"issued_s": ticks["issued"], "started_s": started, "ended_s": ticks["ended"]}
    columns: dict[str, NDArray[Any]] = {name: ticks[name].astype(_TYPES[name]) for name in _FIELDS[:4]}
    columns |= {name: values / PICOSECONDS for name, values in seconds.items()}
    columns |= {name: ticks[name].astype(_TYPES.get(name, np.int64)) for name in _FIELDS[6:]}
    return columns


def start_ticks(ticks: Mapping[str, Ints], compiled: Compiled) -> Ints:
    """When the work of each op began: of a group op at the latest issue of its group, but not after its own end (a
    member may be through before the last one comes); else when it was issued."""
    started = ticks["issued"].copy()
    teams = _teams(compiled)[ticks["op_id"], ticks["rank"]]
    chosen = np.flatnonzero(teams >= 0)
    if not len(chosen):
        return started
    keys = [ticks[name][chosen] for name in ("epoch", "step", "op_id")] + [teams[chosen]]
    order = np.lexsort(keys[::-1])
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = np.logical_or.reduce([key[order][1:] != key[order][:-1] for key in keys])
    latest = np.maximum.reduceat(started[chosen][order], np.flatnonzero(fresh))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.cumsum(fresh) - 1
    started[chosen] = np.minimum(latest[place], ticks["ended"][chosen])
    return started


def _teams(compiled: Compiled) -> Ints:
    """Team of each (op id, rank), int64 [ops, P]; -1 where the op calls no group."""
    program: Program = compiled.program
    teams = np.full((len(program.ops), program.ranks), -1, dtype=np.int64)
    for template in compiled.templates.values():
        for found in template.ops:
            if found.op.kind in GROUP_KINDS and program.group_of(found.op) is not None:
                teams[found.op_id] = found.team
    return teams
