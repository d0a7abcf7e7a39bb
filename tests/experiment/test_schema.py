"""Experiments: defaults, inheritance, round trips, slots."""

import tomllib
from pathlib import Path

import pytest
import tomli_w

from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment, system_names
from simgnn.experiment.schema import Experiment
from simgnn.experiment.slots import DEFAULT_KIND, DESIGNED, SLOTS, kinds


@pytest.mark.parametrize("system", system_names())
def test_a_shipped_system_survives_a_round_trip_through_toml(system: str) -> None:
    experiment = load_experiment(system)
    assert Experiment.from_table(tomllib.loads(tomli_w.dumps(experiment.to_table()))) == experiment


def test_vanilla_is_the_composition_that_the_design_names() -> None:
    vanilla = load_experiment("vanilla")
    composed = {slot: getattr(vanilla, slot).kind for slot in SLOTS}
    assert composed == dict(DEFAULT_KIND)


def test_an_empty_file_is_vanilla(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("")
    empty = load_experiment(tmp_path / "empty.toml")
    vanilla = load_experiment("vanilla")
    assert empty.model_dump(exclude={"name"}) == vanilla.model_dump(exclude={"name"})


def test_every_available_kind_is_one_that_the_design_names_and_explains_its_fields() -> None:
    for slot in SLOTS:
        assert kinds(slot), slot
        for kind, policy in kinds(slot).items():
            assert kind in DESIGNED[slot]
            assert policy.model_config["frozen"]
            assert policy.model_config["extra"] == "forbid"
            assert policy.__doc__
            assert policy.slot == slot  # type: ignore[attr-defined]


def test_an_experiment_cannot_be_changed() -> None:
    experiment = load_experiment("vanilla")
    with pytest.raises(ValueError, match="frozen"):
        experiment.seed = 3  # type: ignore[misc]


def test_inheritance_overrides_and_options_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'extends = "vanilla"\nname = "mine"\n[model]\nlayers = 3\nhidden = [64, 32]\n[graph]\nsource = "g.npz"\n'
    )
    experiment = load_experiment(
        tmp_path / "mine.toml", ["train.optimizer=sgd", "train.momentum=0.9"], ranks=4, epochs=7, hardware="dgx-a100"
    )
    assert experiment.model.hidden_widths() == (64, 32)
    assert experiment.model.widths(100, 10) == (100, 64, 32, 10)
    assert experiment.graph.source == str(tmp_path.resolve() / "g.npz")
    assert (experiment.train.momentum, experiment.train.epochs) == (0.9, 7)
    assert experiment.rank_hosts() == (0, 0, 0, 0)
    assert experiment.hardware.profile == "dgx-a100"


def test_paths_are_relative_to_where_they_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "base.toml").write_text('[graph]\nsource = "dgl:sub/g.bin"\n[hardware]\nprofile = "./mine.toml"\n')
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    experiment = load_experiment("../base.toml")
    assert experiment.graph.source == f"dgl:{tmp_path.resolve() / 'sub' / 'g.bin'}"
    assert experiment.hardware.profile == str(tmp_path.resolve() / "mine.toml")
    assert load_experiment("../base.toml", ["graph.source=here.mtx"]).graph.source == str(Path.cwd() / "here.mtx")
    assert load_experiment("../base.toml", ["graph.source=ogb:ogbn-arxiv"]).graph.source == "ogb:ogbn-arxiv"
    assert load_experiment("../base.toml", hardware="dgx-h100").hardware.profile == "dgx-h100"


def test_ranks_fill_host_after_host() -> None:
    experiment = load_experiment("vanilla", ["cluster.hosts=2", "cluster.ranks_per_host=3"])
    assert experiment.rank_hosts() == (0, 0, 0, 1, 1, 1)
    assert experiment.ranks == 6


def test_several_constraints_of_metis_survive_a_round_trip() -> None:
    experiment = load_experiment("vanilla", ['partition.balance=["vertices", "train"]'])
    assert Experiment.from_table(tomllib.loads(tomli_w.dumps(experiment.to_table()))) == experiment


def test_all_faults_are_told_at_once_each_with_where_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('extends = "vanilla"\ntrian = 3\n[model]\nlayers = 0\n[codec]\nkind = "nine"\n')
    with pytest.raises(ConfigError) as caught:
        load_experiment(tmp_path / "bad.toml", ["train.epochs=none"], ranks=0)
    told = caught.value.problems
    assert len(told) == 5
    assert any("bad.toml: trian: unknown key (did you mean 'train'?)" in fault for fault in told)
    assert any("bad.toml: model.layers: got 0, expected a whole number >= 1" in fault for fault in told)
    assert any("bad.toml: codec.kind: got 'nine', expected one of none" in fault for fault in told)
    assert any("--set: train.epochs: got 'none', expected a whole number >= 1" in fault for fault in told)
    assert any("--ranks: cluster.ranks_per_host: got 0, expected a whole number >= 1" in fault for fault in told)
    assert all("\n" not in fault for fault in told)
