"""The number of chunks of each rank by the memory of devices: chosen, refused below, alike in simulate and run."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simgnn.api.memory.chunk_memory import simulated_needs, trials_of
from simgnn.api.memory.device_budget import check_device_budget
from simgnn.api.partition import make_partition
from simgnn.api.predict import known_profile, predict
from simgnn.errors import ConfigError, ShortMemoryError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.hardware.profile.profile import load_profile
from simgnn.planner.memory.chunk_number import ChunkTrials, Held, chosen_number, workable
from simgnn.planner.prepare import Prepared, prepare
from simgnn.progress import SILENT
from simgnn.tomlfile import write_toml

PROFILE = "vm-epyc-2"
GRAPH = {
    "graph.source": "synthetic:communities", "graph.vertices": 1200, "graph.edges": 9000, "model.hidden": 16,
    "train.epochs": 2, "hardware.profile": PROFILE,
}  # fmt: skip


def experiment(budget: int, chunks: Any = "auto") -> Experiment:
    settings = {**GRAPH, "partition.chunks": chunks, "placement.device_bytes": budget}
    return load_experiment("hongtu", settings, ranks=2)


def prepared(budget: int, cache: Path, chunks: Any = "auto") -> Prepared:
    profile = load_profile(PROFILE)
    one = experiment(budget, chunks)
    return prepare(one, profile=profile, needs=simulated_needs(profile), cache=cache)


def peak(one: Prepared) -> int:
    held = simulated_needs(load_profile(PROFILE))(one.experiment, one.stats, one.planned)
    assert not held.full
    return int(held.device.max())


@pytest.mark.slow
def test_a_budget_of_what_chunks_need_is_kept_and_a_byte_less_is_not(tmp_path: Path) -> None:
    """The number is the smallest power of two that fits, in the plan; one byte less takes twice as many."""
    needed = {chunks: peak(prepared(10**9, tmp_path, chunks)) for chunks in (4, 8, 16)}
    assert needed[4] > needed[8] > needed[16]
    at, below = prepared(needed[8], tmp_path), prepared(needed[8] - 1, tmp_path)
    assert at.planned.resolved["partition.chunks"] == 8
    assert below.planned.resolved["partition.chunks"] == 16
    assert at.chunks is not None
    assert at.chunks.chunks == 8
    assert peak(at) == needed[8]
    assert at.planned.program.sizes.columns.keys() == below.planned.program.sizes.columns.keys()


def test_a_stated_number_is_refused_a_byte_below_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`simulate` and `run` say alike which rank, layer and chunk need how much, and which number would do."""
    monkeypatch.setenv("SIMGNN_CACHE", str(tmp_path))
    needed = peak(prepared(10**9, tmp_path, 4))
    words = [r"rank \d, layer \d, chunk \d needs", f"needs {needed:,} B", f"budget {needed - 1:,} B", "chunks = 5"]
    predicted = predict(experiment(needed - 1, 4), SILENT, limits=False).result
    assert predicted.status == "oom"
    fits = predict(experiment(needed, 4), SILENT, limits=False).result
    assert fits.status == "ok"
    chosen = known_profile(experiment(needed, 4))
    check_device_budget(prepared(needed, tmp_path, 4), chosen, SILENT)
    with pytest.raises(ShortMemoryError) as refused:
        check_device_budget(prepared(needed - 1, tmp_path, 4), chosen, SILENT)
    for text in (predicted.message, str(refused.value)):
        for word in words:
            assert re.search(word, text), (word, text)


@pytest.mark.slow
def test_a_budget_that_no_number_meets_names_the_vertex_and_the_least_budget(tmp_path: Path) -> None:
    with pytest.raises(ShortMemoryError, match=r"parameters and optimizer state alone take [\d,]+ B"):
        prepared(100, tmp_path)
    one = prepared(10**9, tmp_path, 4)
    profile = load_profile(PROFILE)
    fixed = sum(trials_of(one, profile, profile).fixed().values())
    with pytest.raises(
        ShortMemoryError, match=r"vertex \d+ with in-degree \d+ alone needs .* placement\.device_bytes = "
    ):
        prepared(fixed + 1000, tmp_path)


def test_without_budget_and_profile_no_number_follows(tmp_path: Path) -> None:
    one = experiment(0)
    rates = {"host_to_device_bytes_per_s": 1e9, "device_to_device_bytes_per_s": 1e9, "reuse_bytes_per_s": 1e9}
    one = one.model_copy(update={"partition": type(one.partition).model_validate({"chunks": "auto", "rates": rates})})
    with pytest.raises(ConfigError, match=r"partition\.chunks: got 'auto' without placement\.device_bytes"):
        prepare(one, cache=tmp_path)


def stated_file(folder: Path) -> Path:
    """A statistics file that knows two numbers of chunks."""
    graph = {
        "name": "web", "vertices": 100_000, "edges": 1_500_000, "feature_width": 64, "classes": 8,
        "train_vertices": 25_000,
    }  # fmt: skip
    parts = {"ranks": 2, "replication_factor": 1.35}
    chunks = ({"chunks": 8, "rho": 1.9, "phi": 0.7, "psi": 0.6}, {"chunks": 16, "rho": 2.2, "phi": 0.7, "psi": 0.6})
    path = folder / "stats.toml"
    write_toml(path, {"graph": graph, "partition": [{**parts, "chunks": each} for each in chunks]})
    return path


def test_of_a_statistics_file_the_smallest_number_that_fits_is_taken(tmp_path: Path) -> None:
    source = {"graph.source": f"stats:{stated_file(tmp_path)}", "model.hidden": 16, "hardware.profile": PROFILE}
    profile = load_profile(PROFILE)

    def found(budget: int, chunks: Any = "auto") -> Prepared:
        settings = {**source, "placement.device_bytes": budget, "partition.chunks": chunks}
        one = load_experiment("hongtu", settings, ranks=2)
        return prepare(one, profile=profile, needs=simulated_needs(profile))

    eight, sixteen = (peak(found(10**10, chunks)) for chunks in (8, 16))
    assert eight > sixteen
    assert found(eight).planned.resolved["partition.chunks"] == 8
    assert found(eight - 1).planned.resolved["partition.chunks"] == 16
    with pytest.raises(ShortMemoryError, match=f"device_bytes = {sixteen:,}"):
        found(sixteen - 1)


def test_an_order_of_chunks_that_other_rates_chose_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMGNN_CACHE", str(tmp_path))
    small = {**GRAPH, "partition.chunks": 4}
    made = tmp_path / "stats.toml"
    make_partition("hongtu", ranks=2, set=small, stats=made, alternatives=False)
    source = {**small, "graph.source": f"stats:{made}"}
    for key in ("graph.vertices", "graph.edges"):
        del source[key]
    same = predict(load_experiment("hongtu", source, ranks=2), SILENT, limits=False)
    straight = predict(load_experiment("hongtu", small, ranks=2), SILENT, limits=False)
    assert same.result.program_digest == straight.result.program_digest
    with pytest.raises(ConfigError, match=r"graph\.source: .* whose order of chunks was chosen by"):
        predict(load_experiment("hongtu", {**source, "hardware.profile": "a100-nvlink-4"}, ranks=2), SILENT)


def test_auto_is_refused_where_nothing_trains_chunk_by_chunk() -> None:
    with pytest.raises(ConfigError, match=r"partition\.chunks: got 'auto'.* 'transition' would"):
        load_experiment("vanilla", {"partition.kind": "metis-chunks"}, ranks=2)


def trials(needed: dict[int, int], room: int, most: int, known: tuple[int, ...] | None = None) -> ChunkTrials:
    """Trials whose memory is stated by number, linear in between, and whose parameters take a byte."""

    class Stated(ChunkTrials):
        def held(self, chunks: int) -> Held:
            numbers = sorted(needed)
            found = Held(np.array([int(np.interp(chunks, numbers, [needed[one] for one in numbers]))]))
            self._held[chunks] = found
            return found

        def fixed(self) -> dict[str, int]:
            return {"parameters and optimizer state": 1}

    def nothing(*_: object) -> Any:
        raise AssertionError

    return Stated(experiment(1), nothing, nothing, np.array([float(room)]), most, None, known)


def test_doubling_then_bisection_finds_the_smallest_number() -> None:
    needed = {1: 1000, 100: 10}
    for room in (10, 11, 57, 400, 999, 1000):
        found, all_held = trials(needed, room, 100), trials(needed, room, 100)
        least = found.least()
        assert least == next(n for n in range(1, 101) if all_held.held(n).device[0] <= room), room
        power = trials(needed, room, 100).least_power()
        assert power == next((2**p for p in range(7) if 2**p >= least), None)
    assert "partition.chunks = 100 (peak 10 B)" in workable(trials(needed, 10, 100))
    with pytest.raises(ShortMemoryError, match=r"no power of two of chunks fits; smallest workable: .* = 100"):
        chosen_number(trials(needed, 10, 100))


def test_known_numbers_alone_are_tried() -> None:
    found = trials({1: 1000, 100: 10}, 500, 1000, known=(8, 60, 90))
    assert chosen_number(found) == 60
    assert sorted(found._held) == [8, 60]
