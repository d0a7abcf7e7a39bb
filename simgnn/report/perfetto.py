"""Traces as Chrome trace-event JSON, which ui.perfetto.dev loads: one process a rank, one track a stream, counters for
memory and link use. Several runs may stand side by side in one file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from simgnn.analysis.compare.metrics import op_times
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.report.links import link_use
from simgnn.tomlfile import write_atomically

MICROSECONDS = 1e6
PROCESSES = 10_000
"""Process numbers that a run may use: its ranks, then its links."""


def write_perfetto(
    runs: Mapping[str, Path], out: Path, epochs: int | None = None, predictions: Sequence[str] = ()
) -> None:
    """Write one trace with the ranks of every run, named ``label rank N``; ``epochs`` keeps only the first so many.

    Runs whose label is in ``predictions`` also get a process with a counter of the bytes per second on each link.
    Raises :class:`ConfigError` when a directory holds no trace.
    """
    events: list[dict[str, Any]] = []
    for position, (label, path) in enumerate(runs.items()):
        events += _events(label, RunDirectory(path), position * PROCESSES, epochs)
        if label in predictions:
            events += _links(label, RunDirectory(path), (position + 1) * PROCESSES - 1, epochs)
    write_atomically(out, json.dumps({"displayTimeUnit": "ms", "traceEvents": events}))


def _events(label: str, run: RunDirectory, first_process: int, epochs: int | None) -> list[dict[str, Any]]:
    frame = op_times(run)
    if epochs is not None:
        frame = frame[frame["epoch"] < epochs]
    events: list[dict[str, Any]] = []
    streams = {name: place for place, name in enumerate(sorted(frame["stream"].unique()))}
    for rank in sorted(int(rank) for rank in frame["rank"].unique()):
        process = first_process + rank
        events.append(_name("process_name", process, 0, f"{label} rank {rank}"))
        events += [_name("thread_name", process, place, name) for name, place in streams.items()]
        events += _counter(process, frame[frame["rank"] == rank])
    if run.memory.is_file() and not frame.empty:
        events += _held(run, first_process, float(frame["ended_s"].max()))
    columns = ["rank", "epoch", "step", "op", "kind", "stream", "issued_s", "started_s", "ended_s", "bytes_sent"]
    rows: list[dict[Any, Any]] = frame[[*columns, "wait"]].to_dict("records")
    for row in rows:
        base = {"pid": first_process + row["rank"], "tid": streams[row["stream"]], "ph": "X"}
        if row["wait"] > 0:
            start, length = row["issued_s"] * MICROSECONDS, row["wait"] * MICROSECONDS
            events.append({**base, "name": "wait", "cat": "wait", "ts": start, "dur": length})
        events.append(
            {
                **base,
                "name": row["op"],
                "cat": row["kind"],
                "ts": row["started_s"] * MICROSECONDS,
                "dur": (row["ended_s"] - row["started_s"]) * MICROSECONDS,
                "args": {key: row[key] for key in ("epoch", "step", "bytes_sent")},
            }
        )
    return events


def _links(label: str, run: RunDirectory, process: int, epochs: int | None) -> list[dict[str, Any]]:
    events = [_name("process_name", process, 0, f"{label} links")]
    for name, (times, levels) in link_use(run, epochs).items():
        events += [
            {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": time * MICROSECONDS, "args": {"bytes/s": level}}
            for time, level in zip(times.tolist(), levels.tolist(), strict=True)
        ]
    return events


def _held(run: RunDirectory, first_process: int, until_s: float) -> list[dict[str, Any]]:
    """What each rank holds on its device and in its host's memory."""
    table = read_table(run.memory)
    rows: list[dict[str, Any]] = table.filter(pc.less_equal(table["time_s"], until_s)).to_pylist()
    return [
        {"ph": "C", "name": "memory bytes", "pid": first_process + row["rank"], "tid": 0,
         "ts": row["time_s"] * MICROSECONDS, "args": {"device": row["device_bytes"], "host": row["host_bytes"]}}
        for row in rows
    ]  # fmt: skip


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _counter(process: int, frame: Any) -> list[dict[str, Any]]:
    """Mean rate at which a rank sends, from the bytes of each op spread over its transfer."""
    sending = frame[frame["bytes_sent"] > 0]
    if sending.empty:
        return []
    start, end = sending["started_s"].to_numpy(), sending["ended_s"].to_numpy()
    rate = sending["bytes_sent"].to_numpy() / np.maximum(end - start, 1e-12)
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    level = np.cumsum(np.concatenate([rate, -rate])[order])
    return [
        {"ph": "C", "name": "sent bytes/s", "pid": process, "tid": 0, "ts": float(time) * MICROSECONDS,
         "args": {"bytes/s": max(float(value), 0.0)}}
        for time, value in zip(times[order], np.round(level, 3), strict=True)
    ]  # fmt: skip
