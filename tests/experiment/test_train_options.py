"""Options of ``[train]`` that change from epoch to epoch or from layer to layer: what is taken, what is refused."""

from dataclasses import replace

import pytest

from simgnn.errors import ConfigError
from simgnn.experiment.learning_rate import Cosine, Plateau, Step
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.planner.make_plan import plan
from simgnn.program.storage import program_digest
from tests.experiment.test_plan_blocks import blocks

RATE = "train.learning_rate_schedule"
TAKEN = {
    "cosine": Cosine(eta_min=0.001),
    "step": Step(step_size=7, gamma=0.5),
    "plateau": Plateau(metric="validation", patience=3, threshold_mode="abs"),
}


def _settings(kind: str) -> list[str]:
    options = TAKEN[kind].model_dump(exclude_defaults=True)
    return [f"{RATE}.kind={kind}", *(f"{RATE}.{key}={value}" for key, value in options.items())]


@pytest.mark.parametrize("kind", TAKEN)
def test_a_schedule_is_read_and_survives_a_round_trip(kind: str) -> None:
    experiment = load_experiment("vanilla", _settings(kind))
    assert experiment.train.learning_rate_schedule == TAKEN[kind]
    assert Experiment.from_table(experiment.to_table()) == experiment


def test_the_options_of_training_change_no_program() -> None:
    stats = blocks(3, [70, 50, 60])
    stats = replace(stats, facts=replace(stats.facts, validation_vertices=20))
    chosen = [*_settings("plateau"), "train.patience=4", "train.weight_decay=[0.1,0.2]", "train.decay_biases=false"]
    before, after = (plan(load_experiment("vanilla", own), stats).program for own in ([], chosen))
    assert program_digest(before) == program_digest(after)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ([f"{RATE}.kind=cosin"], f"{RATE}.kind: got 'cosin', expected one of 'constant', 'cosine', 'step', 'plateau'"),
        ([f"{RATE}.t_max=3"], f"{RATE}.kind: got none"),
        ([f"{RATE}=cosine"], f"{RATE}: got 'cosine', expected a table whose kind is one of"),
        ([f"{RATE}.kind=cosine", f"{RATE}.tmax=3"], f"{RATE}.tmax: unknown key (did you mean 't_max'?)"),
        ([f"{RATE}.kind=cosine", f"{RATE}.step_size=3"], f"{RATE}.step_size: unknown key"),
        ([f"{RATE}.kind=step"], f"{RATE}.step_size: missing"),
        ([f"{RATE}.kind=step", f"{RATE}.step_size=0"], f"{RATE}.step_size: got 0"),
        ([f"{RATE}.kind=plateau", f"{RATE}.factor=1.0"], f"{RATE}.factor: got 1.0"),
        ([f"{RATE}.kind=plateau", f"{RATE}.metric=validation", "train.eval_every=0"], f"{RATE}: got metric"),
        (["train.patience=3", "train.eval_every=0"], "train.patience: got 3 with train.eval_every = 0"),
        (["train.patience=-1"], "train.patience: got -1"),
        (["train.weight_decay=[0.1]"], "train.weight_decay: got 1 numbers, expected 2"),
        (["train.weight_decay=[0.1,-0.1]"], "train.weight_decay: got [0.1, -0.1]"),
        (["train.decay_biases=false"], "train.decay_biases: got false with train.weight_decay = 0"),
        (["train.weight_decay=[0.0,0.0]", "train.decay_biases=false"], "train.decay_biases: got false"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_key(settings: list[str], key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_experiment("vanilla", settings)
    (problem,) = raised.value.problems
    assert key in problem


def test_without_evaluations_of_batches_there_is_nothing_to_wait_for() -> None:
    with pytest.raises(ConfigError, match=r"batching\.evaluation: got 'none' with train\.patience"):
        load_experiment("distdgl", ["batching.evaluation=none", "train.eval_every=1", "train.patience=2"])


@pytest.mark.parametrize("settings", [["train.patience=2"], _settings("plateau")])
def test_a_graph_without_validation_vertices_is_refused(settings: list[str]) -> None:
    stats = blocks(3, [70, 50, 60])
    facts = replace(stats.facts, validation_vertices=0)
    with pytest.raises(
        ConfigError, match=r"train\.(patience|learning_rate_schedule\.metric): .*no validation vertices"
    ):
        plan(load_experiment("vanilla", settings), replace(stats, facts=facts))
