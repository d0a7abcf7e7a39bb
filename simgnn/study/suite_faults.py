"""What a suite alone tells to be wrong before anything is measured: settings that no run would have, bars that judge
nothing, rates whose cutting no bar could notice."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from simgnn.experiment.problems import shown
from simgnn.experiment.slots import SLOTS
from simgnn.hardware.primitives import PRIMITIVES
from simgnn.study.cases import Case
from simgnn.tomlfile import Table, deep_merge, leaves

if TYPE_CHECKING:
    from simgnn.study.suite import Bars, Level, Suite

SAID_ELSEWHERE: Mapping[tuple[str, ...], str] = {
    ("name",): "a run is named after its case",
    ("cluster",): "the suite's ranks and topologies say where a case runs",
    ("train", "epochs"): "the suite's epochs say how long each run is",
    ("train", "eval_every"): "each run is evaluated once, after its last epoch",
    ("hardware", "profile"): "cases are predicted on the calibration that the suite makes",
}
"""Settings that the suite itself gives every case."""
MEASURED_LINKS = ("loopback", "ethernet")
"""Kinds of links that profiles of a suite have: calibrations measure the first, testbeds declare the second."""
ORDERS = ("tau", "regret")
"""Bars on the order of predictions alone."""
UNTOUCHED = ("coverage", "better_than_baselines")
"""Bars that are not held against predictions with a rate cut down."""
NOTHING = object()


def suite_faults(suite: "Suite") -> list[str]:
    """Every fault, each with its key. The cases of the suite must be well-formed."""
    cases = suite.cases()
    return [
        *_settings(suite),
        *_no_bars(suite),
        *_groups(suite, cases),
        *_bars("bars", suite.bars, suite, cases),
        *_sensitivity(suite),
        *_hold_out(suite, cases),
    ]


def _settings(suite: "Suite") -> Iterator[str]:
    """Settings that another part of the suite overwrites: runs would not have what is written there."""
    axes: tuple[tuple[str, tuple[Level, ...]], ...] = (
        ("graphs", suite.graphs),
        ("partitions", suite.partitions),
        ("experiments", suite.experiments),
    )
    levels = [(axis, f"{axis}.{at}.set", level.set) for axis, entries in axes for at, level in enumerate(entries)]
    for where, table in (("set", suite.set), *((where, table) for _, where, table in levels)):
        for path, value in leaves(table):
            for said, why in SAID_ELSEWHERE.items():
                if path[: len(said)] == said:
                    yield f"{where}.{'.'.join(path)}: got {shown(value)}, expected none: {why}; remove it"
    for axis, where, table in levels:
        if axis != "graphs" and "graph" in table:
            yield f"{where}.graph: expected none: the graphs of a suite are its axis graphs; state it there, or in set"
    for at, (axis, where, table) in enumerate(levels):
        for over, place, above in levels[at + 1 :]:
            for key, value in _lost(table, above) if axis != over else ():
                yield (
                    f"{where}.{key}: got {shown(value)}, which {place} overwrites in the cases of both, so that they "
                    "would not be what they are called; state it on one axis"
                )
    for axis, entries in axes:
        lost = [dict(_lost(suite.set, level.set)) for level in entries]
        for key, value in lost[0].items():
            if all(key in other for other in lost):
                yield f"set.{key}: got {shown(value)}, which all of {axis} overwrite, so no run has it; remove it"


def _lost(below: Table, above: Table) -> list[tuple[str, Any]]:
    """Settings of ``below`` that ``above`` replaces by others, or drops by choosing another kind."""
    merged = dict(leaves(deep_merge(below, above, SLOTS)))
    return [(".".join(path), value) for path, value in leaves(below) if merged.get(path, NOTHING) != value]


def _no_bars(suite: "Suite") -> Iterator[str]:
    if not suite.bars.stated() and suite.bars.better_than_baselines is None and not suite.group_bars:
        known = ", ".join(type(suite.bars).model_fields)
        yield f"bars: got none, so nothing would be judged; expected one or more of {known}"


def _groups(suite: "Suite", cases: tuple[Case, ...]) -> Iterator[str]:
    names = Counter(group.name for group in suite.group_bars)
    yield from (
        f"group_bars: {count} groups are called '{name}'; expected different names"
        for name, count in names.items()
        if count > 1
    )
    for at, group in enumerate(suite.group_bars):
        where = f"group_bars.{at}"
        if group.name == "all":
            yield f"{where}.name: got 'all', which is what all cases are called (bars); expected another name"
        if not group.bars.stated():
            known = ", ".join(type(group.bars).model_fields)
            yield f"{where}.bars: got none, so nothing of '{group.name}' would be judged; expected some of {known}"
        kept = tuple(case for case in cases if case.level(group.axis) in group.levels)
        if not kept:
            yield f"{where}.levels: none of the {len(cases)} cases drawn is of '{group.name}'; draw more, or others"
        else:
            yield from _bars(f"{where}.bars", group.bars, suite, kept)


def _bars(where: str, bars: "Bars", suite: "Suite", cases: tuple[Case, ...]) -> Iterator[str]:
    """Bars on figures that these cases cannot give: they could not hold, whatever is measured."""
    if bars.tau is not None and len(cases) < 2:
        yield f"{where}.tau: an order needs two cases, there is {len(cases)}; leave it out"
    alternatives = Counter(case.without(suite.choose) for case in cases)
    if bars.regret is not None and max(alternatives.values()) < 2:
        chosen = ", ".join(suite.choose) or "nothing"
        yield f"{where}.regret: no two cases differ by choose ({chosen}) alone, so there is no choice; leave it out"


def _sensitivity(suite: "Suite") -> Iterator[str]:
    labels = Counter(what.label for what in suite.sensitivity)
    yield from (
        f"sensitivity: {label} is there {count} times; expected each rate once"
        for label, count in labels.items()
        if count > 1
    )
    judged = {bar for bars in (suite.bars, *(group.bars for group in suite.group_bars)) for bar in bars.stated()}
    if suite.sensitivity and not judged - set(UNTOUCHED):
        known = ", ".join(name for name in type(suite.bars).model_fields if name not in UNTOUCHED)
        yield (
            f"sensitivity: no bar could notice a rate that is cut down: {' and '.join(UNTOUCHED)} are not held against "
            f"it; expected a bar on {known}, or no sensitivity"
        )
    for at, what in enumerate(suite.sensitivity):
        where = f"sensitivity.{at}"
        if what.primitive == "*" and judged and not judged - {*ORDERS, *UNTOUCHED}:
            yield (
                f"{where}.primitive: got '*', which makes all work longer by one factor, and the only bars are on the "
                f"order ({', '.join(sorted(judged & {*ORDERS}))}), which hardly changes by that; expected a bar on "
                "errors too, such as median_error, or no '*'"
            )
        row = PRIMITIVES.get(what.primitive or "")
        if row is not None and row.stand_in is not None and suite.calibration.quick:
            yield (
                f"{where}.primitive: got '{what.primitive}', which a quick calibration does not measure; expected "
                "calibration.quick = false, or another primitive"
            )
        if what.link is not None and what.link not in MEASURED_LINKS:
            yield (
                f"{where}.link: got '{what.link}', but no topology has such links: expected 'loopback' (ranks of one "
                "host, as calibrated) or 'ethernet' (hosts of a testbed), or none"
            )
        if what.link == "ethernet" and all(topology.link is None for topology in suite.topologies):
            yield f"{where}.link: got 'ethernet', but no topology has a link between hosts; leave it out"


def _hold_out(suite: "Suite", cases: tuple[Case, ...]) -> Iterator[str]:
    if suite.bars.better_than_baselines is not None and not suite.hold_out:
        yield (
            "hold_out: got [], so the regression is fitted to nothing and only one of the two baselines of "
            "bars.better_than_baselines would be judged; expected axes to hold out, or no such bar"
        )
    for axis in suite.hold_out:
        levels = {case.level(axis) for case in cases}
        if len(levels) < 2:
            yield (
                f"hold_out: got '{axis}', which is '{min(levels)}' in all {len(cases)} cases: nothing would "
                "be left to fit; leave it out (hold_out = [] holds out nothing)"
            )
