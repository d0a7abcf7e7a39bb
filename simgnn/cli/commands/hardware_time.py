"""``simgnn hardware time``: predict how long one op takes on a machine."""

import json
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simgnn.cli.options import path_option
from simgnn.cli.tables.console import note, print_json
from simgnn.errors import ConfigError
from simgnn.outside import check_regular
from simgnn.report.terminal import print_table
from simgnn.units import parse

if TYPE_CHECKING:
    from simgnn.hardware.price.machine import Machine
    from simgnn.hardware.price.operations import Question
    from simgnn.sim.one_op import OpTime

MOST_NUMBERS = 12
"""Most profile numbers behind a price that are printed; --json has all."""


def _size(help: str, *names: str, metavar: str = "N") -> Any:
    return typer.Option(*names, help=help, show_default=False, metavar=metavar, rich_help_panel="Sizes of the op")


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A profile's name, or a TOML file.")],
    op: Annotated[str, typer.Argument(metavar="OP", help="allreduce, broadcast, allgather, barrier, send, exchange, "
                                      "h2d, d2h, aggregate, matmul, elementwise, copy, gather, loss, optimizer, "
                                      "attention_sums, ... (any other name lists them all)")],
    bytes_: Annotated[str | None, _size("Bytes with a unit: 64MiB. All-gather: of one rank; exchange: of every pair.",
                                        "--bytes", metavar="SIZE")] = None,
    ranks: Annotated[int | None, typer.Option("--ranks", metavar="P", help="Ranks that take part, host by host; "
                     "default: one a device, on CPUs as many as were calibrated if these are more, of a testbed those "
                     "that it declares (aggregate, matmul...: each does the same work).",
                     show_default=False)] = None,
    per_host: Annotated[int | None, typer.Option("--ranks-per-host", metavar="N", help="Ranks on each host; "
                        "default: as many as fit, of a testbed as it declares.",
                        show_default=False)] = None,
    threads: Annotated[int | None, typer.Option("--threads", metavar="N", help="CPU threads of each rank; default: the "
                       "device's cores divided evenly.", show_default=False)] = None,
    from_: Annotated[str | None, _size("Sender of a send; default 0.", "--from", metavar="RANK")] = None,
    to: Annotated[str | None, _size("Receiver of a send; default 1.", metavar="RANK")] = None,
    root: Annotated[str | None, _size("Root of a broadcast; default 0.", metavar="RANK")] = None,
    matrix: Annotated[Path | None, path_option("--matrix", "FILE", "Bytes of an exchange, row: sender, "
                      "column: receiver; .npy, .csv (bytes, or sizes with a unit) or .json.",
                      rich_help_panel="Sizes of the op")] = None,
    edges: Annotated[str | None, _size("Edges.")] = None,
    rows: Annotated[str | None, _size("Rows that are written.")] = None,
    width: Annotated[str | None, _size("Elements of a row.")] = None,
    sources: Annotated[str | None, _size("Rows that are read through the edges; default: rows.")] = None,
    nonzeros: Annotated[str | None, _size("Stored values of sparse features.")] = None,
    inner: Annotated[str | None, _size("Inner dimension of a product.")] = None,
    outer: Annotated[str | None, _size("Outer dimension of a product.")] = None,
    heads: Annotated[str | None, _size("Heads of attention.")] = None,
    crossed: Annotated[str | None, _size("1: a weight gradient, the left side is held transposed.")] = None,
    passes: Annotated[str | None, _size("Reads and writes of an elementwise op, default 2, or of scores, 1.")] = None,
    elements: Annotated[str | None, _size("Elements (optimizer).")] = None,
    vertices: Annotated[str | None, _size("Vertices (sample).")] = None,
    item_bytes: Annotated[str | None, _size("Bytes of an element; default 4.")] = None,
    row_bytes: Annotated[str | None, _size("Bytes of a row as it is encoded: 72B.")] = None,
    backend: Annotated[str, typer.Option("--backend", help="gloo, nccl, or the profile's default.")] = "default",
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output, numbers in SI units.")] = False,
) -> None:  # fmt: skip
    """Predict the time of one op, with its 90 % interval and where its numbers come from.

    The op is simulated alone on the profile's machine, with the prices and the network that 'simulate' uses; messages
    of an exchange contend. What lies outside the measured range is flagged. The interval is lognormal, with the largest
    spread of the numbers behind it. Examples: [bold]simgnn hardware time a800-pcie-ib-2x8 allreduce --bytes 64MiB
    --ranks 8[/bold], [bold]... send --bytes 1MiB --from 0 --to 8[/bold], [bold]... exchange --matrix FILE[/bold],
    [bold]... aggregate --edges 1e6 --rows 1e5 --width 256[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.hardware.price.machine import Machine
    from simgnn.hardware.price.operations import read_question, spread_ranks
    from simgnn.hardware.profile.profile import load_profile

    sizes = {"bytes": bytes_, "from": from_, "to": to, "root": root, "edges": edges, "rows": rows, "width": width,
             "sources": sources, "nonzeros": nonzeros, "inner": inner, "outer": outer, "heads": heads,
             "crossed": crossed, "passes": passes, "elements": elements, "vertices": vertices, "item_bytes": item_bytes,
             "row_bytes": row_bytes}  # fmt: skip
    given = {name: text for name, text in sizes.items() if text is not None}
    table = None if matrix is None else read_matrix(matrix)
    question = read_question(op, given, ranks=ranks, matrix=table, backend=backend)
    if threads is not None and threads < 1:
        raise ConfigError(f"--threads: got {threads}, expected at least 1")
    profile = load_profile(name)
    machine = Machine.place(profile, spread_ranks(profile, question.ranks, per_host), threads)
    if question.form.moves:
        if question.form.moves != "copy":
            machine.backend(backend)
        if "root" in question.sizes and question.sizes["root"] >= machine.ranks:
            raise ConfigError(f"--root: got rank {root}, expected one of the {machine.ranks} ranks, numbered from 0")
    # the simulator is slow to load: only once everything is right
    from simgnn.sim.one_op import time_op

    _show(question, machine, time_op(question, machine), as_json)


def read_matrix(path: Path) -> list[list[int]]:
    """Read bytes from rank i to rank j, [P][P], from .npy, .json, or lines of numbers or sizes ("64 KiB").

    Raises :class:`ConfigError` for a file without such a table.
    """
    if path.exists():
        check_regular(path, ConfigError)
    try:
        if path.suffix == ".npy":
            # loaded when the command runs: its help starts fast
            import numpy as np

            from simgnn.npzfile import read_npy

            table = read_npy(path) if path.stat().st_size else np.zeros((0, 0))
            if table.ndim != 2 or table.dtype.kind not in "iuf":
                raise ConfigError(f"--matrix: {path} holds {table.dtype} {list(table.shape)}, expected numbers [P, P]")
            entries: list[list[Any]] = table.tolist()
        elif path.suffix == ".json":
            entries = json.loads(path.read_text() or "[]")
        else:
            lines = [line.strip() for line in path.read_text().splitlines()]
            lines = [line.replace(";", ",") for line in lines if line and not line.startswith("#")]
            entries = [line.split("," if "," in line else None) for line in lines]
    except (OSError, ValueError, EOFError, RecursionError) as error:
        raise ConfigError(f"--matrix: {path} cannot be read: {error}") from None
    if not isinstance(entries, list) or not all(isinstance(row, list) for row in entries) or not entries:
        what = "is empty" if entries == [] else "holds no table"
        raise ConfigError(f"--matrix: {path} {what}, expected P rows of P numbers: bytes from i to j")
    return [
        [_entry(value, f"{path}, row {i}, column {j}") for j, value in enumerate(row)] for i, row in enumerate(entries)
    ]


def _entry(value: Any, where: str) -> int:
    try:
        found = float(value)
    except (ValueError, TypeError, OverflowError):
        try:
            found = parse(value, "bytes")
        except ValueError as error:
            raise ConfigError(f"--matrix: {where}: {error}") from None
    if isinstance(value, bool) or not (0 <= found < inf) or found != int(found):
        raise ConfigError(f"--matrix: {where}: got {value}, expected a whole number of bytes, none negative")
    return int(found)


def _show(question: "Question", machine: "Machine", time: "OpTime", as_json: bool) -> None:
    # loaded when the command runs: its help starts fast
    from simgnn.hardware.price.operations import weakest
    from simgnn.report.results import amount, seconds

    name, source = machine.profile.meta.name, weakest(time.numbers)
    by_device = {
        kind: max(float(time.per_rank_s[rank]) for rank, mine in enumerate(machine.types) if mine == kind)
        for kind in dict.fromkeys(machine.types)
    }
    assumed = [number.key for number in time.numbers if number.source == "assumed"]
    hosts, nbytes = len(set(machine.hosts)), question.sizes.get("bytes")
    rate = nbytes / time.seconds if nbytes and time.seconds > 0 and question.form.moves != "exchange" else None
    if as_json:
        print_json(
            {
                "profile": name,
                "op": question.op,
                "sizes": dict(question.sizes),
                "ranks": machine.ranks,
                "hosts": hosts,
                "threads_per_rank": list(machine.threads_per_rank),
                "seconds": time.seconds,
                "interval_s": time.interval_s,
                "interval": "90 %, lognormal with the largest spread of the numbers behind it",
                "spread": time.spread,
                "source": source,
                "extrapolated": time.extrapolated,
                "assumed": bool(assumed),
                "uncalibrated": not machine.profile.calibrated,
                "bytes_per_s": rate,
                "per_device_s": by_device,
                "per_rank_s": time.per_rank_s.tolist(),
                "numbers": [number._asdict() for number in time.numbers],
            }
        )
        return
    around = time.interval_s
    sizes = ", ".join(
        f"{key} {amount(value) if key == 'bytes' else f'{value:,}'}" for key, value in question.sizes.items()
    )
    table = [
        ["time", seconds(time.seconds)],
        ["90 % interval", "no spread was measured" if around is None else " .. ".join(map(seconds, around))],
        ["bytes by time", "" if rate is None else f"{rate / 1e9:.4g} GB/s"],
        ["source", f"{source or 'nothing is priced'}{' (the weakest of its numbers)' if source else ''}"],
        ["sizes", sizes or ("matrix of bytes" if question.matrix is not None else "none")],
        ["ranks", f"{machine.ranks} on {hosts} host{'s' if hosts > 1 else ''}"],
    ]
    if len(by_device) > 1 and question.form.primitive is not None:
        table += [[f"on {kind}", seconds(value)] for kind, value in by_device.items()]
    for number in time.numbers[:MOST_NUMBERS]:
        spread = "" if number.spread is None else f", ± {number.spread:.1%}"
        table.append([number.key, f"{number.source}{spread}"])
    if len(time.numbers) > MOST_NUMBERS:
        table.append([f"{len(time.numbers) - MOST_NUMBERS} more numbers", "--json"])
    print_table(f"{question.op} on {name}", ["", "value"], [row for row in table if row[1]], left=2)
    if time.extrapolated:
        note(
            "sizes beyond the calibration: a size, a rank count or the number of ranks at work at once is smaller or "
            "larger than what the profile was measured with, so that the time is extrapolated"
        )
    if assumed:
        note(f"assumed: {', '.join(assumed[:5])}{', ...' if len(assumed) > 5 else ''}")
