"""Recorder of finished ops, and their conversion into the columns of the trace."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import BackendError
from simgnn.program.kinds import GROUP_KINDS
from simgnn.record.rundir import TRACE_SCHEMA
from simgnn.sim.clock import PICOSECONDS
from simgnn.sim.engine.compiled import Compiled
from simgnn.sim.network.flow_table import Ints

_SENT = ("bytes_sent", "collective_bytes", "control_bytes", "messages")
_FIELDS = ("rank", "epoch", "step", "op_id", "issued", "started", "ended", *_SENT)


class Recorder:
    """Rows of ops in the order in which they end. Stretches of rows can be repeated at a later time."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._blocks: list[tuple[Ints, bool]] = []
        self._folded = 0

    def __len__(self) -> int:
        return self._folded + len(self._rows)

    @property
    def last_epoch(self) -> int:
        """The latest epoch of which an op was recorded; -1: none."""
        noted = max((row[1] for row in self._rows), default=-1)
        return max([noted, *(int(block[:, 1].max(initial=-1)) for block, _ in self._blocks)])

    def add(self, row: tuple[int, ...]) -> None:
        """Record one op: rank, epoch, step, op id; issue, start, end in ticks; the four counts of what it sent."""
        self._rows.append(row)

    def repeat(self, since: int, times: int, epochs: int, ticks: int) -> None:
        """Append ``times`` copies of all rows after the first ``since``, each ``epochs`` and ``ticks`` later."""
        self._fold()
        stretch = np.concatenate([block for block, _ in self._blocks])[since:]
        shift = np.zeros(len(_FIELDS), dtype=np.int64)
        shift[[1, 4, 5, 6]] = epochs, ticks, ticks, ticks
        self._blocks += [(stretch + number * shift, False) for number in range(1, times + 1)]
        self._folded += times * len(stretch)

    def table(self, copies: bool = True) -> dict[str, Ints]:
        """Columns of all rows, int64, sorted by (epoch, step, op_id, rank). ``copies``: include repeated rows."""
        self._fold()
        blocks = [block for block, noted in self._blocks if noted or copies]
        whole = np.concatenate([np.zeros((0, len(_FIELDS)), dtype=np.int64), *blocks])
        order = np.lexsort((whole[:, 0], whole[:, 3], whole[:, 2], whole[:, 1]))
        return {name: np.ascontiguousarray(whole[order, place]) for place, name in enumerate(_FIELDS)}

    def _fold(self) -> None:
        if not self._rows:
            return
        try:
            noted = np.array(self._rows, dtype=np.int64)
        except OverflowError as error:
            raise BackendError(
                "the simulated time exceeds what the clock can count (about 106 days). Simulate fewer epochs "
                "(train.epochs), or check the sizes of the model and the rates in the hardware profile."
            ) from error
        self._blocks.append((noted, True))
        self._folded += len(self._rows)
        self._rows = []


def trace_columns(ticks: Mapping[str, Ints], started: Ints) -> dict[str, NDArray[Any]]:
    """The columns of ``TRACE_SCHEMA``, in its order. ``started``: the result of :func:`start_ticks`."""
    times = {"issued_s": ticks["issued"], "started_s": started, "ended_s": ticks["ended"]}
    seconds = {name: values / PICOSECONDS for name, values in times.items()}
    return {
        field.name: seconds[field.name] if field.name in seconds else ticks[field.name].astype(str(field.type))
        for field in TRACE_SCHEMA
    }


def start_ticks(ticks: Mapping[str, Ints], compiled: Compiled) -> Ints:
    """When the work of each op began, in ticks. An op of a group begins when the last rank of the group issues it, but
    not after its own end (a member may finish before the last one arrives). Any other op begins when it is issued, or
    as its turn comes among the ranks of its host."""
    started = ticks["started"].copy()
    # team of each (op id, rank), -1 where the op calls no group
    teams = np.full((len(compiled.program.ops), compiled.program.ranks), -1, dtype=np.int64)
    for template in compiled.templates.values():
        for found in template.ops:
            if found.op.kind in GROUP_KINDS and compiled.program.group_of(found.op) is not None:
                teams[found.op_id] = found.team
    team = teams[ticks["op_id"], ticks["rank"]]
    chosen = np.flatnonzero(team >= 0)
    if not len(chosen):
        return started
    keys = [ticks[name][chosen] for name in ("epoch", "step", "op_id")] + [team[chosen]]
    order = np.lexsort(keys[::-1])
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = np.logical_or.reduce([key[order][1:] != key[order][:-1] for key in keys])
    latest = np.maximum.reduceat(started[chosen][order], np.flatnonzero(fresh))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.cumsum(fresh) - 1
    started[chosen] = np.minimum(latest[place], ticks["ended"][chosen])
    return started
