"""Policies of a user's own: one file beside the experiment, named ``module:Class`` in their slot."""

import itertools
import json
import re
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from simgnn import registry
from simgnn.cli.main import invoke
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.partition.statistics.file import load_stats
from simgnn.planner.prepare import prepare
from simgnn.record.plan import read_plan
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory
from simgnn.seal import seal_folder

NUMBERS = itertools.count()
POLICIES = '''
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from array_api_compat import array_namespace
from pydantic import Field

from simgnn.policy import Array, Assignment, Codec, Moves, Partitioner, PolicyContext

Path(__file__).with_name("imported").touch()
HELPER = 3


class Same(Codec):
    """Rows as they are, byte by byte."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks")
    relative: ClassVar[bool] = True
    repeatable: ClassVar[bool] = True

    checks: int = Field(default=0, ge=0, le=9, description="what the codec is asked to look at")

    def row_bytes(self, width: int, dtype: str) -> int:
        return width * np.dtype(dtype).itemsize

    def encode(self, context: PolicyContext, rows: Array, names: Array) -> Array:
        xp = array_namespace(rows)
        FAULT
        return rows.contiguous().view(xp.uint8)

    def decode(self, context: PolicyContext, packed: Array, width: int, dtype: str) -> Array:
        return packed.contiguous().view(getattr(array_namespace(packed), dtype))


class Unfinished(Codec):
    """It cannot decode."""

    def row_bytes(self, width: int, dtype: str) -> int:
        return width


class Named(Same):
    """It says that it is another."""

    kind: Literal["linear"] = "linear"


class Stripes(Partitioner):
    """Vertex v to rank (v + offset) mod P."""

    offset: int = Field(default=0, ge=0, description="what is added to the number of a vertex")

    def divide(self, graph: Any, hosts: Any, seed: int, spill: Any) -> Assignment:
        return Assignment((np.arange(graph.vertices) + self.offset) % len(hosts))


class Broken(Stripes):
    """It fails."""

    def divide(self, graph: Any, hosts: Any, seed: int, spill: Any) -> Assignment:
        if self.offset:
            return Assignment(np.zeros(3))
        raise RuntimeError("my bug")
'''


@pytest.fixture
def own(small: Path) -> Callable[[str], str]:
    """Writes the policies beside the experiment; their module, of a name that nothing has imported yet."""

    def write(fault: str = "") -> str:
        module = f"own_policies_{next(NUMBERS)}"
        (small.parent / f"{module}.py").write_text(POLICIES.replace("FAULT", fault or "pass"))
        return module

    return write


def with_kinds(path: Path, **kinds: str) -> Path:
    """The experiment with other kinds, in a file of its own."""
    text = path.read_text() + "".join(f'[{slot}]\nkind = "{kind}"\n' for slot, kind in kinds.items())
    (made := path.with_name("mine.toml")).write_text(text)
    return made


@pytest.mark.parametrize(
    ("slot", "name", "told"),
    [
        ("codec", "missing_module:Same", "there is no module 'missing_module'"),
        ("codec", "OWN:Sane", "has no class 'Sane' (did you mean 'Same'?)"),
        ("codec", "OWN:HELPER", "holds no class under the name 'HELPER'"),
        ("codec", "OWN:Stripes", "which is a policy of slot partition, expected a policy of slot codec"),
        ("codec", "OWN:Path", "which is no policy, expected a policy of slot codec"),
        ("codec", "OWN:Unfinished", "without what every codec policy must define: decode, encode"),
        ("codec", "OWN:Named", "whose field 'kind' names another policy"),
        ("partition", "OWN:Same", "which is a policy of slot codec, expected a policy of slot partition"),
        ("schedule", "OWN", ", prefetch, or a class of your own as package.module:Class"),
        ("freshness", "a:b:c", "or a class of your own as package.module:Class"),
    ],
)
def test_a_kind_that_is_no_policy_is_told(
    slot: str, name: str, told: str, small: Path, own: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    kind = name.replace("OWN", own())
    path = with_kinds(small, **{slot: kind})
    assert invoke(["simulate", str(path), "--hardware", "dgx-a100", "--ranks", "2"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"{path}: {slot}.kind: got '{kind}'" in line
    assert told in line


def test_a_module_that_fails_when_imported_is_told(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (small.parent / "own_failing.py").write_text("import simgnn\nraise ValueError('not today')\n")
    (small.parent / "own_needing.py").write_text("import module_that_is_not_there\n")
    for module, told in (("own_failing", "ValueError: not today"), ("own_needing", "No module named 'module_that_")):
        assert invoke(["simulate", str(with_kinds(small, codec=f"{module}:Same")), "--hardware", "dgx-a100"]) == 2
        assert f"codec.kind: got '{module}:Same', but importing '{module}' raised" in (err := capsys.readouterr().err)
        assert told in err


def test_fields_are_options_and_survive_a_round_trip(
    small: Path, own: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    kind = f"{own()}:Same"
    path = with_kinds(small, codec=kind)
    unknown, large = (
        "codec.cheks: unknown key (did you mean 'checks'?)",
        "codec.checks: got 10, expected a whole number",
    )
    for setting, told in (("codec.cheks=1", unknown), ("codec.checks=10", f"{large} >= 0 and <= 9")):
        with pytest.raises(ConfigError, match=r"^--set: ") as found:
            load_experiment(path, [setting])
        assert told in str(found.value)
    experiment = load_experiment(path, ["codec.checks=4"])
    assert experiment.codec.model_dump() == {"kind": kind, "checks": 4}
    assert Experiment.from_table(experiment.to_table()) == experiment
    assert type(experiment.codec)().label == kind
    assert invoke(["systems", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "# what the codec is asked to look at (a whole number >= 0 and <= 9)\nchecks = 0\n" in shown
    assert "# width of the hidden layers (" in shown


def test_an_entry_point_names_a_policy(small: Path, own: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(small.parent))
    entry = EntryPoint("codec.same", f"{own()}:Same", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda **wanted: EntryPoints((entry,)).select(**wanted))
    experiment = load_experiment(small, ["codec.kind=same", "codec.checks=2"])
    assert (experiment.codec.label, type(experiment.codec).__name__) == ("same", "Same")
    with pytest.raises(ConfigError, match=r"expected one of bfloat16, .*, same, or a class"):
        load_experiment(small, ["codec.kind=other"])
    with pytest.raises(ConfigError, match=r"freshness\.kind: got 'same'"):
        load_experiment(small, ["freshness.kind=same"])


def test_a_changed_partitioner_is_asked_again(small: Path, own: Callable[[], str], tmp_path: Path) -> None:
    module = own()
    experiment = load_experiment(with_kinds(small, partition=f"{module}:Stripes"), ranks=3)
    first, again = (prepare(experiment, cache=tmp_path / "cache").partition for _ in range(2))
    assert first is not None
    assert again is not None
    assert (first.made, again.made) == (True, False)
    assert first.partition.owner.tolist() == [vertex % 3 for vertex in range(400)]
    path = small.with_name(f"{module}.py")
    path.write_text(path.read_text() + "\n# changed\n")
    changed = prepare(experiment, cache=tmp_path / "cache").partition
    assert changed is not None
    assert changed.made


def test_a_partitioner_that_fails_is_told(
    small: Path, own: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    module = own()
    path = with_kinds(small, partition=f"{module}:Broken")
    arguments = ["simulate", str(path), "--hardware", "dgx-a100", "--ranks", "2"]
    assert invoke(arguments) == 2
    err = capsys.readouterr().err
    assert f"partition.kind = '{module}:Broken': Broken.divide raised RuntimeError: my bug (" in err
    assert f"{module}.py:" in err
    assert invoke([*arguments, "--set", "partition.offset=1"]) == 2
    assert "Broken.divide returned owner: got float64 [3], expected 400 integers" in capsys.readouterr().err


FAILING = """
from simgnn.emit import MovesRows
from simgnn.policy import Schedule


class Bare(MovesRows):
    def expand(self, builder, sync, codec):
        raise KeyError("my bug")


class Torn(Schedule):
    def after(self, nature, op, before):
        raise KeyError("my bug")


class Lost(Schedule):
    def pick(self, ready, observed, state):
        raise KeyError("my bug")


class Text(Schedule):
    def stream(self, nature, op):
        return "compute"
"""


@pytest.mark.parametrize(
    ("slot", "method"), [("freshness", "Bare.expand"), ("schedule", "Torn.after"), ("schedule", "Lost.pick")]
)
def test_a_policy_that_fails_while_it_is_planned_or_simulated_is_told(
    slot: str, method: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = f"failing_{next(NUMBERS)}"
    (small.parent / f"{module}.py").write_text(FAILING)
    kind = f"{module}:{method.rpartition('.')[0]}"
    assert invoke(["simulate", str(with_kinds(small, **{slot: kind})), "--hardware", "dgx-a100", "--ranks", "2"]) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert f"{slot}.kind = '{kind}': {method} raised KeyError: 'my bug' ({small.parent / module}.py:" in line


def test_a_value_of_a_wrong_type_is_reported_with_the_file(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = f"failing_{next(NUMBERS)}"
    (small.parent / f"{module}.py").write_text(FAILING)
    wrong = with_kinds(small, schedule=f"{module}:Text")
    assert invoke(["simulate", str(wrong), "--hardware", "dgx-a100", "--ranks", "2"]) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"simgnn: schedule.kind = '{module}:Text': AttributeError: ")
    assert f"{small.parent / module}.py" in line


def test_a_file_of_statistics_imports_no_partitioner(
    small: Path, own: Callable[[], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = own()
    kind, stats = f"{module}:Stripes", tmp_path / "stats.toml"
    assert invoke(["partition", str(with_kinds(small, partition=kind)), "--ranks", "2", "--stats", str(stats)]) == 0
    (tmp_path / "imported").unlink()
    text = stats.read_text().replace(module, other := own())
    stats.write_text(re.sub(r"^labels = .*\n", "", text, flags=re.M))  # its digest would tell that it was edited
    assert load_stats(stats).made_by == {"kind": f"{other}:Stripes", "reorder": "rcm", "offset": 0}
    arguments = ["simulate", "vanilla", "--set", f"graph.source=stats:{stats}", "--hardware", "dgx-a100"]
    capsys.readouterr()
    assert invoke(arguments) == 2
    told = capsys.readouterr().err
    assert "partition.kind: got 'metis', but the partition in " in told
    assert f"was made with '{other}:Stripes'" in told
    assert not (tmp_path / "imported").exists()
    assert invoke([*arguments, "--set", f"partition.kind={other}:Stripes"]) == 0
    assert (tmp_path / "imported").exists()


@pytest.mark.usefixtures("forked_ranks")
def test_a_run_directory_makes_nobody_import_what_it_names(
    small: Path,
    own: Callable[[], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two runs by a policy of the user's own; then the directory names a module that nothing has imported."""
    monkeypatch.chdir(tmp_path)
    module, out = own(), tmp_path / "out"
    path = with_kinds(small, codec=f"{module}:Same", partition=f"{module}:Stripes")
    assert invoke(["run", str(path), "--ranks", "2", "--out", str(out)]) == 0
    exact = invoke(["run", str(small), "--set", f"partition.kind={module}:Stripes", "--ranks", "2", "--out", "exact"])
    assert exact == 0
    assert read_result(out / "result.json").loss == read_result(tmp_path / "exact" / "result.json").loss
    assert json.loads((out / "plan" / "plan.json").read_text())["code"] == [str(tmp_path)]
    predict = ["simulate", str(path), "--hardware", "dgx-a100", "--ranks", "2", "--activity", str(out)]
    assert invoke([*predict, "--out", "predicted"]) == 0, "the experiment at hand names it too"
    evil = own()
    (tmp_path / "imported").unlink()
    for file in (out / "experiment.toml", out / "plan" / "plan.json"):
        file.write_text(file.read_text().replace(module, evil))
    seal_folder(out, RunDirectory(out).recorded)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert read_plan(out / "plan" / "plan.json").policies["codec"]["kind"] == f"{evil}:Same"
    assert invoke(["compare", "predicted", "out"]) == 0
    capsys.readouterr()
    assert invoke(predict) == 2
    assert f"codec.kind: got '{module}:Same', expected '{evil}:Same' as in" in capsys.readouterr().err
    assert invoke(["run", str(path), "--ranks", "2", "--out", "out", "--resume"]) == 2
    assert f"expected '{evil}:Same' as in" in capsys.readouterr().err
    assert not (tmp_path / "imported").exists()


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("rows = {}[context.rank]", r"KeyError: \d \(in Same\.encode, at .*\.py:\d+\)"),
        ("rows = rows[:-1]", r"Same\.encode returned uint8 \[\d+, \d+\] \(Tensor, cpu\), expected uint8 \["),
    ],
)
def test_a_policy_that_fails_in_a_run_ends_it_with_one_message(
    fault: str, told: str, small: Path, own: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = with_kinds(small, codec=f"{own(fault)}:Same")
    assert invoke(["run", str(path), "--ranks", "2", "--out", str(tmp_path / "out")]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "simgnn: run: " in line]
    assert line.startswith("simgnn: run: rank ")
    assert re.search(told, line), line
    assert "op '" in line
    assert read_result(tmp_path / "out" / "result.json").status == "failed"
