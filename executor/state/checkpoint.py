"""Checkpoints: one file a rank, valid once all are there; a resumed run continues bit for bit."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from executor.recording.disk import LATEST, writing
from executor.state.context import Pairs, RankContext
from simgnn.errors import ConfigError
from simgnn.memory import check_memory
from simgnn.outside import outside_data
from simgnn.seal import file_digest

DIGEST = ".sha256"
"""Suffix of the file that holds the SHA-256 of a rank's file of a checkpoint."""


def save_checkpoint(
    folder: Path, epoch: int, digest: str, context: RankContext, progress: Mapping[str, Any],
    barrier: Callable[[], None],
) -> None:  # fmt: skip
    """Write this rank's state after ``epoch`` epochs. Rank 0 names the checkpoint when every rank has written its own.
    It holds parameters, optimizer, the modules' own buffers, torch's generators, remembered buffers (among them states
    and caches of policies), shared memory that this rank writes, decisions, traffic, and ``progress``: losses and
    learning rates so far."""
    place = folder / f"epoch-{epoch}"
    assert context.optimizer is not None
    assert context.network is not None
    generators = [torch.get_rng_state()]  # a user's layers may draw from them
    if context.device.type == "cuda":
        generators.append(torch.cuda.get_rng_state(context.device))
    state = {
        "optimizer": context.optimizer.state_dict(),
        "modules": context.network.state(),
        "generators": generators,
        "buffers": context.store.state(),
        "written": {name: rows.clone() for name, rows in context.written().items()},
        "decisions": context.decisions,
        "pairs": _listed(context.pairs),
        "apart": {name: _listed(apart.pairs) for name, apart in context.apart.items()},
        "progress": dict(progress),
    }
    path = place / f"rank-{context.rank}.pt"
    path.with_suffix(DIGEST).unlink(missing_ok=True)  # if this is interrupted, that of an earlier file must not stay
    _write(path, lambda draft: torch.save(state, draft))
    _write(path.with_suffix(DIGEST), lambda draft: draft.write_text(file_digest(path)))
    barrier()
    if context.rank == 0:
        note = {"epoch": epoch, "ranks": context.program.ranks, "program_digest": digest}
        _write(folder / LATEST, lambda draft: draft.write_text(json.dumps(note)))
        for old in folder.glob("epoch-*"):
            if old.name != place.name:
                shutil.rmtree(old, ignore_errors=True)
    barrier()


def _listed(pairs: Pairs) -> list[list[int]]:
    return [[*key, *value] for key, value in pairs.items()]


def _unlisted(rows: list[list[int]]) -> Pairs:
    return {(op_id, target): [messages, nbytes] for op_id, target, messages, nbytes in rows}


def _write(path: Path, put: Callable[[Path], Any]) -> None:
    """Write a file completely or not at all."""
    draft = path.with_name(f".{path.name}.tmp")
    with writing(path, draft, own=(RuntimeError,)):  # torch's for a full disk
        path.parent.mkdir(parents=True, exist_ok=True)
        put(draft)
        os.replace(draft, path)


def find_checkpoint(folder: Path, ranks: int, digest: str, continues: Sequence[str] = ()) -> int:
    """Return the epochs trained at the last complete checkpoint, which a program with this ``digest``, or one that it
    ``continues``, has written. Raises :class:`ConfigError` if none fits."""
    path = folder / LATEST
    if not path.is_file():
        raise ConfigError(
            f"--resume: there is no complete checkpoint in {folder}; start without --resume, "
            "and set train.checkpoint_every to write some"
        )
    with outside_data(path, "note of a checkpoint", remedy="start without --resume", error=ConfigError):
        note = json.loads(path.read_text(encoding="utf-8"))
        epoch, had, written = int(note["epoch"]), int(note["ranks"]), str(note["program_digest"])
    if had != ranks or written not in (digest, *continues):
        raise ConfigError(
            f"--resume: the checkpoint in {folder} belongs to another program ({had} ranks, digest {written[:12]}; "
            f"this one: {ranks} ranks, {digest[:12]}); start without --resume"
        )
    return epoch


def load_checkpoint(folder: Path, epoch: int, context: RankContext) -> dict[str, Any]:
    """Restore this rank's state; returns the ``progress`` that was saved. Raises :class:`ConfigError` for a file that
    is damaged, changed or of another program."""
    path, remedy = folder / f"epoch-{epoch}" / f"rank-{context.rank}.pt", "start without --resume"
    with outside_data(path, "checkpoint", remedy=remedy, error=ConfigError):
        check_memory(path.stat().st_size, f"--resume: {path}: reading it", remedy, ConfigError)
        seal = path.with_suffix(DIGEST)  # earlier versions wrote none
        if seal.is_file() and seal.read_text(encoding="utf-8") != file_digest(path):
            raise ConfigError(f"--resume: {path} changed after it was written: {remedy}")
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except UnpicklingError as error:  # torch advises to load it unsafely
            raise ConfigError(f"--resume: {path}: not a readable checkpoint: {remedy}") from error
        assert context.optimizer is not None
        assert context.network is not None
        context.optimizer.load_state_dict(state["optimizer"])
        context.network.load_state(state["modules"])
        torch.set_rng_state(state["generators"][0])
        if context.device.type == "cuda":
            torch.cuda.set_rng_state(state["generators"][1], context.device)
        context.store.load_state(state["buffers"])
        for name, rows in context.written().items():
            rows.copy_(state["written"][name])
        context.decisions.update(state["decisions"])
        context.pairs.update(_unlisted(state["pairs"]))
        for name, apart in context.apart.items():
            apart.pairs.update(_unlisted(state["apart"].get(name, [])))
        progress: dict[str, Any] = state["progress"]
    return progress
