"""Faults of a suite that its file alone shows: settings that no run would have, and bars that could judge nothing."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from simgnn.experiment.problems import shown
from simgnn.experiment.slots import SLOTS
from simgnn.study.cases import Case
from simgnn.study.validate.suite import Bars, Level, Suite
from simgnn.tomlfile import Table, deep_merge, leaves

SET_BY_SUITE: Mapping[tuple[str, ...], str] = {
    ("name",): "a run is named after its case",
    ("cluster",): "the suite's ranks and topologies say where a case runs",
    ("train", "epochs"): "the suite's epochs say how long each run is",
    ("train", "eval_every"): "each run is evaluated once, after its last epoch",
    ("hardware", "profile"): "cases are predicted on the calibration that the suite makes",
}
"""Settings that the suite itself gives every case."""
NOTHING = object()


def suite_faults(suite: Suite) -> list[str]:
    """Every fault, each with its key. The cases of the suite must be well-formed."""
    cases = suite.cases()
    return [
        *_settings(suite),
        *_groups(suite, cases),
        *_bars("bars", suite.bars, suite, cases),
        *_hold_out(suite, cases),
    ]


def _settings(suite: Suite) -> Iterator[str]:
    """Settings that another part of the suite overwrites: runs would not have what is written there."""
    axes: tuple[tuple[str, tuple[Level, ...]], ...] = (
        ("graphs", suite.graphs),
        ("partitions", suite.partitions),
        ("experiments", suite.experiments),
    )
    levels = [(axis, f"{axis}.{at}.set", level.set) for axis, entries in axes for at, level in enumerate(entries)]
    for where, table in (("set", suite.set), *((where, table) for _, where, table in levels)):
        for path, value in leaves(table):
            for setting, why in SET_BY_SUITE.items():
                if path[: len(setting)] == setting:
                    yield f"{where}.{'.'.join(path)}: got {shown(value)}, expected none: {why}; remove it"
    for axis, where, table in levels:
        if axis != "graphs" and "graph" in table:
            yield f"{where}.graph: expected none: the graphs of a suite are its axis graphs; state it there, or in set"
    for at, (axis, where, table) in enumerate(levels):
        for over, place, above in levels[at + 1 :]:
            for key, value in _overwritten(table, above) if axis != over else ():
                yield (
                    f"{where}.{key}: got {shown(value)}, which {place} overwrites in the cases of both, so that they "
                    "would not be what they are called; state it on one axis"
                )


def _overwritten(below: Table, above: Table) -> list[tuple[str, Any]]:
    """Settings of ``below`` that ``above`` replaces by others, or drops by choosing another kind."""
    merged = dict(leaves(deep_merge(below, above, SLOTS)))
    return [(".".join(path), value) for path, value in leaves(below) if merged.get(path, NOTHING) != value]


def _groups(suite: Suite, cases: tuple[Case, ...]) -> Iterator[str]:
    if not suite.bars.stated() and suite.bars.better_than_baselines is None and not suite.group_bars:
        known = ", ".join(type(suite.bars).model_fields)
        yield f"bars: got none, so nothing would be judged; expected one or more of {known}"
    names = Counter(["all", *(group.name for group in suite.group_bars)])
    for at, group in enumerate(suite.group_bars):
        where = f"group_bars.{at}"
        if names[group.name] > 1:
            yield f"{where}.name: got '{group.name}', which is another group too; expected different names, none 'all'"
        kept = tuple(case for case in cases if case.level(group.axis) in group.levels)
        if not kept:
            yield f"{where}.levels: none of the {len(cases)} cases drawn is of '{group.name}'; draw more, or others"
        else:
            yield from _bars(f"{where}.bars", group.bars, suite, kept)


def _bars(where: str, bars: Bars, suite: Suite, cases: tuple[Case, ...]) -> Iterator[str]:
    """Bars on figures that these cases cannot give: they could not hold, whatever is measured."""
    if bars.tau is not None and len(cases) < 2:
        yield f"{where}.tau: an order needs two cases, there is {len(cases)}; leave it out"
    alternatives = Counter(case.without(suite.choose) for case in cases)
    if bars.regret is not None and max(alternatives.values()) < 2:
        chosen = ", ".join(suite.choose) or "nothing"
        yield f"{where}.regret: no two cases differ by choose ({chosen}) alone, so there is no choice; leave it out"


def _hold_out(suite: Suite, cases: tuple[Case, ...]) -> Iterator[str]:
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
