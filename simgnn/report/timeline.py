"""What each rank did in one epoch, as a Plotly figure: a row for each stream of a rank, a colour for each op kind."""

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from simgnn.errors import ConfigError

MOST_BARS = 20_000
"""Most ops of a figure; the first of an epoch are shown."""
MILLISECONDS = 1e3
WAIT = "wait"


def timeline(
    sides: Mapping[str, pd.DataFrame], title: str, epoch: int | None = None, most: int = MOST_BARS
) -> go.Figure:
    """Draw one epoch of the traces in ``sides`` (:func:`simgnn.analysis.compare.timed_ops`), below one another; each
    starts at 0. ``epoch``: counted from 1; default: the second that all have, or the only one. ``most``: bars that are
    drawn at most, the first of the epoch.

    Raises :class:`ConfigError` if a trace lacks the epoch."""
    trained = {name: frame[frame["step"] >= 0] for name, frame in sides.items()}
    known = sorted(set.intersection(*(set(frame["epoch"] + 1) for frame in trained.values())))
    if not known or epoch not in (None, *known):
        has = f"one of {known[0]} to {known[-1]}" if known else "traces with an epoch in common"
        raise ConfigError(f"timeline: got epoch {epoch}, expected {has}")
    epoch = known[min(1, len(known) - 1)] if epoch is None else epoch
    shown = {name: frame[frame["epoch"] + 1 == epoch] for name, frame in trained.items()}
    bars = pd.concat([_bars(name if len(shown) > 1 else "", frame) for name, frame in shown.items()])
    left_out = len(bars) - most
    if left_out > 0:
        bars = bars.nsmallest(most, "from_ms", keep="first")
        title += f", without the last {left_out:,} ops"
    figure = go.Figure([_trace(str(kind), rows) for kind, rows in bars.groupby("kind", sort=True)])
    figure.update_layout(title=f"{title}, epoch {epoch}", barmode="overlay", bargap=0.3, legend_title="op kind")
    figure.update_xaxes(title="ms since the epoch began")
    figure.update_yaxes(categoryorder="array", categoryarray=list(dict.fromkeys(bars["row"]))[::-1])
    return figure


def _bars(side: str, ops: pd.DataFrame) -> pd.DataFrame:
    """The ops of one side and their waits as bars: ``row``, ``kind``, ``from_ms``, ``length_ms``, ``op``, ``step``,
    ``bytes``."""
    ops = ops.sort_values(["rank", "stream", "issued_s"], kind="stable")
    rows = [f"{side} rank {rank} {stream}".strip() for rank, stream in zip(ops["rank"], ops["stream"], strict=True)]
    shared = {"row": rows, "op": ops["op"], "step": ops["step"], "bytes": ops["bytes_sent"] + ops["collective_bytes"]}
    begun, waits = ops["issued_s"].min(), ops["wait"] > 0
    started = ops["started_s"].where(waits | (ops["compute"] == 0), ops["issued_s"])
    work = pd.DataFrame(
        {
            **shared,
            "kind": ops["kind"],
            "from_ms": (started - begun) * MILLISECONDS,
            "length_ms": (ops["ended_s"] - started) * MILLISECONDS,
        }
    )
    issued = (ops["issued_s"] - begun) * MILLISECONDS
    waiting = pd.DataFrame({**shared, "kind": WAIT, "from_ms": issued, "length_ms": ops["wait"] * MILLISECONDS})
    return pd.concat([work, waiting[waits]])


def _trace(kind: str, rows: pd.DataFrame) -> go.Bar:
    return go.Bar(
        name=kind,
        orientation="h",
        y=rows["row"],
        base=rows["from_ms"].tolist(),
        x=rows["length_ms"],
        marker={"color": "#ddd"} if kind == WAIT else {},
        customdata=rows[["op", "step", "bytes"]],
        hovertemplate="%{customdata[0]}<br>step %{customdata[1]}, %{x:.4g} ms, %{customdata[2]:,} bytes<extra></extra>",
    )
