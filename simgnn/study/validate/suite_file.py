"""The file of a validation suite: find it by name or path, read it and check it."""

from importlib import resources
from pathlib import Path

from pydantic import ValidationError

from simgnn.errors import ConfigError
from simgnn.schema_faults import sentences
from simgnn.spelling import nearest
from simgnn.study.cases import case_experiment
from simgnn.study.validate.suite import Suite
from simgnn.study.validate.suite_faults import suite_faults
from simgnn.tomlfile import Table, load_toml


def suite_names() -> tuple[str, ...]:
    """Names of the shipped suites, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.toml")))


def find_suite(argument: str | Path) -> Path:
    """The file of a suite, by path or by name; :class:`ConfigError` that lists the names."""
    path = Path(argument).expanduser()
    if path.is_file():
        return path
    shipped = _folder() / f"{argument}.toml"
    if shipped.parent == _folder() and shipped.is_file():
        return shipped
    known = suite_names()
    raise ConfigError(
        f"SUITE: got '{argument}', expected a TOML file or the name of a shipped suite ({', '.join(known)})"
        f"{nearest(str(argument), known)}"
    )


def load_suite(path: Path) -> Suite:
    """The suite of a file; :class:`ConfigError` with every fault, those of the experiments that it makes included."""
    return parse_suite(load_toml(path), str(path))


def parse_suite(table: Table, label: str) -> Suite:
    """The suite of a table, checked as a whole, and the experiments that its levels make."""
    try:
        suite = Suite.model_validate(table)
    except ValidationError as error:
        raise ConfigError([f"{label}: {line}" for line in sentences(Suite, error)]) from None
    problems = dict.fromkeys(f"{label}: {fault}" for fault in suite_faults(suite))
    if problems:
        raise ConfigError(list(problems))
    for case in suite.every_case():
        try:
            case_experiment(suite.extends, suite.settings(case))
        except ConfigError as error:
            problems.update(dict.fromkeys(f"{label}: {problem}" for problem in error.problems))
    if problems:
        raise ConfigError(list(problems))
    return suite


def _folder() -> Path:
    return Path(str(resources.files("simgnn.study"))) / "suites"
