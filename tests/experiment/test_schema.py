"""Experiments: defaults, inheritance, round trips, slots."""

import tomllib
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import tomli_w

from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment, system_names
from simgnn.experiment.problems import parse_table
from simgnn.experiment.schema import SECTIONS, Basics, Experiment
from simgnn.experiment.slots import DEFAULT_KIND, SLOTS
from simgnn.registry import shipped


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


def test_every_shipped_kind_is_a_frozen_value_of_its_slot_that_explains_its_fields() -> None:
    for slot in SLOTS:
        assert shipped(slot), slot
        for kind, policy in shipped(slot).items():
            assert policy.model_config["frozen"]
            assert policy.model_config["extra"] == "forbid"
            assert policy.__doc__
            assert all(field.description for name, field in policy.model_fields.items() if name != "kind")
            assert policy.slot == slot
            assert policy.model_fields["kind"].default == kind


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


def test_true_is_no_number_and_no_choice_of_one() -> None:
    """Every field that takes a whole number, one of some or any, refuses true; a choice of numbers also refuses 1.0."""
    tables = [((key,), section) for key, section in SECTIONS.items()]
    tables += [((slot, kind), policy) for slot in SLOTS for kind, policy in shipped(slot).items()]
    checked = []
    for path, model in (((), Basics), *tables):
        for key, field in model.model_fields.items():
            taken = types_of(field.annotation)
            if int not in taken or bool in taken:
                continue
            problems: list[str] = []
            assert parse_table(model, {key: True}, path, lambda _: "", problems) is None
            assert [problem for problem in problems if problem.startswith(f"{'.'.join((*path, key))}: got true")]
            checked.append(key)
    assert {"seed", "hosts", "epochs", "bits", "layers", "hidden", "fanouts", "bound_epochs", "window"} <= set(checked)
    linear = ["freshness.kind=always", "codec.kind=linear"]
    for given in ("true", "1.0", "8.0"):
        with pytest.raises(ConfigError, match=rf"codec\.bits: got {given}, expected one of 1, 2, 4, 8, 16"):
            load_experiment("vanilla", [*linear, f"codec.bits={given}"])


def types_of(annotation: Any) -> set[type]:
    """The plain types that a field takes, at any depth; those of the values where it takes only these."""
    if get_origin(annotation) is Literal:
        return {type(value) for value in get_args(annotation)}
    return {annotation}.union(*(types_of(entry) for entry in get_args(annotation)))


@pytest.mark.parametrize(
    ("system", "ablation"),
    [
        ("cdfgnn", "freshness.kind=always"),
        ("cdfgnn", "freshness.adapt=false"),
        ("cdfgnn", "codec.kind=none"),
        ("sancus", "freshness.rule=epoch-fixed"),
        ("sancus", "freshness.rule=variation-gap"),
        ("sancus", "freshness.skip=gradients"),
        ("sancus", "freshness.kind=always"),
        ("sancus", "communication.resend_inputs=false"),
        ("sancus", "train.clip_norm=0.0"),
        ("cagnet", "communication.resend_inputs=false"),
    ],
)
def test_one_part_of_a_shipped_system_can_be_left_out(system: str, ablation: str) -> None:
    """No shipped file names an option that such a choice would leave without effect, so none is refused."""
    assert load_experiment(system, [ablation]) != load_experiment(system)


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
    assert any("bad.toml: codec.kind: got 'nine', expected one of bfloat16, float32" in fault for fault in told)
    assert any("--set: train.epochs: got 'none', expected a whole number >= 1" in fault for fault in told)
    assert any("--ranks: cluster.ranks_per_host: got 0, expected a whole number >= 1" in fault for fault in told)
    assert all("\n" not in fault for fault in told)
