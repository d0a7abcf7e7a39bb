"""Self-contained HTML pages of text, tables and plots, which need no network access."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgnn.tomlfile import write_atomically

if TYPE_CHECKING:
    import plotly.graph_objects as go

STYLE = (
    ":root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--line:#d0d7de;--soft:#57606a;--mark:#eaeef2}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--line:#3d444d;--soft:#9da7b3;--mark:#262c36}}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:80rem;margin:2rem auto;padding:0 1rem;color:var(--ink);"
    "background:var(--paper)}"
    "h1{font-size:1.5rem;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:2.2rem 0 .3rem}p{max-width:60rem}"
    "a{color:inherit}nav{display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:13px}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .7rem;"
    "border-bottom:1px solid var(--line);text-align:right}"
    "td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}"
    "caption{text-align:left;font-weight:bold}summary{cursor:pointer;color:var(--soft);font-size:13px}"
    "dl{display:grid;grid-template-columns:max-content auto;gap:.1rem 1rem;font-size:13px;color:var(--soft)}"
    "dd{margin:0}"
    ".badge{display:inline-block;padding:0 .5rem;margin:0 .3rem .3rem 0;border-radius:.7rem;background:var(--mark);"
    "border:1px solid var(--line);font-size:13px}.verdict{font-size:1.1rem}"
    # figures are drawn on nothing, and their text has the colour of the page, so that they fit light and dark
    ".js-plotly-plot .main-svg{background:transparent!important}.js-plotly-plot .bg{fill:transparent!important}"
    ".js-plotly-plot text:not(.nums):not(.name){fill:var(--ink)!important}"
    ".js-plotly-plot .gridlayer path,.js-plotly-plot .zerolinelayer path{stroke:var(--line)!important}"
    "@media(max-width:500px){dl{grid-template-columns:auto}td,th{padding:.2rem .4rem}body{margin:1rem auto}}"
)
FONT = {"size": 12, "family": "system-ui, sans-serif"}
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0")
"""Ten colours that are told apart on light and on dark paper."""


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading: text, a figure, and its numbers as a table, which readers open where there is a
    figure. ``label``: what the figure shows, for those who cannot see it."""

    title: str
    text: str = ""
    figure: "go.Figure | None" = None
    label: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def write_page(path: Path, title: str, parts: "Sequence[str | Section | go.Figure]") -> None:
    """Write a page of ``parts``, HTML text, sections or figures, atomically. Sections are listed at the top."""
    body, figures = [f"<h1>{html.escape(title)}</h1>"], 0
    sections = [part for part in parts if isinstance(part, Section)]
    if len(sections) > 1:
        links = (f'<a href="#{_anchor(one)}">{html.escape(one.title)}</a>' for one in sections)
        body.append(f"<nav>{''.join(links)}</nav>")
    for part in parts:
        figure = part.figure if isinstance(part, Section) else None if isinstance(part, str) else part
        drawn = ""
        if figure is not None:
            drawn, figures = _drawn(figure, figures), figures + 1
        body.append(part if isinstance(part, str) else drawn if not isinstance(part, Section) else _shown(part, drawn))
    viewport = '<meta name="viewport" content="width=device-width,initial-scale=1">'
    head = f'<head><meta charset="utf-8">{viewport}<title>{html.escape(title)}</title><style>{STYLE}</style></head>'
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f'<!doctype html>\n<html lang="en">{head}<body>\n' + "\n".join(body) + "\n</body></html>\n")


def _anchor(section: Section) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in section.title.lower())


def _drawn(figure: "go.Figure", number: int) -> str:
    """Return a figure as HTML; the first of a page brings plotly.js along."""
    clear = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}
    figure.update_layout(font=FONT, colorway=COLOURS, autosize=True, **clear)
    text: str = figure.to_html(
        full_html=False,
        include_plotlyjs=number == 0,
        div_id=f"plot{number}",
        config={"responsive": True, "displayModeBar": False},
    )
    return text


def _shown(section: Section, drawn: str) -> str:
    parts = [f'<section><h2 id="{_anchor(section)}">{html.escape(section.title)}</h2>', section.text]
    if drawn:
        parts.append(f'<div role="img" aria-label="{html.escape(section.label or section.title)}">{drawn}</div>')
    if section.rows:
        numbers = table(section.columns, section.rows)
        parts.append(f"<details><summary>the same as a table</summary>{numbers}</details>" if drawn else numbers)
    return "".join([*parts, "</section>"])


def badges(words: Sequence[str]) -> str:
    """Return words that say how much the numbers can be trusted, each in a frame."""
    return "".join(f'<span class="badge">{html.escape(word)}</span>' for word in words)


def verdict(line: str) -> str:
    """Return the sentence that a page begins with."""
    return f'<p class="verdict">{html.escape(line)}</p>'


def paragraphs(lines: Sequence[str]) -> str:
    """Return each line as an HTML paragraph."""
    return "\n".join(f"<p>{html.escape(line)}</p>" for line in lines)


def bullets(lines: Sequence[str]) -> str:
    """Return an HTML list with an item for each line; nothing without lines."""
    return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>" if lines else ""


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> str:
    """Return an HTML table, with a header row if ``columns`` has any text. A narrow window scrolls it, also by keys."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    caption = f"<caption>{html.escape(title)}</caption>" if title else ""
    head = line(columns, "th") if any(columns) else ""
    body = "".join(line(row, "td") for row in rows)
    return f'<div class="wide" tabindex="0"><table>{caption}{head}{body}</table></div>'


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
