"""An explanation of an epoch as sentences, and as rows of tables."""

from collections.abc import Sequence
from typing import Any

from simgnn.record.explanation import Effect, ExplainedEpoch, Explanation, LinkUse
from simgnn.report.results import amount, seconds
from simgnn.report.terminal import print_table

SHOWN = 15
"""Rows of a table on a terminal; --json has all."""
WORDS = {"compute": "computing", "transfer": "bytes on the way", "calls": "calls", "wait": "nothing runs"}


def explanation_lines(found: Explanation) -> list[str]:
    """Say in sentences how long the epoch takes, what most of it goes into, for whom ranks wait, and what an even
    distribution of work would gain."""
    shown = found.measured or found.predicted
    lines = [
        f"{found.name}, {found.ranks} ranks on {found.hardware}: an epoch is predicted to take {seconds(found.epoch_s)}"
    ]
    if found.measured is not None and found.measured_s is not None:
        off = found.epoch_s / found.measured_s - 1.0
        lines.append(
            f"measured {seconds(found.measured_s)} (predicted: {_signed(off)}); where the epoch goes is measured, what "
            "would change it is predicted"
        )
    lines.append("the critical path: " + ", ".join(_activities(shown)))
    lines.append(_waits(shown))
    even, share = found.even_work, 1.0 - found.even_work.epoch_s / found.epoch_s
    unequal = max(even.shares) > 1.01 * min(even.shares)
    how = "in proportion to the speed of devices" if unequal else "evenly"
    lines.append(f"work spread {how}, with the same messages: {seconds(even.epoch_s)} an epoch ({_signed(-share)})")
    return lines


def _signed(share: float) -> str:
    return f"{100 * abs(share):.1f} % {'less' if share < 0 else 'more'}" if abs(share) >= 0.0005 else "no change"


def _activities(epoch: ExplainedEpoch) -> list[str]:
    sums: dict[str, float] = {}
    for part in epoch.path:
        sums[part.activity] = sums.get(part.activity, 0.0) + part.seconds
    order = sorted(sums.items(), key=lambda one: -one[1])
    return [f"{100 * spent / epoch.epoch_s:.0f} % {WORDS[activity]}" for activity, spent in order]


def _waits(epoch: ExplainedEpoch) -> str:
    waited = max(epoch.ranks, key=lambda one: one.waited_for_s)
    total = sum(one.waits_s for one in epoch.ranks) / len(epoch.ranks)
    if total < 0.01 * epoch.epoch_s:
        return "ranks hardly wait for one another"
    share = waited.waited_for_s / sum(one.waited_for_s for one in epoch.ranks)
    return (
        f"a rank waits {seconds(total)} of the epoch for others on average, {100 * share:.0f} % of it for rank "
        f"{waited.rank}, which computes for {seconds(waited.compute_s)}"
    )


def part_rows(found: Explanation) -> list[dict[str, Any]]:
    """Rows of the critical path: what it goes into, of the prediction and, for a run, of the measured epoch."""
    sides = {"predicted": found.predicted, "measured": found.measured}
    known: dict[tuple[str, str, str | None], dict[str, Any]] = {}
    for side, epoch in sides.items():
        for part in [] if epoch is None else epoch.path:
            row = known.setdefault((part.activity, part.what, part.link), {})
            row |= {"activity": part.activity, "what": part.what, "link": part.link}
            row[f"{side}_s"] = part.seconds
    names = [f"{side}_s" for side, epoch in sides.items() if epoch is not None]
    rows = [{**row, **{name: row.get(name, 0.0) for name in names}} for row in known.values()]
    return sorted(rows, key=lambda row: (-row[names[-1]], -row[names[0]]))


def rank_rows(found: Explanation) -> list[dict[str, Any]]:
    """Rows of ranks: of the measured epoch, if there is one."""
    return [one.model_dump() for one in (found.measured or found.predicted).ranks]


def effect_rows(found: Explanation) -> list[dict[str, Any]]:
    """Rows of what changes the predicted epoch, largest gain first, with the share that each value gains (negative:
    loses)."""
    return [
        {
            **one.model_dump(exclude={"refused"}),
            "better_gain": _gain(one.better_s, found.epoch_s),
            "worse_gain": _gain(one.worse_s, found.epoch_s),
        }
        for one in found.effects
    ]


def _gain(changed_s: float | None, epoch_s: float) -> float | None:
    return None if changed_s is None else 1.0 - changed_s / epoch_s


def print_explanation(found: Explanation) -> None:
    """Print the sentences, then where the epoch goes, what ranks do, what links carry, and what would change it."""
    for line in explanation_lines(found):
        print(line)
    _print_path(found)
    rows = [
        [str(one.rank), seconds(one.compute_s), seconds(one.on_path_s), seconds(one.waits_s), _for(one.longest_for),
         seconds(one.waited_for_s)]
        for one in sorted((found.measured or found.predicted).ranks, key=lambda one: (-one.waited_for_s, one.rank))
    ]  # fmt: skip
    columns = ["rank", "computes", "on the critical path", "waits for others", "longest for", "others wait for it"]
    print_table("Ranks, those that others wait for first", columns, rows[:SHOWN])
    if found.links:
        columns = ["links", "bytes an epoch", "busiest", "its bytes", "its rate", "share of the epoch it is full"]
        print_table("Links (predicted)", columns, map(_link_row, found.links[:SHOWN]))
    columns = ["", "now", "source", "twice as good", "", "half as good", ""]
    print_table(
        "Predicted epoch with other numbers, largest gain first", columns,
        [_effect_row(one, found.epoch_s) for one in found.effects[:SHOWN]],
    )  # fmt: skip
    if len(found.effects) > SHOWN:
        print(f"{len(found.effects) - SHOWN} more numbers change the epoch less: --json lists all")
    if found.without_effect:
        print(f"without effect: {', '.join(found.without_effect[:SHOWN])}{_more(found.without_effect)}")


def _more(keys: Sequence[str]) -> str:
    return f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""


def _for(rank: int | None) -> str:
    return "-" if rank is None else f"rank {rank}"


def _print_path(found: Explanation) -> None:
    both = found.measured is not None
    columns = ["", "", *(["predicted"] if both else []), "measured" if both else "predicted", "share"]
    whole = (found.measured or found.predicted).epoch_s
    rows = []
    for row in part_rows(found)[:SHOWN]:
        over = "" if row["link"] is None else f" over links.{row['link']}"
        here = row["measured_s" if both else "predicted_s"]
        times = [*([seconds(row["predicted_s"])] if both else []), seconds(here), f"{100 * here / whole:.1f} %"]
        rows.append([WORDS[row["activity"]], f"{row['what']}{over}", *times])
    print_table("Where the epoch goes: its critical path", columns, rows, left=2)


def _link_row(one: LinkUse) -> list[str]:
    rate = f"{amount(one.bytes_per_s)}/s"
    return [f"links.{one.link}", amount(one.total_bytes), one.busiest, amount(one.busiest_bytes), rate,
            f"{100 * one.utilisation:.0f} %"]  # fmt: skip


def _effect_row(one: Effect, epoch_s: float) -> list[str]:
    named = one.part == "experiment"
    cells = []
    for value, changed_s in ((one.better, one.better_s), (one.worse, one.worse_s)):
        told = "refused" if changed_s is None else f"{seconds(changed_s)}{f' ({value})' if named else ''}"
        cells += [told, "" if changed_s is None else _signed(changed_s / epoch_s - 1.0)]
    return [one.key, one.value, one.source or "stated", *cells]
