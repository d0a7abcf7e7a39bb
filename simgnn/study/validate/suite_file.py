"""Finds, loads and checks validation suites and the shipped ground truth, and reports every fault.

CI scores the simulator against the ground truth, and fails if the score is worse than the stored bound.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import resources
from itertools import combinations
from pathlib import Path

from simgnn.errors import ConfigError
from simgnn.experiment.problems import shown
from simgnn.experiment.slots import SLOTS
from simgnn.outside import expanded
from simgnn.schema_faults import validated
from simgnn.spelling import nearest
from simgnn.study.cases import Case, case_experiment
from simgnn.study.validate.ground_truth import TruthFolder
from simgnn.study.validate.suite import Bars, Level, Suite
from simgnn.tomlfile import Table, deep_merge, leaves, load_toml

SUITES = Path(str(resources.files("simgnn.study"))) / "suites"
"""Folder of the shipped suites, one TOML file each."""
TRUTH = SUITES.parent / "truth"
"""Folder of the shipped ground truth, one folder for each suite."""
SET_BY_SUITE: Mapping[tuple[str, ...], str] = {
    ("name",): "a run is named after its case",
    ("cluster",): "the suite's ranks and topologies say where a case runs",
    ("train", "epochs"): "the suite's epochs say how long each run is",
    ("train", "eval_every"): "each run is evaluated once, after its last epoch",
    ("hardware", "profile"): "cases are predicted on the calibration that the suite makes",
}
"""Settings that every case gets from the suite itself, and why."""


def find_suite(argument: str | Path) -> Path:
    """Return the file of a suite, given by path or name. Raises :class:`ConfigError` that lists the shipped names."""
    path = expanded(str(argument))
    shipped = {found.stem: found for found in sorted(SUITES.glob("*.toml"))}
    if path.is_file():
        return path
    if str(argument) in shipped:
        return shipped[str(argument)]
    raise ConfigError(
        f"SUITE: got '{argument}', expected a TOML file or the name of a shipped suite ({', '.join(shipped)})"
        f"{nearest(str(argument), shipped)}"
    )


def load_suite(path: Path) -> Suite:
    """Load a suite from a file. Raises :class:`ConfigError` with every fault, including those of its experiments."""
    return parse_suite(load_toml(path), str(path))


def parse_suite(table: Table, label: str) -> Suite:
    """Build a suite from a table, and check it and the experiments of all its cases."""
    suite = validated(Suite, table, label)
    problems = [*_settings(suite), *_groups(suite), *_bars("bars", suite.bars, suite, suite.cases()), *_hold_out(suite)]
    if not problems:
        for case in suite.every_case():
            try:
                case_experiment(suite.extends, suite.settings(case))
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise ConfigError([f"{label}: {problem}" for problem in dict.fromkeys(problems)])
    return suite


def truth_folder(name: str) -> Path:
    """Return the folder of a shipped suite's ground truth. Raises :class:`ConfigError` if there is none, or if it has
    no bound, without which no score can fail."""
    known = sorted(path.name for path in TRUTH.iterdir() if path.is_dir())
    if name not in known:
        raise ConfigError(
            f"--rescore: no runs are stored for '{name}'{nearest(name, known)}; stored: {', '.join(known) or 'none'}; "
            "name the folder of a finished validation with --out"
        )
    if load_bound(TruthFolder(TRUTH / name).bound) is None:
        raise ConfigError(
            f"--rescore: got {TRUTH / name} without a bound.toml, expected the worst score that is accepted, such as "
            "median_error = 0.1; write it, or name the folder with --out"
        )
    return TRUTH / name


def load_bound(path: Path) -> Bars | None:
    """Load the worst accepted score from a file of bars; None if there is no file. Raises :class:`ConfigError` with
    every fault, and for a file that states no bar."""
    if not path.is_file():
        return None
    bound = validated(Bars, load_toml(path), path)
    if not bound.stated():
        known = ", ".join(Bars.model_fields)
        raise ConfigError(f"{path}: got no bound, so no score can fail; expected one or more of {known}")
    return bound


def _settings(suite: Suite) -> Iterator[str]:
    """Report settings that another part of the suite overwrites, so that runs would not have them."""
    axes: dict[str, tuple[Level, ...]] = {
        axis: getattr(suite, axis) for axis in ("graphs", "partitions", "experiments")
    }
    levels = [(axis, f"{axis}.{at}.set", one.set) for axis, entries in axes.items() for at, one in enumerate(entries)]
    for where, table in (("set", suite.set), *((where, table) for _, where, table in levels)):
        for path, value in leaves(table):
            for setting, why in SET_BY_SUITE.items():
                if path[: len(setting)] == setting:
                    yield f"{where}.{'.'.join(path)}: got {shown(value)}, expected none: {why}; remove it"
    for axis, where, table in levels:
        if axis != "graphs" and "graph" in table:
            yield f"{where}.graph: expected none: the graphs of a suite are its axis graphs; state it there, or in set"
    for (axis, where, below), (over, place, above) in combinations(levels, 2):
        # settings that the level above replaces by others, or drops by choosing another kind
        merged = dict(leaves(deep_merge(below, above, SLOTS)))
        for path, value in leaves(below):
            if axis != over and (path not in merged or merged[path] != value):
                yield (
                    f"{where}.{'.'.join(path)}: got {shown(value)}, which {place} overwrites in the cases of both, so "
                    "that they would not be what they are called; state it on one axis"
                )


def _groups(suite: Suite) -> Iterator[str]:
    cases = suite.cases()
    if not suite.bars.stated() and suite.bars.better_than_baselines is None and not suite.group_bars:
        known = ", ".join(type(suite.bars).model_fields)
        yield f"bars: got none, so nothing would be judged; expected one or more of {known}"
    names = Counter(["all", *(group.name for group in suite.group_bars)])
    for at, group in enumerate(suite.group_bars):
        where = f"group_bars.{at}"
        if names[group.name] > 1:
            yield f"{where}.name: got '{group.name}', which another group has too; expected different names, none 'all'"
        kept = tuple(case for case in cases if case.level(group.axis) in group.levels)
        if not kept:
            yield f"{where}.levels: none of the {len(cases)} cases drawn is of '{group.name}'; draw more, or others"
        else:
            yield from _bars(f"{where}.bars", group.bars, suite, kept)


def _bars(where: str, bars: Bars, suite: Suite, cases: tuple[Case, ...]) -> Iterator[str]:
    """Report bars (limits of scores) on figures that ``cases`` cannot give, such as an order of a single case."""
    if bars.tau is not None and len(cases) < 2:
        yield f"{where}.tau: an order needs two cases, there is {len(cases)}; leave it out"
    alternatives = Counter(case.without(suite.choose) for case in cases)
    if bars.regret is not None and max(alternatives.values()) < 2:
        chosen = ", ".join(suite.choose) or "nothing"
        yield f"{where}.regret: no two cases differ by choose ({chosen}) alone, so there is no choice; leave it out"


def _hold_out(suite: Suite) -> Iterator[str]:
    if suite.bars.better_than_baselines is not None and not suite.hold_out:
        yield (
            "hold_out: got [], so the regression is fitted to nothing and only one of the two baselines of "
            "bars.better_than_baselines would be judged; expected axes to hold out, or no such bar"
        )
    for axis in suite.hold_out:
        levels = {case.level(axis) for case in suite.cases()}
        if len(levels) < 2:
            yield (
                f"hold_out: got '{axis}', which is '{min(levels)}' in all {len(suite.cases())} cases: nothing would be "
                "left to fit; leave it out (hold_out = [] holds out nothing)"
            )
