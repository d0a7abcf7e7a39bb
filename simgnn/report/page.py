"""Self-contained HTML pages of text, tables and plots, which need no network access."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgnn.tomlfile import write_atomically

if TYPE_CHECKING:
    import plotly.graph_objects as go

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:80rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd;"
    "text-align:right}td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}"
    "caption{text-align:left;font-weight:bold}"
    "dl{display:grid;grid-template-columns:max-content auto;gap:.1rem 1rem;font-size:13px;color:#555}dd{margin:0}"
)


def write_page(path: Path, title: str, parts: "Sequence[str | go.Figure]") -> None:
    """Write a page of ``parts``, HTML text or figures, atomically."""
    body = [f"<h1>{html.escape(title)}</h1>"]
    figures = 0
    for part in parts:
        if not isinstance(part, str):
            part = part.to_html(full_html=False, include_plotlyjs=figures == 0, div_id=f"plot{figures}")
            figures += 1
        body.append(part)
    head = f'<head><meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style></head>'
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f'<!doctype html>\n<html lang="en">{head}<body>\n' + "\n".join(body) + "\n</body></html>\n")


def paragraphs(lines: Sequence[str]) -> str:
    """Return each line as an HTML paragraph."""
    return "\n".join(f"<p>{html.escape(line)}</p>" for line in lines)


def bullets(lines: Sequence[str]) -> str:
    """Return an HTML list with an item for each line; nothing without lines."""
    return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> str:
    """Return an HTML table, with a header row if ``columns`` has any text."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    caption = f"<caption>{html.escape(title)}</caption>" if title else ""
    head = line(columns, "th") if any(columns) else ""
    return f"<table>{caption}{head}{''.join(line(row, 'td') for row in rows)}</table>"


def definitions(entries: Mapping[str, str]) -> str:
    """Return terms and what they mean as an HTML list."""
    lines = (f"<dt>{html.escape(term)}</dt><dd>{html.escape(text)}</dd>" for term, text in entries.items())
    return f"<dl>{''.join(lines)}</dl>"


def scatter(groups: Mapping[str, Mapping[str, Any]], across: str, upright: str, diagonal: bool = True) -> "go.Figure":
    """Plot points on logarithmic axes titled ``across`` and ``upright``, one colour for each group (``x``, ``y`` and
    other arguments of plotly); ``diagonal``: add a line where both are equal."""
    # plotly: loaded when a report is written
    import plotly.graph_objects as go

    figure = go.Figure([go.Scatter(mode="markers", name=name, **points) for name, points in groups.items()])
    if diagonal:
        values = [value for points in groups.values() for axis in ("x", "y") for value in points[axis]] or [1e-6, 1.0]
        ends = [min(values), max(values)]
        line = {"color": "#999", "dash": "dot"}
        figure.add_trace(go.Scatter(x=ends, y=ends, mode="lines", name="equal", line=line))
    figure.update_xaxes(type="log", title=across)
    figure.update_yaxes(type="log", title=upright)
    return figure
