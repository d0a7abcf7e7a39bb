"""AdaQP on the command line: predictions with a record, with stated bits and with neither; what is rejected."""

import json
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from simgnn.cli.main import invoke
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.record.result import STATED_DECISIONS, read_result
from simgnn.record.rundir import RunDirectory, read_table
from tests.golden.cases import COMMON, HARDWARE

PLACE = (*COMMON, "partition.kind=random")
PERIOD, GROUP = "codec.assign_period=2", "codec.group_size=20"


def stated(*settings: str) -> list[str]:
    """The settings as words of a command."""
    return [word for setting in settings for word in ("--set", setting)]


SETTINGS = stated(*PLACE, PERIOD, GROUP)
HERE = [*SETTINGS, "--hardware", str(HARDWARE)]


def test_a_prediction_needs_a_record_or_stated_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert invoke(["simulate", "adaqp", "--ranks", "2", *HERE, "--out", str(out)]) == 2
    refused = capsys.readouterr().err
    assert "codec.kind = 'stochastic'" in refused
    assert "codec.expected_bits" in refused
    assert not out.exists()
    sent = {}
    for bits in ("2", "8"):
        arguments = ["--set", f"codec.expected_bits={bits}", "--out", str(tmp_path / bits)]
        assert invoke(["simulate", "adaqp", "--ranks", "2", *HERE, *arguments]) == 0
        result = read_result(RunDirectory(tmp_path / bits).result)
        assert STATED_DECISIONS in result.assumed
        assert result.evaluation is not None
        assert result.evaluation.drain_s is None
        assert "assumed: how much is sent" in capsys.readouterr().err
        sent[bits] = result.bytes_sent[0][1]
    assert sent["2"] < sent["8"]


def test_a_run_within_the_first_period_needs_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, sent = [*stated(*PLACE), "--hardware", str(HARDWARE), "--ranks", "2"], []  # 6 epochs
    for name, settings in (("adaptive", ["codec.assign_period=6"]), ("fixed", ["codec.bits=8"])):
        out = tmp_path / name
        assert invoke(["simulate", "adaqp", *here, *stated(*settings), "--out", str(out)]) == 0
        result = read_result(RunDirectory(out).result)
        assert STATED_DECISIONS not in result.assumed
        sent.append((result.bytes_sent, result.bytes_sent_first_epoch))
    assert sent[0] == sent[1], "all rows have 8 bits"
    capsys.readouterr()
    assert invoke(["simulate", "adaqp", *here, *stated("codec.assign_period=5")]) == 2
    assert "depends on values that only training produces" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_statistics_are_told_a_command_that_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["partition", "adaqp", "--ranks", "2", *SETTINGS, "--stats", "stats.toml"]) == 0
    others = stated(*(setting for setting in PLACE if not setting.startswith("graph.")), PERIOD, GROUP)
    here = ["simulate", "adaqp", "--ranks", "2", *others, "--set", "graph.source=stats:stats.toml"]
    here += ["--hardware", str(HARDWARE), "--json"]
    capsys.readouterr()
    assert invoke(here) == 2
    (command,) = re.findall("`simgnn (run [^`]*)`", capsys.readouterr().err)
    assert "stats.toml" not in command
    words = shlex.split(command.replace("graph.source=GRAPH", "graph.source=synthetic:communities"))
    assert invoke([*words, *stated(*(setting for setting in PLACE if setting.startswith("graph.")))]) == 0
    capsys.readouterr()
    assert invoke([*here, "--activity", "runs/recorded"]) == 0
    told = json.loads(capsys.readouterr().out)
    run = read_result(RunDirectory(Path("runs/recorded")).result)
    assert (told["transferred"], told["bytes_sent"]) == (False, run.bytes_sent), "of the graph that was counted"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["codec.bits=3"], "codec.bits"),
        (["codec.group_size=0"], "codec.group_size"),
        (["codec.lam=1.5"], "codec.lam"),
        (["codec.assign_period=0"], "codec.assign_period"),
        (["codec.expected_bits=9"], "codec.expected_bits"),
        (["codec.bits=4", "codec.lam=0.3"], "codec.lam"),
        (["cluster.hosts=1", "cluster.ranks_per_host=1"], "codec.bits"),
        (["cluster.hosts=1", "cluster.ranks_per_host=2", "model.layers=1", "communication.rows=input"], "codec.bits"),
        (["partition.kind=ebv", "communication.kind=master-mirror"], "codec.bits"),
        (["communication.kind=block-broadcast", "schedule.kind=bsp"], "codec.bits"),
        (["freshness.kind=adaptive-vertex", "schedule.kind=bsp"], "codec.bits"),
        (["cluster.hosts=1", "cluster.ranks_per_host=2", "freshness.kind=boundary-sampling"], "codec.bits"),
        (["batching.kind=sampled", "batching.fanouts=[2,2,2]"], "codec.kind"),
    ],
)
def test_what_means_nothing_is_rejected(
    settings: list[str], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert invoke(["simulate", "adaqp", *HERE, *stated(*settings), "--out", str(out)]) == 2
    assert key in capsys.readouterr().err
    assert not out.exists()


def test_the_way_out_that_a_refusal_names_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped system states adaptive bits, so that leaving them out would change nothing."""
    alone = ["simulate", "adaqp", "--ranks", "1", *stated(*PLACE), "--hardware", str(HARDWARE)]
    assert invoke(alone) == 2
    assert "or set codec.bits = 8" in capsys.readouterr().err
    assert invoke([*alone, *stated("codec.bits=8")]) == 0


def test_an_option_that_is_unset_by_default_is_told_to_be_left_unset(capsys: pytest.CaptureFixture[str]) -> None:
    settings = stated("codec.bits=8", "codec.expected_bits=4")
    assert invoke(["simulate", "adaqp", "--ranks", "2", *settings, "--hardware", str(HARDWARE)]) == 2
    assert "codec.expected_bits: got 4.0 with codec.bits = 8, expected no value, the default" in capsys.readouterr().err


@pytest.mark.parametrize(("system", "key"), [("distdgl", "codec.kind"), ("cagnet", "codec.bits")])
def test_one_fault_is_named_once(system: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_experiment(system, ["codec.kind=stochastic", "codec.bits=adaptive"])
    (problem,) = caught.value.problems
    assert f"{key}: " in problem


@pytest.mark.slow
def test_a_record_goes_on_only_after_a_whole_period_of_assigned_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, predicted = tmp_path / "run", tmp_path / "predicted"
    assert invoke(["run", "adaqp", "--ranks", "2", *SETTINGS, "--set", "train.epochs=4", "--out", str(run)]) == 0
    on = [
        "simulate",
        "adaqp",
        *HERE,
        "--ranks",
        "2",
        "--set",
        "train.epochs=9",
        "--activity",
        str(run),
        "--out",
        str(predicted),
    ]
    assert invoke(on) == 0
    assert "follow the mean of its last 2" in capsys.readouterr().err
    tables = [read_table(RunDirectory(folder).trace) for folder in (run, predicted)]
    recorded, found = (
        [_sent_in(table, epoch) for epoch in range(epochs)] for table, epochs in zip(tables, (4, 9), strict=True)
    )
    assert found[:4] == recorded
    assert all(read_result(RunDirectory(folder).result).evaluation is not None for folder in (run, predicted))
    assert recorded[2] < recorded[1], "8 bits until the first assignment"
    assert found[4:] == pytest.approx([sum(recorded[2:]) / 2] * 5, abs=8)
    short = tmp_path / "short"
    assert invoke(["run", "adaqp", "--ranks", "2", *SETTINGS, "--set", "train.epochs=3", "--out", str(short)]) == 0
    again = ["simulate", "adaqp", *HERE, "--ranks", "2", "--set", "train.epochs=9", "--activity", str(short)]
    assert invoke([*again, "--out", str(tmp_path / "no")]) == 2
    assert "recorded for 3 epochs, expected 4 or more" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks, three epochs, periods of two epochs and groups of 20 rows."""
    run = tmp_path_factory.mktemp("recorded") / "run"
    assert invoke(["run", "adaqp", "--ranks", "2", *SETTINGS, "--set", "train.epochs=3", "--out", str(run)]) == 0
    return run


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("codec.group_size", (PERIOD, "codec.group_size=30")),
        ("codec.assign_period", (GROUP, "codec.assign_period=3")),
        ("codec.bits", ("codec.bits=4",)),
        ("codec.lam", (PERIOD, GROUP, "codec.lam=0.4")),
        ("codec.between_hosts", (PERIOD, GROUP, "codec.between_hosts=3")),
        ("codec.message_bytes", (PERIOD, GROUP, "codec.message_bytes=50")),
    ],
)
def test_a_record_of_other_groups_periods_or_bits_is_rejected(
    recorded: Path, key: str, other: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = stated(*PLACE, *other, "train.epochs=3")
    predicted = ["simulate", "adaqp", *settings, "--hardware", str(HARDWARE), "--activity", str(recorded)]
    assert invoke([*predicted, "--ranks", "2", "--out", str(tmp_path / "other")]) == 2
    assert key in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def _sent_in(trace: pa.Table, epoch: int) -> int:
    """Payload bytes of the messages of an epoch, of all ranks."""
    chosen = trace.filter(pc.and_(pc.equal(trace["epoch"], epoch), pc.greater_equal(trace["step"], 0)))
    return int(pc.sum(chosen["bytes_sent"]).as_py())


@pytest.mark.slow
def test_recorded_bits_are_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, predicted = tmp_path / "run", tmp_path / "predicted"
    assert invoke(["run", "adaqp", "--ranks", "2", *SETTINGS, "--out", str(run)]) == 0
    here = ["simulate", "adaqp", *HERE, "--activity", str(run)]
    assert invoke([*here, "--ranks", "2", "--out", str(predicted)]) == 0
    capsys.readouterr()
    assert invoke(["compare", str(predicted), str(run)]) == 0
    assert "0 bytes and 0 messages differ" in capsys.readouterr().out
    assert STATED_DECISIONS not in read_result(RunDirectory(predicted).result).assumed
    elsewhere = tmp_path / "elsewhere"
    assert invoke([*here, "--ranks", "4", "--out", str(elsewhere)]) == 0
    assert read_result(RunDirectory(elsewhere).result).transferred
