"""Checkpoints: one file a rank, valid once all are there; a resumed run continues bit for bit."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from executor.handlers.context import RankContext
from simgnn.errors import BackendError

LATEST = "latest.json"


def save_checkpoint(
    folder: Path, epoch: int, digest: str, context: RankContext, history: Mapping[str, Any], barrier: Callable[[], None]
) -> None:
    """Write this rank's state after ``epoch`` epochs. Rank 0 names the checkpoint when every rank has written its own.

    Holds parameters, optimizer, the modules' own buffers, torch's generators, carried buffers (policies' states among
    them), decisions, counted traffic, and ``history``: what the run remembers of the epochs before.
    """
    place = folder / f"epoch-{epoch}"
    place.mkdir(parents=True, exist_ok=True)
    assert context.optimizer is not None
    assert context.network is not None
    state = {
        "optimizer": context.optimizer.state_dict(),
        "modules": context.network.state(),
        "generators": _generators(context.device),
        "buffers": context.store.state(),
        "decisions": context.decisions,
        "pairs": [[*key, *value] for key, value in context.pairs.items()],
        "history": dict(history),
    }
    path = place / f"rank-{context.rank}.pt"
    draft = path.with_suffix(".tmp")
    torch.save(state, draft)
    os.replace(draft, path)
    barrier()
    if context.rank == 0:
        note = {"epoch": epoch, "ranks": context.program.ranks, "program_digest": digest}
        draft = folder / f".{LATEST}.tmp"
        draft.write_text(json.dumps(note))
        os.replace(draft, folder / LATEST)
        for old in folder.glob("epoch-*"):
            if old.name != place.name:
                shutil.rmtree(old, ignore_errors=True)
    barrier()


def _generators(device: torch.device) -> list[torch.Tensor]:
    """States of the generators that layers such as Dropout draw from: the CPU's, and the device's."""
    drawn = [torch.get_rng_state()]
    return [*drawn, torch.cuda.get_rng_state(device)] if device.type == "cuda" else drawn


def find_checkpoint(folder: Path, ranks: int, digest: str) -> int:
    """Epochs that the last complete checkpoint has seen. Raises :class:`BackendError` where there is none that fits."""
    path = folder / LATEST
    if not path.is_file():
        raise BackendError(
            f"--resume: there is no complete checkpoint in {folder}; start without --resume, "
            "and set train.checkpoint_every to write some"
        )
    note = json.loads(path.read_text())
    if note["ranks"] != ranks or note["program_digest"] != digest:
        raise BackendError(
            f"--resume: the checkpoint in {folder} belongs to another program ({note['ranks']} ranks, digest "
            f"{str(note['program_digest'])[:12]}; this one: {ranks} ranks, {digest[:12]}); start without --resume"
        )
    return int(note["epoch"])


def load_checkpoint(folder: Path, epoch: int, context: RankContext) -> dict[str, Any]:
    """Put back this rank's state; returns the history of losses."""
    path = folder / f"epoch-{epoch}" / f"rank-{context.rank}.pt"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise BackendError(f"--resume: {path} cannot be read ({error}); start without --resume") from error
    assert context.optimizer is not None
    assert context.network is not None
    context.optimizer.load_state_dict(state["optimizer"])
    context.network.load_state(state["modules"])
    torch.set_rng_state(state["generators"][0])
    if context.device.type == "cuda":
        torch.cuda.set_rng_state(state["generators"][1], context.device)
    context.store.load_state(state["buffers"])
    context.decisions.update(state["decisions"])
    for op_id, target, messages, nbytes in state["pairs"]:
        context.pairs[op_id, target] = [messages, nbytes]
    history: dict[str, Any] = state["history"]
    return history
