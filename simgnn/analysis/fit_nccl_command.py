"""``python -m simgnn.analysis.fit_nccl_command``: measured NCCL tables in, collectives of a profile or scores out."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simgnn.analysis.fit_nccl import fit_machine, fit_messages
from simgnn.analysis.fit_nccl_choice import LARGE_BYTES
from simgnn.analysis.fit_nccl_score import Score, interpolation, left_out
from simgnn.analysis.fit_nccl_tables import Table, find_tables, read_tables
from simgnn.errors import SimgnnError
from simgnn.hardware.profile import load_profile
from simgnn.hardware.quantities import Points, Strict


def main(arguments: Sequence[str] | None = None) -> int:
    """Print TOML for a profile, or with ``--score`` the held-out errors; exit status 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m simgnn.analysis.fit_nccl_command", description=__doc__)
    parser.add_argument("gpu", help="machine of the tables, such as a100")
    parser.add_argument(
        "--tables", type=Path, help="folder of the CSV tables (default: measured/nccl beside SIMGNN_DATA)"
    )
    parser.add_argument("--across-hosts", action="store_true", help="groups across hosts too")
    parser.add_argument("--score", metavar="PROFILE", help="print held-out errors instead; a profile with the topology")
    chosen = parser.parse_args(arguments)
    try:
        folder = find_tables(chosen.tables)
        if folder is None:
            raise SimgnnError(f"{chosen.tables or 'measured/nccl'}: no such folder; name one with --tables")
        tables = read_tables(folder)
        if chosen.score:
            print(_scores(chosen.gpu, chosen.score, tables, chosen.across_hosts))
        else:
            print(_toml(chosen.gpu, tables, chosen.across_hosts))
    except SimgnnError as error:
        print(f"simgnn: {error}", file=sys.stderr)
        return 2
    return 0


def _toml(gpu: str, tables: Sequence[Table], across_hosts: bool) -> str:
    fitted = fit_machine(tables, gpu, across_hosts)
    found: list[tuple[str, Strict]] = [("[[backends.nccl.choices]]", choice) for choice in fitted.choices]
    found += [("[[backends.nccl.collectives]]", entry) for entry in fitted.entries]
    parts = ["\n".join([head, *_lines(value)]) for head, value in found]
    for one in tables:
        if (one.gpu, one.collective) == (gpu, "send_recv"):
            floor, bandwidth, efficiency = fit_messages(one)
            told = {"message_bandwidth": bandwidth, "efficiency": efficiency}
            lines = [line for name, value in told.items() for line in _key(name, value)]
            where = "inside a host" if one.scope == "host" else "across hosts"
            parts += [
                "\n".join([f"# of the link {where}, [links.NAME]", *lines]),
                f"# [backends.nccl], by messages {where}\nmessage = {{ floor = {_inline(floor)} }}",
            ]
    return "\n\n".join(parts)


def _lines(value: Strict) -> list[str]:
    """A table of a profile, a line a key, a point a line."""
    return [line for name in type(value).model_fields for line in _key(name, getattr(value, name), value)]


def _key(name: str, value: object, table: Strict | None = None) -> list[str]:
    held = value if table is None else table.model_dump(exclude_defaults=True).get(name)
    if held is None:
        return []
    if isinstance(value, Points):
        rows = value.model_dump(exclude_defaults=True)
        points = rows.pop("points")
        head = _inline(rows).removesuffix(" }")
        return [f"{name} = {head}, points = [", *(f"    {_inline(point)}," for point in points), "] }"]
    return [f"{name} = {_inline(held)}"]


def _inline(value: object) -> str:
    if isinstance(value, Strict):
        value = value.model_dump(exclude_defaults=True)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_inline(one)}" for key, one in value.items() if one is not None) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    # what TOML holds besides, JSON writes alike
    return json.dumps(value)


def _scores(gpu: str, name: str, tables: Sequence[Table], across_hosts: bool) -> str:
    mine = [table for table in tables if table.gpu == gpu and (across_hosts or table.scope == "host")]
    profile = load_profile(name)
    lines = []
    for title, found in (
        ("sizes held out", interpolation(profile, mine)),
        ("rank count held out", left_out({gpu: profile}, mine)),
    ):
        lines += [f"{title}: {_line(score)}" for score in found]
        lines.append(f"{title}: mean of all rows {np.mean(np.concatenate([score.errors for score in found])):.1%}")
    return "\n".join(lines)


def _line(score: Score) -> str:
    ends = [LARGE_BYTES * 4**place for place in range(4)]
    parts = [f"{score.mean_from(low, high):.1%}" for low, high in zip(ends, [*ends[1:], float("inf")], strict=True)]
    return f"{score.table}: mean {score.mean:.1%}; from 256 KiB, 1, 4, 16 MiB: {', '.join(parts)}"


if __name__ == "__main__":
    sys.exit(main())
