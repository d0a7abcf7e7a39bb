"""What the functions return, in Python and as the command line shows it."""

import json
from pathlib import Path

import pandas as pd
import pytest

import simgnn
from simgnn.api.results import Run, read_outcome
from simgnn.cli.main import invoke
from simgnn.errors import ConfigError, SimgnnError

PROFILE = "cpu-100gbe-8"
VOLATILE = {"environment", "versions", "directory"}


def test_a_prediction_is_that_of_the_command(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--ranks", "2", "--hardware", PROFILE, "--epochs", "3", "--set", "model.hidden=12", "--json"]
    assert invoke(["simulate", str(small), *words]) == 0
    told = json.loads(capsys.readouterr().out)
    options = {"ranks": 2, "hardware": PROFILE, "epochs": 3, "set": {"model.hidden": 12}}
    given = [
        (small, options),
        (simgnn.load_experiment(small, **options), {}),
        (simgnn.load_experiment(small), options),
        (simgnn.load_experiment(str(small), set={"model": {"hidden": 12}, "train.epochs": 3}, ranks=2),
         {"hardware": PROFILE}),
    ]  # fmt: skip
    for experiment, more in given:
        found = simgnn.simulate(experiment, **more).result.model_dump(mode="json")
        assert {key: found[key] for key in found.keys() - VOLATILE} == {
            key: told[key] for key in found.keys() - VOLATILE
        }
    assert capsys.readouterr() == ("", ""), "functions print nothing"


def test_figures_go_into_tables_and_a_timeline(small: Path) -> None:
    lines: list[str] = []
    prediction = simgnn.simulate(small, ranks=2, hardware=PROFILE, progress=lines.append)
    result = prediction.result
    assert any("simulating 4 epochs" in line for line in lines)
    table = prediction.table()
    assert table["epoch_s"].tolist() == [result.epoch_s_median]
    assert table["loss"].dtype == float
    assert table["traffic_bytes"].tolist() == [prediction.table("rank")["traffic_bytes"].sum()]
    assert table["memory_bytes"].tolist() == [max(peak.peak_bytes for peak in result.memory)]
    assert prediction.table("rank")["wait_s"].tolist() == [rank.wait_s for rank in result.per_rank]
    by_epoch = prediction.table("epoch")
    assert (by_epoch["epoch"].tolist(), by_epoch["epoch_s"].tolist()) == ([1, 2, 3, 4], result.epoch_s)
    figure = prediction.timeline(3)
    trace = prediction.simulation.trace.to_pandas()
    ran = trace[(trace["epoch"] == 2) & (trace["step"] >= 0)]
    ended = max(base + length for bar in figure.data for base, length in zip(bar.base, bar.x, strict=True))
    assert ended / 1e3 == pytest.approx(ran["ended_s"].max() - ran["issued_s"].min(), rel=1e-9)
    assert sum(len(bar.x) for bar in figure.data if bar.name != "wait") == len(ran)
    assert {row.split()[1] for bar in figure.data for row in bar.y} == {"0", "1"}
    html = prediction._repr_html_()
    assert "small: predicted on 2 ranks" in html
    assert "limited by" in html
    assert "small: predicted on 2 ranks" in repr(prediction)
    for wrong in (lambda: prediction.timeline(5), lambda: prediction.table("layer")):
        with pytest.raises(ConfigError, match="expected"):
            wrong()


def test_html_shows_text_of_users_as_text(small: Path) -> None:
    prediction = simgnn.simulate(small, ranks=2, hardware=PROFILE, set={"name": "<b>bold<b>"})
    assert "&lt;b&gt;bold&lt;b&gt;" in prediction._repr_html_()


def test_a_prediction_without_memory_is_a_result(small: Path) -> None:
    wide = {"graph.vertices": 60_000, "graph.edges": 60_000, "model.hidden": 1_000_000}
    prediction = simgnn.simulate(small, ranks=1, hardware="dgx-a100", set=wide)
    assert prediction.result.status == "oom"
    assert prediction.table()["epoch_s"].isna().all()
    with pytest.raises(ConfigError, match="has no trace: it ended with status 'oom'"):
        prediction.timeline()
    with pytest.raises(SimgnnError, match="no finished run"):
        simgnn.compare(prediction, prediction)


@pytest.mark.usefixtures("forked_ranks")
def test_a_run_is_compared_with_its_prediction(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = simgnn.load_experiment(small, ranks=2, hardware=PROFILE)
    prediction = simgnn.simulate(experiment)
    run = simgnn.run(experiment, out=tmp_path / "run")
    assert isinstance(run, Run)
    assert (len(run.losses), run.accuracies[-1].epoch, run.directory) == (4, 4, tmp_path / "run")
    assert run.table("epoch")["loss"].tolist() == list(run.losses)
    assert pd.concat([prediction.table(), run.table()])["how"].tolist() == ["predicted", "measured"]
    both = tmp_path / "both.json"
    compared = simgnn.compare(prediction, run, trace=both)
    assert both.is_file()
    assert (compared.comparison.bytes_differ, prediction.directory) == (0, None)
    written = simgnn.simulate(experiment, out=tmp_path / "sim")
    assert invoke(["compare", str(tmp_path / "sim"), str(tmp_path / "run"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert compared.comparison.as_dict() == told
    rows = compared.table()
    assert rows["op"].tolist()[:10] == [op["name"] for op in told["top"]]
    assert rows["compute_measured_s"].sum() == pytest.approx(told["parts"][0]["measured_s"])
    assert compared.table("kind").set_index("kind").loc["exchange", "wait_measured_s"] > 0
    assert {row.split()[0] for bar in compared.timeline().data for row in bar.y} == {"predicted", "measured"}
    assert "payload between ranks: 0 bytes" in compared._repr_html_()
    # alone: predicted again, on the hardware that it ran on; from directories: the same
    assert simgnn.compare(run).table().equals(rows)
    assert simgnn.compare(str(tmp_path / "sim"), run).table().equals(rows)
    assert simgnn.compare(written, read_outcome(tmp_path / "run")).table().equals(rows)
    assert simgnn.simulate(experiment, activity=run).result.time_to_accuracy is not None
    with pytest.raises(ConfigError, match="expected a prediction and a run"):
        simgnn.compare(tmp_path / "run")
    longer = simgnn.run(experiment, epochs=6, out=run, resume=True)
    assert longer.losses[:4] == run.losses
    assert len(longer.losses) == 6


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: simgnn.simulate("vanila"), "did you mean 'vanilla'"),
        (lambda: simgnn.simulate("vanilla", set={"train.epoch": 3}), "train.epoch"),
        (lambda: simgnn.simulate("vanilla", set={"": 3}), "got the key ''"),
        (lambda: simgnn.simulate("vanilla", set={"train..epochs": 3}), "got the key 'train..epochs'"),
        (lambda: simgnn.simulate("vanilla", set={"train.epochs": None}), "train.epochs"),
        (lambda: simgnn.simulate("vanilla", hardware="nothing"), "hardware.profile"),
        (lambda: simgnn.simulate("vanilla", out=""), "--out: got ''"),
        (lambda: simgnn.run("vanilla", resume=True), "--resume"),
        (lambda: simgnn.make_partition("vanilla", stats="x.npz"), "--stats"),
        (lambda: simgnn.calibrate(pool=["x"], quick=True), "--pool"),
        (lambda: simgnn.compare("nowhere", "neither"), "no result at nowhere"),
    ],
)
def test_wrong_input_is_an_exception_with_the_key(call, told: str) -> None:
    with pytest.raises(SimgnnError) as caught:
        call()
    assert told in str(caught.value)


def test_an_override_of_a_loaded_experiment_resets_what_it_leaves_without_effect() -> None:
    loaded = simgnn.load_experiment("cdfgnn", set={"freshness.epsilon": 0.2, "graph.vertices": 300})
    exact = simgnn.load_experiment(loaded, set={"freshness": {"kind": "always"}})
    assert (exact.freshness.label, exact.graph.vertices) == ("always", 300)
    assert simgnn.load_experiment(loaded) is loaded


def test_paths_in_overrides_start_at_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = simgnn.load_experiment("vanilla", set={"graph.source": Path("sub/g.npz")})
    assert loaded.graph.source == str(tmp_path / "sub" / "g.npz")


def test_a_partition_is_measured_and_kept(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = simgnn.make_partition(small, ranks=3, stats=tmp_path / "s.toml")
    assert (tmp_path / "s.toml").is_file()
    assert invoke(["partition", str(small), "--ranks", "3", "--json"]) == 0
    assert {**found.as_dict(), "made_now": False} == json.loads(capsys.readouterr().out)
    assert found.table()["edge_cut"].tolist() == [found.quality.edge_cut]
    assert found.table("type")["vertices"].sum() == found.vertices
    balances = found.table("balance")
    assert (balances["choice"].tolist()[0], len(balances)) == ("auto", 3)
    assert balances["work"].tolist() == [balance.work for balance in found.balances or ()]
    assert "cut edges" in found._repr_html_()
    cut = simgnn.make_partition(small, ranks=3, set={"partition.kind": "ebv"})
    assert len(cut.table("type")) == len(cut.table("balance")) == 0
    assert "mirrors" in cut._repr_html_()
    source = {"graph.source": f"stats:{tmp_path / 's.toml'}"}
    assert simgnn.simulate("vanilla", set=source, ranks=3, hardware=PROFILE).result.ranks == 3


def test_what_has_a_name_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.toml").write_text("meta = 1")
    monkeypatch.setenv("SIMGNN_HWPROFILES", str(tmp_path))
    for listing, command in ((simgnn.list_hardware(), "hardware"), (simgnn.list_systems(), "systems")):
        assert invoke([command, "list", "--json"]) == 0
        assert [dict(row) for row in listing.rows] == json.loads(capsys.readouterr().out)
        assert len(listing.table()) == len(listing.rows)
        assert listing._repr_html_().count("<tr") == len(listing.rows) + 1
    systems, profiles = simgnn.list_systems(), simgnn.list_hardware()
    assert "vanilla" in systems
    assert [simgnn.load_experiment(system).name for system in systems]
    assert "dgx-a100" in profiles
    assert "broken" not in profiles
    assert "broken" in profiles.table()["profile"].tolist()
