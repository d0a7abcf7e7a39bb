"""Traces as Chrome trace-event JSON, which ui.perfetto.dev loads: one process for each rank, one track for each stream,
counters for memory and link use. One file can show several runs side by side."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from simgnn.analysis.compare import op_times
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile
from simgnn.program.kinds import PAIRWISE_KINDS
from simgnn.program.storage import load_program
from simgnn.record.rundir import MEMORY_SCHEMA, TRACE_SCHEMA, RunDirectory, read_table
from simgnn.tomlfile import write_atomically

MICROSECONDS = 1e6
PROCESSES = 10_000
"""Number of process ids reserved for each run: its ranks, then its links."""
Event = dict[str, Any]
Steps = tuple[NDArray[np.float64], NDArray[np.float64]]


def write_perfetto(
    runs: Mapping[str, Path], out: Path, epochs: int | None = None, predictions: Sequence[str] = ()
) -> None:
    """Write one trace with the ranks of every run, named ``label rank N``, up to ``epochs`` epochs (None: all).

    Runs whose label is in ``predictions`` also get a process with a counter of the bytes per second on each link.
    Raises :class:`ConfigError` when a directory has no trace.
    """
    events: list[Event] = []
    for position, (label, path) in enumerate(runs.items()):
        run = RunDirectory(path)
        events += _events(label, run, position * PROCESSES, epochs)
        if label in predictions:
            process = (position + 1) * PROCESSES - 1
            events.append(_name("process_name", process, 0, f"{label} links"))
            for name, (times, levels) in link_use(run, epochs).items():
                values = ({"bytes/s": level} for level in levels.tolist())
                events += _counter(name, process, times.tolist(), values)
    write_atomically(out, json.dumps({"displayTimeUnit": "ms", "traceEvents": events}))


def _events(label: str, run: RunDirectory, first_process: int, epochs: int | None) -> list[Event]:
    frame = op_times(run)
    if epochs is not None:
        frame = frame[frame["epoch"] < epochs]
    events: list[Event] = []
    streams = {name: place for place, name in enumerate(sorted(frame["stream"].unique()))}
    for rank in sorted(int(rank) for rank in frame["rank"].unique()):
        process = first_process + rank
        events.append(_name("process_name", process, 0, f"{label} rank {rank}"))
        events += [_name("thread_name", process, place, name) for name, place in streams.items()]
        events += _sent(process, frame[(frame["rank"] == rank) & (frame["bytes_sent"] > 0)])
    if run.memory.is_file() and not frame.empty:
        table = read_table(run.memory, MEMORY_SCHEMA)
        for row in table.filter(pc.less_equal(table["time_s"], float(frame["ended_s"].max()))).to_pylist():
            held = {"device": row["device_bytes"], "host": row["host_bytes"]}
            events += _counter("memory bytes", first_process + row["rank"], [row["time_s"]], [held])
    columns = ["rank", "epoch", "step", "op", "kind", "stream", "issued_s", "started_s", "ended_s", "bytes_sent"]
    rows: list[dict[Any, Any]] = frame[[*columns, "wait"]].to_dict("records")
    for row in rows:
        base = {"pid": first_process + row["rank"], "tid": streams[row["stream"]], "ph": "X"}
        if row["wait"] > 0:
            start, length = row["issued_s"] * MICROSECONDS, row["wait"] * MICROSECONDS
            events.append({**base, "name": "wait", "cat": "wait", "ts": start, "dur": length})
        start, length = row["started_s"] * MICROSECONDS, (row["ended_s"] - row["started_s"]) * MICROSECONDS
        details = {key: row[key] for key in ("epoch", "step", "bytes_sent")}
        events.append({**base, "name": row["op"], "cat": row["kind"], "ts": start, "dur": length, "args": details})
    return events


def _name(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _counter(name: str, process: int, times_s: Iterable[float], values: Iterable[dict[str, Any]]) -> list[Event]:
    base = {"ph": "C", "name": name, "pid": process, "tid": 0}
    return [{**base, "ts": time * MICROSECONDS, "args": args} for time, args in zip(times_s, values, strict=True)]


def _sent(process: int, sending: Any) -> list[Event]:
    """Counter of the rate at which a rank sends: the bytes of each op, spread evenly over the time of its transfer."""
    start, end = sending["started_s"].to_numpy(), sending["ended_s"].to_numpy()
    rate = sending["bytes_sent"].to_numpy() / np.maximum(end - start, 1e-12)
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    level = np.round(np.cumsum(np.concatenate([rate, -rate])[order]), 3)
    values = ({"bytes/s": max(value, 0.0)} for value in level.tolist())
    return _counter("sent bytes/s", process, times[order].tolist(), values)


def link_use(run: RunDirectory, epochs: int | None = None) -> dict[str, Steps]:
    """Map the name of each link that carried a message to instants in seconds and the bytes per second from each on.

    The bytes of each message are spread evenly from the start of its op to its end. Only messages of pairwise ops whose
    sizes the program fixes are shown, no collectives and no sizes known only at run time. The simulator shares links
    flow by flow; this is the mean over each op, meant for display.
    """
    program = load_program(run.plan)
    machine = Machine.place(load_profile(str(run.hardware)), program.hosts)
    backends = {name: group.backend for name, group in program.groups.items()}
    trace = read_table(run.trace, TRACE_SCHEMA).to_pandas()
    changes: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for (op_id, epoch, step), rows in trace.groupby(["op_id", "epoch", "step"]):
        op = program.ops[op_id][1]
        if op.kind not in PAIRWISE_KINDS or op.route is None or op.transfer is None or op.transfer.decision is not None:
            continue
        if epochs is not None and epoch >= epochs:
            continue
        route = program.sizes.routes[op.route]
        backend = backends.get(program.streams[op.stream].group or "", "default")
        start = dict(zip(rows["rank"], rows["started_s"], strict=True))
        end = dict(zip(rows["rank"], rows["ended_s"], strict=True))
        sizes = route.at(epoch, step) * op.transfer.row_bytes
        for source, target, nbytes in zip(route.source.tolist(), route.target.tolist(), sizes.tolist(), strict=True):
            begin, stop = max(start[source], start[target]), min(end[source], end[target])
            if nbytes and stop > begin:
                for link in machine.path(source, target, backend).links:
                    changes[link] += [(begin, nbytes / (stop - begin)), (stop, -nbytes / (stop - begin))]
    return {machine.links[link].name: _levels(found) for link, found in sorted(changes.items())}


def _levels(changes: list[tuple[float, float]]) -> Steps:
    times, deltas = np.array(changes, dtype=np.float64).T
    instants, place = np.unique(times, return_inverse=True)
    levels = np.cumsum(np.bincount(place, deltas, minlength=len(instants)))
    # what is left of the sums after the last message is rounding
    return instants, np.where(levels < 1e-6 * max(float(levels.max()), 1.0), 0.0, levels)
