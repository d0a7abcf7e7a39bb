"""Presampled batches on disk: what was sampled, whoever wrote it, in whatever order, however often interrupted."""

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sampling_graphs import hubs, owners, plain

from simgnn.errors import BackendError, ConfigError
from simgnn.partition.folder import ArtifactWriter, CorruptArtifactError
from simgnn.sampling.batches.plan import PLAN, SamplingPlan, open_plan, save_plan
from simgnn.sampling.batches.presample import Presampled, open_part, part_path, presample
from simgnn.sampling.draw.sampler import Sampler
from simgnn.sampling.fetches.measured_sizes import batch_sizes

EPOCHS = 3


@pytest.fixture(scope="module")
def plan() -> SamplingPlan:
    """Three workers of 45, 0 and 23 training vertices."""
    train = np.random.default_rng(3).permutation(300)[:68]
    workers = tuple(np.sort(part).astype(np.int64) for part in np.split(train, [45, 45]))
    return SamplingPlan(hubs(), owners(300, 3), workers, (6, 4), 8, 5)


@pytest.fixture(scope="module")
def whole(plan: SamplingPlan, tmp_path_factory: pytest.TempPathFactory) -> Presampled:
    """The uninterrupted work of one process and one thread."""
    return presample(plan, "s", tmp_path_factory.mktemp("whole") / "batches", EPOCHS, threads=1)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*") if path.suffix != ".lock"}


def test_what_is_read_is_what_was_sampled(plan: SamplingPlan, whole: Presampled) -> None:
    sampler = Sampler(plan.csr, plan.fanouts)
    for epoch in range(EPOCHS):
        for worker in range(plan.ranks):
            part, turn = open_part(whole.path, epoch, worker), plan.epoch(worker, epoch)
            assert len(part) == len(turn)
            for number in reversed(range(len(turn))):
                sampled = turn.sample(number, sampler)
                assert plain(part.batch(number)) == plain(sampled)
                np.testing.assert_array_equal(part.batch(number).sizes, sampled.sizes)


def test_sums_are_those_of_the_batches(plan: SamplingPlan, whole: Presampled) -> None:
    assert whole.tally is not None
    rows, inputs, edges, batches = np.zeros((3, 3), np.int64), 0, 0, 0
    frequencies: dict[int, int] = {}
    for epoch in range(EPOCHS):
        for worker in range(plan.ranks):
            part = open_part(whole.path, epoch, worker)
            needed = np.zeros(300, np.int64)
            for number in range(len(part)):
                batch = part.batch(number)
                np.add.at(rows[worker], plan.owner[batch.vertices], 1)
                needed[batch.vertices[plan.owner[batch.vertices] != worker]] += 1
                inputs += len(batch.vertices)
                edges += len(batch.blocks[1].sources)
                batches += 1
            np.testing.assert_array_equal(part.remote[0], np.flatnonzero(needed))
            np.testing.assert_array_equal(part.remote[1], needed[needed > 0])
            for times in needed[needed > 0].tolist():
                frequencies[times] = frequencies.get(times, 0) + 1
    tally = whole.tally
    assert (tally.batches, int(tally.vertices[-1]), int(tally.edges[1])) == (batches, inputs, edges)
    np.testing.assert_array_equal(tally.rows, rows)
    assert tally.rows.sum() == inputs  # every input row has one owner
    assert dict(tally.frequencies) == frequencies
    remote = tally.remote_rows(np.arange(3))
    assert remote == sum(times * held for times, held in frequencies.items()) == inputs - rows.trace()
    assert tally.remote_rows(np.array([0, 0, 1])) == remote - rows[0, 1] - rows[1, 0]
    assert tally.remote_rows(np.zeros(3, np.int64)) == 0


def test_threads_and_processes_change_no_byte(plan: SamplingPlan, whole: Presampled, tmp_path: Path) -> None:
    threaded = presample(plan, "s", tmp_path / "threads", EPOCHS, threads=3)
    assert threaded.digest == whole.digest
    for rank in (2, 0):  # as another process would
        half = presample(plan, "s", tmp_path / "shared", EPOCHS, ranks=[rank], threads=2)
        assert (half.digest, half.tally) == (None, None)
    last = presample(plan, "s", tmp_path / "shared", EPOCHS, ranks=[1])
    assert last.digest == whole.digest
    expected = contents(whole.path)
    assert contents(tmp_path / "threads") == contents(tmp_path / "shared") == expected


@pytest.mark.parametrize("after", [1, 6, 7, 20])
def test_an_interruption_leaves_whole_parts_that_the_next_call_keeps(
    plan: SamplingPlan, whole: Presampled, tmp_path: Path, after: int
) -> None:
    def stop(done: int, of: int) -> None:
        if done == after:
            raise KeyboardInterrupt

    folder = tmp_path / "batches"
    with pytest.raises(KeyboardInterrupt):
        presample(plan, "s", folder, EPOCHS, threads=2, done=stop)
    kept = {path: path.stat().st_mtime_ns for path in folder.rglob("*.npy")}
    assert not [path for path in folder.rglob(".*") if path.is_dir()]
    assert not (folder / "presample.json").exists()
    told: list[tuple[int, int]] = []
    resumed = presample(plan, "s", folder, EPOCHS, threads=2, done=lambda done, of: told.append((done, of)))
    assert resumed.digest == whole.digest
    assert contents(folder) == contents(whole.path)
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
    assert resumed.reused == len({path.parent for path in kept})
    assert resumed.made + resumed.reused == EPOCHS * plan.ranks
    total = told[-1][1]
    assert told == [(k, total) for k in range(1, total + 1)]


def test_more_epochs_continue_a_folder(plan: SamplingPlan, whole: Presampled, tmp_path: Path) -> None:
    short = presample(plan, "s", tmp_path / "b", 1)
    longer = presample(plan, "s", tmp_path / "b", EPOCHS)
    assert short.digest != whole.digest == longer.digest
    assert (longer.made, longer.reused) == (2 * plan.ranks, plan.ranks)


def test_a_damaged_part_is_refused_by_readers_and_made_again(
    plan: SamplingPlan, whole: Presampled, tmp_path: Path
) -> None:
    folder = tmp_path / "b"
    presample(plan, "s", folder, EPOCHS)
    file = part_path(folder, 1, 0) / "sources.npy"
    damaged = bytearray(file.read_bytes())
    damaged[-5] ^= 1
    file.write_bytes(bytes(damaged))
    with pytest.raises(CorruptArtifactError, match="damaged"):
        open_part(folder, 1, 0)
    again = presample(plan, "s", folder, EPOCHS)
    assert (again.made, again.digest) == (1, whole.digest)
    with pytest.raises(ConfigError, match="expected presampled batches"):
        open_part(folder, EPOCHS, 0)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"seed": 6}, "seed: there 5, here 6"),
        ({"fanouts": (6, 5)}, "fanouts"),
        ({"batch_size": 9}, "batch_size"),
        ({"workers": (np.arange(4), np.arange(4, 5), np.arange(5, 9))}, "training_vertices"),
    ],
)
def test_batches_of_other_settings_are_refused_or_replaced(
    plan: SamplingPlan, whole: Presampled, tmp_path: Path, changed: dict[str, object], told: str
) -> None:
    folder = tmp_path / "b"
    other = replace(plan, **changed)  # type: ignore[arg-type]
    presample(plan, "s", folder, 1)
    before = contents(folder)
    with pytest.raises(ConfigError, match=told):
        presample(other, "s", folder, 1)
    assert contents(folder) == before
    assert presample(other, "s", folder, 1, force=True).digest != presample(plan, "s", tmp_path / "c", 1).digest
    with pytest.raises(ConfigError, match="source: there s, here t"):
        presample(other, "t", folder, 1)


def test_a_folder_of_something_else_is_never_replaced(plan: SamplingPlan, tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"editor": "mine"}')
    for force in (False, True):
        with pytest.raises(ConfigError, match="holds no presampled batches"):
            presample(plan, "s", tmp_path, 1, force=force)
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]


def test_a_plan_that_batches_are_drawn_by_is_never_that_of_others(plan: SamplingPlan, tmp_path: Path) -> None:
    folder, other = tmp_path / "b", replace(plan, batch_size=plan.batch_size + 1)
    presample(plan, "s", folder, 1)
    assert open_plan(save_plan(plan, "s", folder / PLAN)).batch_size == plan.batch_size
    assert save_plan(plan, "s", folder / PLAN) == folder / PLAN
    with pytest.raises(ConfigError, match=r"holds the sampling plan of other settings \(batch_size"):
        save_plan(other, "s", folder / PLAN)
    presample(other, "s", folder, 1, force=True)
    assert open_plan(save_plan(other, "s", folder / PLAN)).batch_size == other.batch_size


def test_replacing_batches_leaves_files_of_others(plan: SamplingPlan, tmp_path: Path) -> None:
    presample(plan, "s", tmp_path / "b", 2)
    (tmp_path / "b" / "notes.txt").write_text("mine")
    presample(replace(plan, seed=6), "s", tmp_path / "b", 1, force=True)
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [
        *("epoch-0", "notes.txt", "presample.json", "settings.json")
    ]


def test_a_folder_that_has_it_all_is_only_read(
    plan: SamplingPlan, whole: Presampled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be read-only, and what it tells of more epochs than are asked for stays."""
    shutil.copytree(whole.path, tmp_path / "b")
    before = contents(tmp_path / "b")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("tempfile.mkdtemp", "tempfile.NamedTemporaryFile", "os.replace", "pathlib.Path.mkdir"):
        monkeypatch.setattr(name, refuse)
    for epochs in (EPOCHS, 1):
        found = presample(plan, "s", tmp_path / "b", epochs)
        assert (found.made, found.reused) == (0, epochs * plan.ranks)
        hosts = np.arange(plan.ranks)
        assert batch_sizes(plan, tmp_path / "b", hosts, epochs, 5).cache is not None
    monkeypatch.undo()
    assert contents(tmp_path / "b") == before
    assert json.loads((tmp_path / "b" / "presample.json").read_text())["epochs"] == EPOCHS


def test_a_full_disk_is_told_and_leaves_whole_parts(
    plan: SamplingPlan, whole: Presampled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [0]
    original = ArtifactWriter.array

    def full(self: ArtifactWriter, name: str, array: np.ndarray) -> None:
        written[0] += 1
        if written[0] == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(self, name, array)

    monkeypatch.setattr(ArtifactWriter, "array", full)
    with pytest.raises(BackendError, match=r"epoch-0: no room for the presampled artefact rank-2 .*No space left"):
        presample(plan, "s", tmp_path / "b", EPOCHS)
    assert not [path for path in (tmp_path / "b").rglob(".*") if path.is_dir()]
    monkeypatch.undo()
    assert presample(plan, "s", tmp_path / "b", EPOCHS).digest == whole.digest
