"""What a real run decided: what its weights say, and what a simulation replays of it.

How well fractions carry over to another partition has no closed form on a graph that is learned from: the rows that
travel are those of the vertices at its cut, which are others at every cut, and stale rows change what is learned. Exact
are the parts of which it is made: what each vertex sends, given the weights; fractions, given what was sent
(tests/analysis/test_replay.py); and the whole where nothing depends on the cut.
"""

import json
import shutil
from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np
import pytest

from simgnn.analysis.replay.activity import read_recording, replay
from simgnn.api.activity import find_activity
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.partition.store import PartitionArtifact, partition_artifact
from simgnn.planner.make_plan import plan
from simgnn.planner.prepare import Prepared
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.program.sizes import IntArray
from simgnn.record.activity import decisions_in
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory
from simgnn.seal import seal_folder
from simgnn.tomlfile import load_toml, write_toml
from tests.equality.cached_runs import CACHE, EIGHT_BITS, TRANSFORMED, Recorded, Runs, case
from tests.equality.cases import EPOCHS, Case
from tests.equality.conftest import Bench
from tests.policies.acting import HERE

RATE = 0.5
FIRST = "model.order=aggregate-first"


@pytest.fixture(scope="module")
def runs(bench: Bench) -> Runs:
    return Runs(bench)


def moved_vertices(run: Recorded, features: np.ndarray) -> np.ndarray:
    """Which vertices' rows X W of layer 1 are sent in each epoch, bool [epochs, V], from the run's gradients alone."""
    policy, told = run.finished.plan.policies["freshness"], run.finished.ranks[0]
    assert isinstance(policy, AdaptiveVertex)
    accuracies = read_recording(run.finished.folder).accuracies
    assert accuracies is not None
    layer = run.finished.plan.layers[0]
    shape = (layer.width_in, layer.width_out)
    weight = told["initial"].numpy()[: np.prod(shape)].reshape(shape)
    cached, state, found = np.zeros((len(features), shape[1])), policy.start(), []
    for gradient, accuracy in zip(told["gradients"], accuracies, strict=True):
        rows = features @ weight
        moved = policy.moved(HERE, rows, cached, (state.epsilon, nan))
        change, size = np.abs(rows - cached).max(1), np.abs(rows).max(1)
        assert np.abs(change - state.epsilon * size).min() > 1e-12, "a row is on the edge: rounding would decide"
        cached[moved] = rows[moved]
        found.append(moved)
        state = policy.adjusted(state, accuracy)
        weight = weight - RATE * gradient.numpy()[: np.prod(shape)].reshape(shape)
    return np.stack(found)


def sent_rows(run: Recorded, moved: np.ndarray) -> IntArray:
    """Rows that each rank sends to each other in each epoch, int64 [P, P, epochs], where these vertices moved."""
    artifact, ranks = PartitionArtifact.open(run.finished.plan.partition), run.program.ranks
    rows = np.zeros((ranks, ranks, len(moved)), dtype=np.int64)
    for source in range(ranks):
        local = artifact.local(source)
        for target, chosen in local.row_lists["halo"].leaving.items():
            rows[source, target] = moved[:, local.vertices[chosen]].sum(axis=1)
    return rows


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_is_sent_follows_from_the_weights(runs: Runs, ranks: int) -> None:
    run = runs.of(case(*CACHE, *TRANSFORMED, "train.optimizer=sgd", f"train.learning_rate={RATE}", ranks=ranks))
    features = np.asarray(runs.bench.graph("communities").features, dtype=np.float64)
    moved = moved_vertices(run, features)
    assert moved[0].all()
    assert 0 < moved[1:].mean() < 1
    assert np.array_equal(run.decided["sync/1/forward/rows"][..., 0], sent_rows(run, moved))


def test_fractions_are_exact_where_nothing_depends_on_the_cut(runs: Runs) -> None:
    """A model that stands still sends every row once, wherever it is cut."""
    still = (*CACHE, *TRANSFORMED, "train.learning_rate=1e-30", "train.epochs=4")
    two, three = (runs.of(case(*still, ranks=ranks)) for ranks in (2, 3))
    recording = read_recording(two.finished.folder)
    found = replay(recording, three.program, decisions_in(three.program), frozenset({"another"}), 4, 0, None)
    assert found.transferred
    for layer in (1, 2):
        name = f"sync/{layer}/forward/rows"
        assert np.array_equal(found.activity[name], three.decided[name])
        assert three.decided[name][..., 1:, 0].sum() == 0 < three.decided[name][..., 0, 0].sum()
        for values in (found.activity, three.decided):
            assert values[f"sync/{layer}/backward/rows"][..., 1:, 0].sum() == 0


def _prepared(folder: Path, ranks: int, *settings: str) -> Prepared:
    """The recorded experiment again, planned as ``simulate`` does, with other settings."""
    experiment = load_experiment(str(folder / "experiment.toml"), list(settings))
    named = json.loads((folder / "plan" / "plan.json").read_text())["partition"]
    artifact = PartitionArtifact.open(Path(named))
    return Prepared(experiment.with_cluster(1, ranks), artifact.stats, plan(experiment, artifact.stats), None, artifact)


def test_an_activity_is_replayed_as_it_was(runs: Runs) -> None:
    recorded = runs.of(case(*CACHE, *TRANSFORMED))
    found = find_activity(_prepared(recorded.finished.folder, 2), recorded.finished.folder)
    assert not found.transferred
    assert not found.notes
    assert set(found.activity) == decisions_in(recorded.program)
    for name, values in found.activity.items():
        assert np.array_equal(values, recorded.decided[name])


def test_a_longer_simulation_follows_a_curve_and_says_so(runs: Runs) -> None:
    recorded = runs.of(case(*CACHE, *TRANSFORMED))
    found = find_activity(_prepared(recorded.finished.folder, 2, "train.epochs=60"), recorded.finished.folder)
    assert f"the {60 - EPOCHS} after them follow a curve" in found.notes[0]
    rows = found.activity["sync/1/forward/rows"]
    assert rows.shape == (2, 2, 60, 1)
    assert np.array_equal(rows[:, :, :EPOCHS], recorded.decided["sync/1/forward/rows"])
    limit = recorded.program.sizes.routes["halo"].matrix(2)
    assert np.all(rows[..., 0] <= limit[:, :, None])
    assert np.array_equal(found.activity["sync/1/forward/arrived"], rows.sum(axis=0))


def test_the_same_cut_on_other_hosts_is_replayed_as_it_was(runs: Runs, tmp_path: Path) -> None:
    """Hosts are part of a partition's digest, and nothing of what training decides."""
    run = runs.of(Case("communities", "gcn", "random", 2, extra=(*CACHE, *TRANSFORMED, "train.epochs=4")))
    folder = run.finished.folder
    experiment = load_experiment(str(folder / "experiment.toml"), []).with_cluster(2, 1)
    graph = runs.bench.graph("communities")
    artifact = partition_artifact(graph, experiment.partition, np.array([0, 1]), experiment.seed, tmp_path)
    assert artifact.digest != PartitionArtifact.open(run.finished.plan.partition).digest
    prepared = Prepared(experiment, artifact.stats, plan(experiment, artifact.stats), graph, artifact)
    found = find_activity(prepared, folder)
    assert not found.transferred
    for name, values in found.activity.items():
        assert np.array_equal(values, run.decided[name])
    other = experiment.partition.model_copy(update={"seed": 1})
    artifact = partition_artifact(graph, other, np.array([0, 1]), experiment.seed, tmp_path)
    assert find_activity(replace(prepared, stats=artifact.stats, partition=artifact), folder).transferred


def test_what_cannot_be_replayed_is_refused(runs: Runs, tmp_path: Path) -> None:
    folder = runs.of(case(*CACHE, *TRANSFORMED)).finished.folder
    with pytest.raises(ConfigError, match=r"freshness.kind = 'adaptive-vertex'.*--activity runs/recorded"):
        find_activity(_prepared(folder, 2), None)
    with pytest.raises(ConfigError, match=r"freshness\.epsilon: got 0\.05, expected 0\.03"):
        find_activity(_prepared(folder, 2, "freshness.epsilon=0.05"), folder)
    with pytest.raises(ConfigError, match=r"freshness\.kind: got always, expected adaptive-vertex"):
        find_activity(_prepared(folder, 2, "freshness={kind='always'}"), folder)
    with pytest.raises(ConfigError, match=r"holds no result\.json"):
        find_activity(_prepared(folder, 2), tmp_path)
    deeper = _prepared(folder, 2, "model.layers=3")
    with pytest.raises(ConfigError, match=r"no record of the decision 'sync/3/.*' \(4 are missing"):
        find_activity(deeper, folder)
    exact = runs.of(case(*TRANSFORMED)).finished.folder
    with pytest.raises(ConfigError, match=r"freshness\.kind: got adaptive-vertex, expected always"):
        find_activity(_prepared(folder, 2), exact)
    with pytest.raises(ConfigError, match=r"only the accuracy counts here; .*model\.hidden = 16; here it is 8"):
        find_activity(_prepared(exact, 2, "model.hidden=8"), exact)


def test_what_auto_chose_is_compared(runs: Runs, tmp_path: Path) -> None:
    """Which rows of layer 1 travel follows from the epochs, too: here those are inputs, sent once."""
    folder, auto = runs.of(case(*CACHE, *TRANSFORMED)).finished.folder, "communication.rows=auto"
    chose = r"communication\.rows: got input \(chosen by 'auto'\), expected transformed"
    with pytest.raises(ConfigError, match=chose):
        find_activity(_prepared(folder, 2, auto), folder)
    # as if it had been auto that chose them in the record
    record = shutil.copytree(folder, tmp_path / "record")
    text = (record / "experiment.toml").read_text()
    assert text.count('rows = "transformed"') == 1
    (record / "experiment.toml").write_text(text.replace('rows = "transformed"', 'rows = "auto"'))
    seal_folder(record, RunDirectory(record).recorded)
    with pytest.raises(ConfigError, match=rf"{chose} \(chosen by 'auto'\)"):
        find_activity(_prepared(record, 2), record)
    found = find_activity(_prepared(record, 2, *TRANSFORMED), record)
    assert not found.transferred
    assert not found.notes
    assert found.accuracy
    # exact training learns the same of either
    exact = runs.of(case(*TRANSFORMED)).finished.folder
    found = find_activity(_prepared(exact, 2, auto), exact)
    assert (found.transferred, found.notes) == (False, ())
    assert list(found.accuracy) == read_result(RunDirectory(exact).result).accuracy


@pytest.mark.parametrize("setting", ["partition.kind=metis", "partition.kind=random"])
def test_a_record_without_a_choice_is_refused(runs: Runs, tmp_path: Path, setting: str) -> None:
    """Also on another partition, which chooses nothing."""
    record = shutil.copytree(runs.of(case(*TRANSFORMED)).finished.folder, tmp_path / "record")
    path = record / "plan" / "resolved.toml"
    write_toml(path, {key: value for key, value in load_toml(path).items() if key != "communication.rows"})
    seal_folder(record, RunDirectory(record).recorded)
    with pytest.raises(ConfigError, match=r"communication\.rows"):
        find_activity(_prepared(record, 2, setting), record)


def test_the_accuracy_of_a_run_comes_along(runs: Runs) -> None:
    """Of one that decides nothing it is all; of one that learned something else it is none."""
    for one in (case(*TRANSFORMED), case(*CACHE, *TRANSFORMED)):
        folder = runs.of(one).finished.folder
        found = find_activity(_prepared(folder, 2), folder)
        told = read_result(RunDirectory(folder).result).accuracy
        assert told
        assert list(found.accuracy) == told
        assert found.run == folder.name
        assert not found.notes
    other = find_activity(_prepared(folder, 2, "train.learning_rate=0.5"), folder)
    assert other.accuracy == ()
    assert "activity was recorded with train.learning_rate = 0.01; here it is 0.5" in other.notes


@pytest.mark.parametrize(("settings", "lossy"), [((), False), (EIGHT_BITS, True)])
def test_an_accuracy_of_another_partition_says_so(runs: Runs, settings: tuple[str, ...], lossy: bool) -> None:
    """Nothing is decided in either run; what exact training learns depends on no partition."""
    folder = runs.of(case(*settings, *TRANSFORMED)).finished.folder
    here = _prepared(folder, 2)
    assert not find_activity(here, folder).transferred
    assert here.stats.origin is not None
    elsewhere = replace(here.stats.origin, cut="another", partition=None)
    found = find_activity(replace(here, stats=replace(here.stats, origin=elsewhere)), folder)
    assert found.transferred == lossy
    assert ["another partition (2 ranks)" in note for note in found.notes] == [True] * lossy
    assert list(found.accuracy) == read_result(RunDirectory(folder).result).accuracy


def test_what_decides_which_rows_travel_is_refused(runs: Runs) -> None:
    """On vertex-cuts sums travel, before or after the weights, of layer 1 in every epoch or once."""
    folder = runs.of(Case("communities", "gcn", "ebv", 3, extra=("model.hoist=never", *CACHE))).finished.folder
    orders = {
        "aggregate-first": _prepared(folder, 3, "model.order=aggregate-first"),
        "transform-first": _prepared(
            folder, 3, "model.order=transform-first", "model.hoist=auto"
        ),  # never is idle then
    }
    chosen = json.loads((folder / "plan" / "plan.json").read_text())["layers"]
    for order, here in orders.items():
        if {layer["order"] for layer in chosen} == {order}:
            assert not find_activity(here, folder).notes
            continue
        with pytest.raises(ConfigError, match=rf"model\.order: got {order}, expected .*set it so"):
            find_activity(here, folder)
    with pytest.raises(ConfigError, match=r"model\.kind: got sage, expected gcn as in .*set it so"):
        find_activity(_prepared(folder, 3, "model.kind=sage"), folder)
    aggregated = runs.of(
        Case("communities", "gcn", "ebv", 3, extra=("model.hoist=never", FIRST, *CACHE))
    ).finished.folder
    assert not find_activity(_prepared(aggregated, 3), aggregated).notes
    once = r"model\.hoist: got auto, by which layer 1 is summed once, expected never as in .*set it so"
    with pytest.raises(ConfigError, match=once):
        find_activity(_prepared(aggregated, 3, "model.hoist=auto"), aggregated)


def test_a_constant_sum_of_halo_rows_may_be_computed_in_every_epoch(runs: Runs) -> None:
    """It decides nothing: the same travels, and is exact."""
    folder = runs.of(case(*CACHE, FIRST, "communication.rows=input")).finished.folder
    assert any(layer["hoisted"] for layer in json.loads((folder / "plan" / "plan.json").read_text())["layers"])
    found = find_activity(_prepared(folder, 2, "model.hoist=never"), folder)
    assert (found.transferred, found.notes) == (False, ())
    assert found.accuracy
