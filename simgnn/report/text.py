"""Comparisons of two runs as sentences, and as tables on a terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simgnn.analysis.compare import Communication, Comparison, Difference, EnergyDifference
from simgnn.record.energy import joules_text

if TYPE_CHECKING:
    from rich.table import Table

CAUTION, ENERGY = "caution: ", "energy of an epoch: "
COMMUNICATION = "Communication of a typical epoch, mean over ranks"
"""Title of the table of :func:`communication_rows`."""


def comparison_lines(comparison: Comparison) -> list[str]:
    """Return sentences on what was compared: the epoch error, what limits the comparison, traffic and energy."""
    measured, epoch = comparison.measured, comparison.epoch
    first, second = comparison.sides
    differs = _word(comparison)
    lines = [
        f"{measured.name}: {measured.ranks} ranks, {comparison.epochs} epochs compared, program "
        f"{measured.program_digest[:12]}",
        f"epoch: {first} {_s(epoch.predicted_s)}, {second} {_s(epoch.measured_s)} "
        f"(spread between epochs {_s(comparison.epoch_spread_s)}), {differs} {_percent(epoch.error)}",
        *(f"{CAUTION}{text}" for text in comparison.cautions),
    ]
    if comparison.interval is not None:
        low, high = comparison.interval
        place = "inside" if comparison.inside else "outside"
        lines.append(f"90 % interval of the prediction: {_s(low)} .. {_s(high)}; the measured median lies {place}")
    if measured.jitter is None and comparison.predicted.jitter is not None:
        added = comparison.predicted.jitter.added_s
        lines.append(f"of the predicted epoch and its waits {_s(added)} come from jitter (expected greatest times)")
    lines.append(
        f"payload between ranks: {comparison.bytes_differ} bytes and {comparison.messages_differ} messages differ"
    )
    if comparison.batches_differ is not None:
        why = "differ in their rows or row sources, or are recorded by one side only"
        lines.append(f"mini-batches: {comparison.batches_differ} {why}")
    return [*lines, _energy(comparison.energy, comparison.sides, differs)]


def communication_rows(communication: Communication) -> list[tuple[str, ...]]:
    """Return a row of text for all communication, its parts, and what of it no op of the rank hides: quantity, both
    sides, their difference, absolute and relative."""
    named = {
        "waiting and transfers": communication.total,
        "  waiting": communication.wait,
        "  transfers": communication.transfer,
        "exposed: no op computes": communication.exposed,
    }
    shares = ("-" if share is None else f"{100 * share:.1f} %" for share in communication.exposed_shares)
    return [*((name, *_cells(part)) for name, part in named.items()), ("exposed share", *shares, "", "")]


def communication_columns(comparison: Comparison) -> tuple[str, ...]:
    """Return the header of :func:`communication_rows`."""
    return ("", *comparison.sides, "difference", "relative")


def print_comparison(comparison: Comparison) -> None:
    """Print the epoch error, the error of each op kind (compute, wait, transfer), how much of the communication is
    exposed, and the ops that differ most."""
    # rich: loaded when a table is printed
    from rich.console import Console
    from rich.table import Table

    console = Console()
    first, second = comparison.sides
    differs = _word(comparison)
    head, *lines = comparison_lines(comparison)
    console.print(f"[bold]{comparison.measured.name}[/bold]{head.removeprefix(comparison.measured.name)}")
    for line in lines:
        console.print(line, markup=False, highlight=not line.startswith((CAUTION, ENERGY)))
    table = Table(title=f"Mean over ranks, seconds of an epoch: {first} / {second} ({differs})")
    for column in ("op kind", "compute", "wait", "transfer"):
        table.add_column(column, justify="left" if column == "op kind" else "right")
    for kind in comparison.kinds:
        table.add_row(kind.kind, _cell(kind.compute), _cell(kind.wait), _cell(kind.transfer))
    table.add_section()
    table.add_row("all", *(_cell(part) for part in comparison.parts))
    console.print(table)
    if comparison.communication is not None:
        rows = communication_rows(comparison.communication)
        console.print(_differences(COMMUNICATION, communication_columns(comparison), rows))
    columns = ("op", first, second, "difference", "relative")
    rows = [(op.name, *_cells(op)) for op in comparison.top]
    console.print(_differences("Ops with the largest absolute difference", columns, rows))


def _differences(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> "Table":
    # rich: loaded when a table is printed
    from rich.table import Table

    table = Table(title=title)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _cells(one: Difference) -> tuple[str, ...]:
    return _s(one.predicted_s), _s(one.measured_s), _s(one.difference_s), _percent(one.error)


def _word(comparison: Comparison) -> str:
    return "error" if comparison.sides == ("predicted", "measured") else "difference"


def _cell(difference: Difference) -> str:
    if difference.predicted_s == 0 and difference.measured_s == 0:
        return ""
    return f"{_s(difference.predicted_s)} / {_s(difference.measured_s)} ({_percent(difference.error)})"


def _energy(energy: EnergyDifference, sides: tuple[str, str], differs: str) -> str:
    found = zip(
        sides,
        (energy.predicted_J, energy.measured_J),
        (energy.predicted_unknown, energy.measured_unknown),
        strict=True,
    )
    parts = [f"{side} {f'unknown ({why})' if joules is None else joules_text(joules)}" for side, joules, why in found]
    if energy.error is not None:
        parts.append(f"{differs} {_percent(energy.error)}")
    return f"{ENERGY}{', '.join(parts)}"


def _s(seconds: float) -> str:
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+.1f} %"
