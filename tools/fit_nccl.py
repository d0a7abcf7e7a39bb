"""``python -m tools.fit_nccl GPU``: fits the collectives of a profile to measured NCCL tables, or prints held-out
errors.

The printed entries are :class:`simgnn.hardware.profile.communication.Collective`. A law describes what is the same for
all rank counts, and one curve for each table the rest. Rank counts without a table use the mean of these curves; how
good that is shows when the tables of a rank count are left out.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simgnn.analysis.left_out.collectives import predicted_from
from simgnn.analysis.nccl.law import LARGE_BYTES, fit_law
from simgnn.analysis.nccl.measured_tables import (
    CARRIED_BANDS,
    Floats,
    Table,
    find_tables,
    read,
    read_tables,
    rounded,
    smooth_curve,
    spread_of,
    spread_steps,
)
from simgnn.analysis.nccl.profile_entries import Fitted, Score, fit_scope, interpolation, left_out, points
from simgnn.errors import HardwareError, SimgnnError
from simgnn.hardware.profile.communication import Choice, Collective
from simgnn.hardware.profile.profile import load_profile
from simgnn.hardware.profile.quantities import Bandwidth, Duration, Points, Strict


def fit_machine(tables: Sequence[Table], gpu: str, across_hosts: bool) -> Fitted:
    """Fit the all-reduces of one machine inside a host, and optionally across hosts, by rank count and algorithm."""
    mine = [table for table in tables if table.gpu == gpu]
    scopes = ("host", "cluster") if across_hosts else ("host",)
    if not any(table.collective == "all_reduce" and table.scope in scopes for table in mine):
        known = ", ".join(sorted({table.gpu for table in tables if table.collective == "all_reduce"})) or "none"
        raise HardwareError(f"{gpu}: no table of its all-reduce; there are tables of: {known}")
    entries: list[Collective] = []
    choices: list[Choice] = []
    for scope in scopes:
        found = [table for table in mine if (table.collective, table.scope) == ("all_reduce", scope)]
        if found:
            fitted = fit_scope(found, fit_law(mine, scope))
            entries += with_carried_spread(fitted.entries, mine, scope)
            choices += fitted.choices
    return Fitted(tuple(entries), tuple(choices))


def with_carried_spread(entries: Sequence[Collective], tables: Sequence[Table], scope: str) -> list[Collective]:
    """Add to entries of several rank counts their spread at rank counts without a table: errors on left-out tables."""
    mine = [table for table in tables if (table.collective, table.scope) == ("all_reduce", scope)]
    if len({table.ranks for table in mine}) < 2:
        return list(entries)
    missed = [np.log(table.seconds / predict_left_out(tables, table)) for table in mine]
    sizes, logs = np.concatenate([table.nbytes for table in mine]), np.concatenate(missed)
    completed = []
    for entry in entries:
        several = entry.ranks is not None and len(entry.ranks) > 1
        steps = spread_steps(sizes, logs, entry.sizes, CARRIED_BANDS)
        completed.append(
            Collective.model_validate({**entry.model_dump(), "carried_spread": steps}) if several else entry
        )
    return completed


def predict_left_out(tables: Sequence[Table], table: Table) -> Floats:
    """Predict the seconds [n] of a table's sizes from all-reduces of the same machine with other rank counts."""
    own = [one for one in tables if one.gpu == table.gpu]
    rest = [one for one in own if one.collective != "all_reduce" or one.ranks != table.ranks]
    if not any((one.collective, one.scope) == ("all_reduce", table.scope) for one in rest):
        raise HardwareError(f"{table.name}: no other rank count of its machine and scope to predict it from")
    return predicted_from(rest, table)


def fit_messages(table: Table) -> tuple[Duration, Bandwidth, Points]:
    """Fit single messages between two ranks: floor, best rate, and the share of that rate that each size reaches."""
    if table.collective != "send_recv":
        raise HardwareError(f"{table.name}: got the collective '{table.collective}', expected 'send_recv'")
    floor = 0.9 * float(table.seconds.min())
    knots, seconds = smooth_curve(table.nbytes, table.seconds - floor, table.seconds)
    bandwidth = rounded(1.0 / float(seconds.min()))
    fitted = read(knots, seconds, table.nbytes) * table.nbytes + floor
    spread = rounded(spread_of(np.log(table.seconds / fitted)))
    origin = f"{table.name}.csv, {len(table.nbytes)} sizes"
    reach = (float(table.nbytes[0]), float(table.nbytes[-1]))
    return (
        Duration.of(rounded(floor), "measured", spread=spread, note=origin),
        Bandwidth.of(bandwidth, "measured", spread=spread, range=reach, note=origin),
        points(knots, np.minimum(1.0 / (seconds * bandwidth), 1.0), spread),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print TOML for a profile, or with ``--score`` the held-out errors; exit status 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m tools.fit_nccl", description=__doc__)
    parser.add_argument("gpu", help="machine of the tables, such as a100")
    default = "default: measured/nccl beside SIMGNN_DATA"
    parser.add_argument("--tables", type=Path, help=f"folder of the CSV tables ({default})")
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
            keys = {"message_bandwidth": bandwidth, "efficiency": efficiency}
            lines = [line for name, value in keys.items() for line in _key(name, value)]
            where = "inside a host" if one.scope == "host" else "across hosts"
            parts += [
                "\n".join([f"# of the link {where}, [links.NAME]", *lines]),
                f"# [backends.nccl], by messages {where}\nmessage = {{ floor = {_inline(floor)} }}",
            ]
    return "\n\n".join(parts)


def _lines(value: Strict) -> list[str]:
    """Format a table of a profile: a line for each key, a line for each point."""
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
    scores = {"sizes held out": interpolation(profile, mine), "rank count held out": left_out({gpu: profile}, mine)}
    lines = []
    for title, found in scores.items():
        lines += [f"{title}: {_line(score)}" for score in found]
        lines.append(f"{title}: mean of all rows {np.mean(np.concatenate([score.errors for score in found])):.1%}")
    return "\n".join(lines)


def _line(score: Score) -> str:
    ends = [LARGE_BYTES * 4**place for place in range(4)]
    parts = [f"{score.mean_from(low, high):.1%}" for low, high in zip(ends, [*ends[1:], float("inf")], strict=True)]
    return f"{score.table}: mean {score.mean:.1%}; from 256 KiB, 1, 4, 16 MiB: {', '.join(parts)}"


if __name__ == "__main__":
    sys.exit(main())
