"""The figures of a page as Plotly figures: of the ranks of an outcome, of its traffic, memory and training."""

from collections.abc import Mapping, Sequence
from textwrap import wrap

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from simgnn.record.explanation import Explanation
from simgnn.record.limited_by import LimitedBy
from simgnn.record.result import Result
from simgnn.report.results import figures_by_epoch

Floats = NDArray[np.float64]
MILLISECONDS = 1e3
MIB = 1 << 20
MOST_RANKS = 16
"""Ranks with a line or row of their own; more cannot be told apart."""
LABEL = 24
"""Letters of a line of a name beside an axis."""
BINS = 200
"""Points of a line over time."""
PARTS: Mapping[str, str] = {
    "computing": "compute_s",
    "waiting or communicating, nothing computes": "comm_exposed_s",
}
ROW_PX, LEAST_PX = 26, 320


def of_rows(figure: go.Figure, rows: int) -> go.Figure:
    """Give a figure with ``rows`` rows the height that they need."""
    return figure.update_layout(height=max(LEAST_PX, 180 + ROW_PX * rows), margin={"l": 10, "r": 10, "t": 20, "b": 90})


def narrow(figure: go.Figure) -> go.Figure:
    """Put the legend below the figure, so that a narrow window has room for both."""
    legend = {"orientation": "h", "y": -0.25, "yanchor": "top", "x": 0, "title": ""}
    return figure.update_layout(legend=legend).update_yaxes(automargin=True).update_xaxes(automargin=True)


def in_lines(key: str) -> str:
    """Break a long name so that a narrow window has room for it."""
    return "<br>".join(wrap(key, LABEL, break_long_words=True))


def breakdown(sides: Mapping[str, Result]) -> go.Figure:
    """Bars of each rank, of each side: seconds of a median epoch by what the rank does."""
    bars: dict[str, tuple[list[str], list[float]]] = {name: ([], []) for name in PARTS}
    count = 0
    for side, result in sides.items():
        for rank, times in enumerate(result.per_rank[:MOST_RANKS]):
            count += 1
            for name, field in PARTS.items():
                bars[name][0].append(f"{side} rank {rank}" if len(sides) > 1 else f"rank {rank}")
                bars[name][1].append(getattr(times, field) * MILLISECONDS)
    figure = go.Figure([go.Bar(name=name, orientation="h", y=rows, x=ms) for name, (rows, ms) in bars.items()])
    figure.update_layout(barmode="stack").update_xaxes(title="ms of a median epoch").update_yaxes(autorange="reversed")
    return narrow(of_rows(figure, count))


def traffic_matrix(result: Result) -> go.Figure:
    """The payload of messages from each rank to each other, MiB of an epoch."""
    sent = np.array(result.bytes_sent, dtype=np.float64) / MIB
    names = [f"rank {rank}" for rank in range(len(sent))]
    heat = go.Heatmap(
        z=sent, x=names, y=names, colorscale="Viridis", colorbar={"title": "MiB"},
        hovertemplate="%{y} to %{x}: %{z:.4g} MiB<extra></extra>",
    )  # fmt: skip
    figure = go.Figure(heat).update_yaxes(autorange="reversed", title="from").update_xaxes(title="to")
    return narrow(of_rows(figure, len(sent)))


def on_the_way(ops: pd.DataFrame, shares: Mapping[tuple[int, int], float]) -> tuple[Floats, dict[str, Floats]]:
    """Return moments [BINS] in seconds since an epoch began, and the bytes a second on the way then, within hosts and
    between hosts. ``ops``: the timed ops of one epoch; bytes of an op flow evenly from its start to its end.
    ``shares``: which share of the bytes that a (op_id, rank) sends goes to other hosts."""
    payload = (ops["bytes_sent"] + ops["collective_bytes"]).to_numpy(np.float64)
    ops, payload = ops[payload > 0], payload[payload > 0]
    began = float(ops["issued_s"].min()) if len(ops) else 0.0
    start = ops["started_s"].to_numpy(np.float64) - began
    end = np.maximum(ops["ended_s"].to_numpy(np.float64) - began, start + 1e-9)
    edges = np.linspace(0.0, float(end.max(initial=1e-9)), BINS + 1)
    far = np.array([shares.get(key, 0.0) for key in zip(ops["op_id"], ops["rank"], strict=True)])
    # how much of each op has flowed at each edge
    flowed = np.clip((edges[:, None] - start) / (end - start), 0.0, 1.0)
    width = edges[1] - edges[0]
    found = {}
    for name, part in (("within hosts", payload * (1.0 - far)), ("between hosts", payload * far)):
        if part.any():
            found[name] = np.diff(flowed @ part) / width
    return (edges[1:] + edges[:-1]) / 2, found


def traffic_over_time(moments: Floats, rates: Mapping[str, Floats]) -> go.Figure:
    """Lines of :func:`on_the_way`."""
    at = moments * MILLISECONDS
    figure = go.Figure([go.Scatter(x=at, y=rate / MIB, name=name, mode="lines") for name, rate in rates.items()])
    figure.update_xaxes(title="ms since the epoch began").update_yaxes(title="MiB/s", rangemode="tozero")
    return narrow(of_rows(figure, 0))


def memory_over_time(memory: pd.DataFrame, limits: Mapping[str, int]) -> go.Figure:
    """A line for each rank: memory in use on its device over time; ``limits``: dashed lines, bytes by name."""
    figure = go.Figure()
    for rank, rows in memory[memory["rank"] < MOST_RANKS].groupby("rank"):
        few, steps = _thinned(rows), {"shape": "hv"}
        at, held = few["time_s"] * MILLISECONDS, few["device_bytes"] / MIB
        figure.add_trace(go.Scatter(x=at, y=held, name=f"rank {rank}", mode="lines", line=steps))
    for name, nbytes in limits.items():
        figure.add_hline(y=nbytes / MIB, line_dash="dash", annotation_text=name)
    figure.update_xaxes(title="ms since training began").update_yaxes(title="MiB", rangemode="tozero")
    return narrow(of_rows(figure, 0))


def _thinned(rows: pd.DataFrame, most: int = 2_000) -> pd.DataFrame:
    """The largest of every few moments, so that no peak is lost."""
    if len(rows) <= most:
        return rows
    pieces = np.arange(len(rows)) * most // len(rows)
    return rows.loc[rows.groupby(pieces)["device_bytes"].idxmax()].sort_values("time_s")


def memory_peaks(sides: Mapping[str, Result]) -> go.Figure:
    """Bars of the peaks of devices and hosts of each side, with the capacity where it is known."""
    figure, count = go.Figure(), 0
    for side, result in sides.items():
        names = [f"{peak.place}: {peak.name}" for peak in result.memory]
        count += len(names)
        peaks = [peak.peak_bytes / MIB for peak in result.memory]
        figure.add_trace(go.Bar(name=side, orientation="h", y=names, x=peaks))
        pairs = zip(names, result.memory, strict=True)
        known = {name: peak.capacity_bytes / MIB for name, peak in pairs if peak.capacity_bytes}
        if known:
            marker, name = {"symbol": "line-ns-open", "size": 16}, f"capacity ({side})"
            figure.add_trace(
                go.Scatter(name=name, mode="markers", marker=marker, y=list(known), x=list(known.values()))
            )
    figure.update_xaxes(title="MiB", rangemode="tozero").update_yaxes(autorange="reversed")
    return narrow(of_rows(figure, count))


def training(result: Result) -> go.Figure:
    """Loss and accuracies by epoch."""
    rows = pd.DataFrame(figures_by_epoch(result))
    figure = go.Figure()
    for name in ("loss", "train", "validation", "test"):
        known = rows[rows[name].notna()]
        if len(known):
            axis = {} if name == "loss" else {"yaxis": "y2"}
            figure.add_trace(go.Scatter(x=known["epoch"], y=known[name], name=name, mode="lines+markers", **axis))
    second = {"title": result.accuracy_metric.replace("_", "-"), "overlaying": "y", "side": "right", "showgrid": False}
    figure.update_layout(yaxis={"title": "loss", "rangemode": "tozero"}, yaxis2=second).update_xaxes(title="epoch")
    return narrow(of_rows(figure, 0))


def effects(found: Explanation, most: int) -> go.Figure:
    """Bars: by which share the epoch gets shorter or longer with each number twice and half as good."""
    shown = found.effects[:most]
    keys = [in_lines(one.key) for one in shown]
    bars = []
    for name, values in (
        ("twice as good", [one.better_s for one in shown]),
        ("half as good", [one.worse_s for one in shown]),
    ):
        change = [None if value is None else 100.0 * (value / found.epoch_s - 1.0) for value in values]
        bars.append(go.Bar(name=name, orientation="h", y=keys, x=change))
    figure = go.Figure(bars).update_layout(barmode="overlay")
    figure.update_xaxes(title="change of the epoch, %").update_yaxes(autorange="reversed")
    return narrow(of_rows(figure, len(shown)))


def limits(found: LimitedBy) -> go.Figure:
    """Bars: by which share the epoch gets shorter with the numbers that limit it twice as good."""
    keys = [in_lines(one.key) for one in found.numbers]
    bar = go.Bar(orientation="h", y=keys, x=[-100.0 * one.shorter for one in found.numbers])
    figure = go.Figure(bar).update_xaxes(title="change of the epoch, %").update_yaxes(autorange="reversed")
    return narrow(of_rows(figure, len(keys)))


def epoch_times(results: Sequence[tuple[str, Result]]) -> go.Figure:
    """Bars of the median epochs of outcomes, with their 90 % intervals."""
    names = [name for name, _ in results]
    middle = [0.0 if one.epoch_s_median is None else one.epoch_s_median * MILLISECONDS for _, one in results]
    ends = [(one.epoch_s_interval or (0.0, 0.0)) if one.epoch_s_interval else None for _, one in results]
    more = [0.0 if end is None else end[1] * MILLISECONDS - ms for end, ms in zip(ends, middle, strict=True)]
    less = [0.0 if end is None else ms - end[0] * MILLISECONDS for end, ms in zip(ends, middle, strict=True)]
    error = {"type": "data", "array": more, "arrayminus": less, "symmetric": False}
    figure = go.Figure(go.Bar(orientation="h", y=names, x=middle, error_x=error))
    figure.update_xaxes(title="ms of a median epoch").update_yaxes(autorange="reversed")
    return narrow(of_rows(figure, len(names)))
