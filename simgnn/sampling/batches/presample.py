"""Samples the batches of a whole run ahead of time, onto disk: resumable, in bounded memory, with a digest.

A folder holds ``settings.json`` (all that decides a batch), ``epoch-E/rank-R``, and, once all batches exist,
``presample.json`` with digest and totals. Several processes may fill one folder, each its own ranks.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from simgnn.errors import ConfigError
from simgnn.graph.thread_pool import usable_threads
from simgnn.outputs import check_output_folder
from simgnn.outside import outside_data, read_json
from simgnn.partition.folder import ArtifactFolder, ArtifactWriter, obtain
from simgnn.sampling.batches.epoch_file import WHAT, Part, Tally, write_part
from simgnn.sampling.batches.plan import PLAN, SamplingPlan, WorkerEpoch
from simgnn.sampling.draw.branches import BranchSampler
from simgnn.sampling.draw.sampler import Sampler
from simgnn.tomlfile import write_atomically

SETTINGS, TOTALS = "settings.json", "presample.json"
FORMAT = 1


@dataclass(frozen=True)
class Presampled:
    """Result of :func:`presample`. ``digest`` and ``tally`` are None while parts of other processes are missing."""

    path: Path
    epochs: int
    made: int
    reused: int
    size_bytes: int
    digest: str | None
    tally: Tally | None


def settings_of(plan: SamplingPlan, source: str) -> dict[str, Any]:
    """All settings that determine batches, as plain values; ``source``: digest of the graph and its partition."""
    return {
        "format": FORMAT,
        "source": source,
        "seed": plan.seed,
        "ranks": plan.ranks,
        "batch_size": plan.told_batch_size,
        "fanouts": list(plan.fanouts),
        "training_vertices": plan.workers_digest,
        "last": plan.last,
        **plan.unsupervised_settings,
    }


def part_path(folder: Path, epoch: int, worker: int) -> Path:
    """Return the folder of a worker's batches of an epoch."""
    return folder / f"epoch-{epoch}" / f"rank-{worker}"


def open_part(folder: Path, epoch: int, worker: int) -> Part:
    """Open the batches of a worker in an epoch. Raises :class:`ConfigError` when they are missing or damaged."""
    part = checked_part(folder, epoch, worker)
    part.folder.verify()
    return part


def checked_part(folder: Path, epoch: int, worker: int) -> Part:
    """Open the batches of a worker in an epoch without comparing digests, which :func:`presample` did in this process.
    Raises :class:`ConfigError` when the batches are missing."""
    path = part_path(folder, epoch, worker)
    if not path.is_dir():
        raise ConfigError(
            f"{path} is missing: expected presampled batches; make them with simgnn sample --out {folder}"
        )
    return Part(ArtifactFolder.open(path, WHAT))


def check_free(folder: Path, option: str = "--out") -> None:
    """Raise :class:`ConfigError`, which begins with ``option``, when ``folder`` cannot be made or holds something else
    than presampled batches."""
    check_output_folder(folder, option)
    if folder.is_dir() and any(folder.iterdir()) and _settings_in(folder) is None:
        raise ConfigError(
            f"{option}: got {folder}, which is not empty and holds no presampled batches; expected a new or empty "
            "folder, or one that simgnn sample wrote: name another"
        )


def check_kept(folder: Path, option: str) -> None:
    """Check a folder like :func:`check_free`; a folder that already holds batches may be read-only."""
    if _settings_in(folder) is None:
        check_free(folder, option)


def presample(
    plan: SamplingPlan,
    source: str,
    folder: Path,
    epochs: int,
    *,
    ranks: Sequence[int] | None = None,
    threads: int | None = None,
    force: bool = False,
    option: str = "--out",
    done: Callable[[int, int], None] = lambda batches, of: None,
) -> Presampled:
    """Write the batches of epochs 0..epochs-1 of ``ranks`` (default: all) into ``folder``; existing ones are kept.

    Contents do not depend on ``threads`` (default: every core), processes or interruptions. ``force`` first removes
    batches of other settings, which otherwise raise :class:`ConfigError`. ``option`` begins messages about the folder.
    A complete folder is only read. ``done`` receives how many batches were sampled, and how many there are to sample.
    """
    settings = settings_of(plan, source)
    _claim(folder, settings, force, option)
    samplers: SimpleQueue[Sampler | BranchSampler] = SimpleQueue()
    for _ in range(threads or usable_threads()):
        samplers.put(plan.sampler())
    turns = [
        plan.epoch(worker, epoch)
        for epoch in range(epochs)
        for worker in (range(plan.ranks) if ranks is None else ranks)
    ]
    expected = sum(len(turn) for turn in turns if not part_path(folder, turn.epoch, turn.worker).is_dir())
    through = made = 0

    def one() -> None:
        nonlocal through
        through += 1
        done(through, max(through, expected))  # more than expected, where a damaged part is made again

    for turn in turns:
        key = {**settings, "epoch": turn.epoch, "worker": turn.worker}

        def make(writer: ArtifactWriter, turn: WorkerEpoch = turn, key: Mapping[str, Any] = key) -> Mapping[str, Any]:
            return {"made_from": key, "tally": write_part(turn, writer, samplers, one).as_dict()}

        made += obtain(part_path(folder, turn.epoch, turn.worker), WHAT, make)[1]
    return _seal(plan, settings, folder, epochs, made, len(turns) - made)


def _claim(folder: Path, settings: Mapping[str, Any], force: bool, option: str) -> None:
    there = _settings_in(folder)
    if there == settings:
        return  # before anything is tried: it may be read-only
    check_free(folder, option)
    if there is not None:
        if not force:
            changed = [name for name in settings if there.get(name) != settings[name]]
            told = "; ".join(f"{name}: there {there.get(name)!s:.24}, here {settings[name]!s:.24}" for name in changed)
            raise ConfigError(
                f"{option}: got {folder}, which holds batches made from other settings ({told}); expected the same "
                "experiment: name another folder, or replace them with simgnn sample --force"
            )
        for part in (*folder.glob("epoch-*"), *folder.glob("hot-[0-9]*"), *folder.glob(PLAN)):
            shutil.rmtree(part)
        for name in (TOTALS, SETTINGS):
            (folder / name).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / SETTINGS, settings)


def _settings_in(folder: Path) -> dict[str, Any] | None:
    """Return the settings of the batches in ``folder``; None when it holds none."""
    try:
        there = read_json(folder / SETTINGS, "settings of batches", remedy="sample again", error=ConfigError)
    except ConfigError:
        return None
    return there if isinstance(there, dict) and "training_vertices" in there else None


def _seal(
    plan: SamplingPlan, settings: Mapping[str, Any], folder: Path, epochs: int, made: int, reused: int
) -> Presampled:
    tallies: list[Tally] = []
    digest = hashlib.sha256(json.dumps([settings, epochs], sort_keys=True).encode())
    size = 0
    for epoch in range(epochs):
        for worker in range(plan.ranks):
            path = part_path(folder, epoch, worker)
            if not path.is_dir():
                return Presampled(folder, epochs, made, reused, _size(folder), None, None)
            part = Part(ArtifactFolder.open(path, WHAT))  # verified when it was made or found, above or elsewhere
            if part.folder.details["made_from"] != {**settings, "epoch": epoch, "worker": worker}:
                raise ConfigError(f"{path} was made from other settings: remove it and start again")
            digest.update(json.dumps([epoch, worker, dict(part.folder.files)], sort_keys=True).encode())
            tallies.append(part.tally)
            size += sum(file.stat().st_size for file in path.iterdir())
    told, total = digest.hexdigest(), reduce(add, tallies)
    write_totals(folder / TOTALS, {"epochs": epochs, "digest": told, "bytes": size, **total.as_dict()})
    return Presampled(folder, epochs, made, reused, size, told, total)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("epoch-*/rank-*/*.npy"))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file completely or not at all; a file with the same content stays as it is."""
    text = json.dumps(value, indent=1)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_atomically(path, text)


def write_totals(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file like :func:`write_json`, but do not replace a file that covers more ``epochs``."""
    try:
        with outside_data(path, "total of batches", error=ConfigError):
            there = int(json.loads(path.read_text(encoding="utf-8"))["epochs"])
    except ConfigError:
        there = 0
    if there <= value["epochs"]:
        write_json(path, value)
