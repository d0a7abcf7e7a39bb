"""What would stop a validation is told before the calibration; systems on mini-batches are validated as others are."""

import json
from pathlib import Path
from typing import Any

import pytest

from simgnn.api.backend import CommandBackend
from simgnn.cli.main import invoke
from simgnn.cli.tables.console import Reporter
from simgnn.errors import ConfigError
from simgnn.hardware.profile.profile import save_profile
from simgnn.study.validate.suite_runs import keep, rescore, validate
from simgnn.tomlfile import write_toml
from tests.study.worlds import SUITE, Pretended, calibrated, small_suite

GRAPH = {"source": "synthetic:communities", "vertices": 300, "edges": 1500}
HERE: dict[str, Any] = {"topologies": [{"name": "here"}], "group_bars": [], "bars": {"median_error": 0.15}}
BATCHES: dict[str, Any] = {
    "extends": "rapidgnn",
    "set": {"batching": {"batch_size": 40, "fanouts": [4, 4]}, "model": {"hidden": 8}},
    "graphs": [{"name": "small", "set": {"graph": {**GRAPH, "classes": 4, "feature_width": 8}}}],
    "experiments": [
        {"name": "cached"},
        {"name": "asked", "set": {"communication": {"rows": "requested"}, "placement": {"hot_rows": 0}}},
        {"name": "drawn", "set": {"batching": {"kind": "sampled", "batch_size": 40, "fanouts": [4, 4]},
                                  "communication": {"rows": "requested"}, "placement": {"hot_rows": 0},
                                  "schedule": {"staged": "blocks"}}},
    ],
    "partitions": [{"name": "metis", "set": {"partition": {"kind": "metis"}}}],
    "hold_out": ["experiment"],
    **HERE,
}  # fmt: skip


def refused(tmp_path: Path, **changes: object) -> list[str]:
    """What a suite is refused for, before anything is measured or written."""
    backend = Pretended()
    with pytest.raises(ConfigError) as caught:
        validate(small_suite(**changes), tmp_path / "small", backend)
    assert not {"calibrate", "canary", "prepare", "predict", "run"} & set(backend.names())
    assert not (tmp_path / "small").exists()
    return list(caught.value.problems)


def test_graphs_that_are_not_here_are_told_before_any_work(tmp_path: Path) -> None:
    graphs = [
        {"name": "gone", "set": {"graph": {"source": str(tmp_path / "gone.npz")}}},
        {"name": "numbers", "set": {"graph": {"source": "stats:numbers.toml"}}},
        {"name": "there", "set": {"graph": GRAPH}},
    ]
    found = refused(tmp_path, graphs=graphs, **HERE)
    assert len(found) == 2
    assert "gone.npz' not found" in found[0]
    assert "(2 of 6 cases, the first gone-random-P2-here-narrow)" in found[0]
    assert "graph.source: got 'stats:numbers.toml', expected a graph" in found[1]


def test_what_planning_refuses_is_told_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "broken.npz").write_text("no archive")
    graphs = [
        {"name": "broken", "set": {"graph": {"source": str(tmp_path / "broken.npz")}}},
        {"name": "plain", "set": {"graph": {**GRAPH, "vertices": 1}}},
    ]
    found = refused(tmp_path, graphs=graphs, **HERE)
    assert len(found) == 2
    assert "broken.npz" in found[0]
    assert all("(2 of 4 cases, the first" in line for line in found)


def test_a_system_that_needs_a_record_is_told_before_any_work(tmp_path: Path) -> None:
    partitions = [{"name": "ebv", "set": {"partition": {"kind": "ebv"}}}]
    (told,) = refused(tmp_path, extends="cdfgnn", partitions=partitions)
    assert "freshness.kind: got 'adaptive-vertex', which decides what to send from values that only training" in told
    assert "(8 of 8 cases, the first small-ebv-P2-here-narrow)" in told


def test_a_rate_that_no_case_uses_is_reported_before_the_first_run(tmp_path: Path) -> None:
    backend = Pretended()
    with pytest.raises(
        ConfigError, match=r"^sensitivity\.1: the self-test with half the rate of sample changes no prediction"
    ):
        validate(small_suite(sensitivity=[{"primitive": "*"}, {"primitive": "sample"}]), tmp_path, backend)
    assert "run" not in backend.names()


def test_a_rate_that_changes_nothing_is_told_before_the_first_run_and_left_out_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Pretended()
    monkeypatch.setattr("simgnn.study.validate.freeze.slow_down", lambda profile, what: profile)
    with pytest.raises(
        ConfigError, match=r"sensitivity\.0: the self-test with half the rate of loopback links changes no prediction"
    ):
        validate(small_suite(sensitivity=[{"link": "loopback"}], **HERE), tmp_path, backend)
    assert "run" not in backend.names()
    assert not (tmp_path / "frozen.json").exists()
    with pytest.raises(ConfigError, match="holds a validation of another suite"):
        validate(small_suite(repeats=4, **HERE), tmp_path, backend)
    again = Pretended()
    validate(small_suite(sensitivity=[], **HERE), tmp_path, again)
    assert "calibrate" not in again.names()


def test_a_suite_that_the_calibration_refuses_can_be_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError("calibration.ranks: got 4096")

    with monkeypatch.context() as patched:
        backend = Pretended()
        patched.setattr(backend, "calibrate", refuse)
        with pytest.raises(ConfigError, match="got 4096"):
            validate(small_suite(**HERE, calibration={"ranks": [4096], "quick": True}), tmp_path, backend)
    assert len(validate(small_suite(**HERE, repeats=1), tmp_path, Pretended()).cases) == 4


def test_threads_that_a_slow_rank_cannot_have_are_told_before_any_work(tmp_path: Path) -> None:
    slow = [{"name": "here"}, {"name": "slow", "slow_last": 0.5}]
    (told,) = refused(tmp_path, **{**HERE, "topologies": slow}, set={"hardware": {"threads_per_rank": 4096}})
    assert told.startswith("hardware.threads_per_rank: got 4096, expected ")
    assert "'slow' has a slow rank" in told
    assert "(4 of 8 cases, the first small-random-P2-slow-narrow)" in told


def test_more_ranks_than_can_be_calibrated_are_told_by_their_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "many.toml"
    write_toml(suite, small_suite(calibration={"ranks": [4096], "quick": True}).to_table())
    assert invoke(["validate", str(suite), "--out", str(tmp_path / "out")]) == 2
    assert "calibration.ranks: got 4096, expected at most" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_mini_batches_are_predicted_from_what_was_counted(tmp_path: Path) -> None:
    backend, root = Pretended(), tmp_path / "small"
    board = validate(small_suite(**BATCHES), root, backend)
    assert {line.case.experiment: line.error for line in board.cases} == dict.fromkeys(
        ("cached", "asked", "drawn"), pytest.approx(1 / 1.1 - 1, abs=0.01)
    )
    assert len(list((root / "batches").glob("*.npz"))) == 3
    assert {name for name in json.loads((root / "frozen.json").read_text())["digests"] if "batches/" in name}
    keep(root, tmp_path / "kept")
    assert rescore(tmp_path / "kept", Pretended()).as_dict() == board.as_dict()
    changed = next((tmp_path / "kept" / "batches").glob("*.npz"))
    changed.write_bytes(b"")
    with pytest.raises(ConfigError, match=f"batches/{changed.name} changed"):
        rescore(tmp_path / "kept", Pretended())


class Quick(CommandBackend):
    """The commands' own work, without a calibration."""

    def calibrate(self, ranks: object, quick: bool, passes: int, out: Path) -> None:
        save_profile(calibrated(), out)


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize("system", ["rapidgnn", pytest.param("distdgl", marks=pytest.mark.slow)])
def test_mini_batches_train_the_program_that_was_predicted(system: str, tmp_path: Path) -> None:
    layers = {"rapidgnn": 2, "distdgl": 3}[system]
    settings = {"batching": {"batch_size": 40, "fanouts": [4] * layers}, "model": {"hidden": 8}}
    plain = {"hold_out": [], "repeats": 1, "epochs": 2, "sensitivity": []}
    whole = SUITE | BATCHES | plain | {"extends": system, "set": settings, "experiments": [{"name": "own"}]}
    board = validate(small_suite(**whole), tmp_path / "small", Quick(Reporter(quiet=True)))
    assert [line.repeats for line in board.cases] == [1]
