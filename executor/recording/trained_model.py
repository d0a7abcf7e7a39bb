"""Writes the trained model of a run into the folder ``model`` of its directory (:mod:`simgnn.record.trained`).

``last.safetensors`` holds the weights after the last epoch, ``best.safetensors`` those of the epoch with the best
validation accuracy, ``model.json`` the layers that they belong to and what training did to graph and features.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from executor.layers.user import UserLayer
from executor.recording.disk import writing
from simgnn.model.spec import LayerSpec
from simgnn.record.result import Accuracy, versions
from simgnn.record.rundir import RunDirectory
from simgnn.record.trained import BEST, DESCRIPTION, LAST, OWN_LAYERS, SCHEMA_VERSION
from simgnn.tomlfile import write_atomically

Tensors = Mapping[str, torch.Tensor]


def no_tensors() -> Tensors:
    """Return no tensors: the model has nothing but its layers."""
    return {}


class TrainedModel:
    """Writes the folder ``model``; one rank does (``writes``), since all hold the same weights.

    A weight of layer l (from 1) is called "layers.K.NAME", where K = l - 1 and NAME is its name in the layer's module,
    as in the ``state_dict`` of a ``torch.nn.ModuleList``. Buffers of a module, such as running means, are among them.
    ``beside``: returns tensors to save beside them; all ranks call it together, only the writer's result counts.
    """

    def __init__(
        self,
        root: Path,
        specs: Sequence[LayerSpec],
        modules: Sequence[torch.nn.Module],
        beside: Callable[[], Tensors] = no_tensors,
        writes: bool = True,
    ) -> None:
        self.folder = RunDirectory(root).model
        self.specs, self.modules = specs, modules
        self._beside, self._writes = beside, writes
        self._best: Accuracy | None = None
        self._latest: Accuracy | None = None
        # read before training, as it was imported: a user may edit the file meanwhile
        self._own = own_source(modules)

    def evaluated(self, accuracy: Sequence[Accuracy]) -> None:
        """Save the weights as the best if the last evaluation has a higher validation accuracy than all before it."""
        self._latest = accuracy[-1] if accuracy else None  # nothing to evaluate on
        known = [found for found in accuracy if found.validation is not None]
        if not known:
            return
        best = max(known, key=_rank_of)
        if best is accuracy[-1]:
            self._save(BEST)
        self._best = best

    def resumed(self, accuracy: Sequence[Accuracy]) -> None:
        """Go on after the evaluations of earlier starts of the run, whose best weights are in the folder."""
        known = [found for found in accuracy if found.validation is not None]
        self._best = max(known, key=_rank_of, default=None)
        self._latest = accuracy[-1] if accuracy else None

    def finish(self, epochs: int, facts: Mapping[str, Any]) -> None:
        """Write the weights after the last epoch, and ``model.json``. ``facts``: more entries for that file."""
        saved = self._save(LAST)
        if not self._writes:
            return
        shapes = {name: list(value.shape) for name, value in saved.items()}
        kept = self._best is not None and (self.folder / BEST).is_file()
        best = {"file": BEST, **self._best.model_dump()} if kept and self._best is not None else None
        evaluated = self._latest is not None and self._latest.epoch == epochs
        last = self._latest.model_dump() if evaluated and self._latest is not None else {"epoch": epochs}
        if self._own is not None:
            with writing(self.folder / OWN_LAYERS):
                write_atomically(self.folder / OWN_LAYERS, self._own)
        description = {
            "schema_version": SCHEMA_VERSION,
            "layers": [asdict(spec) for spec in self.specs],
            "weights": shapes,
            **facts,
            "own_layers": None if self._own is None else OWN_LAYERS,
            "last": {"file": LAST, **last},
            "best": best,
            "versions": versions(),
        }
        with writing(self.folder / DESCRIPTION):
            write_atomically(self.folder / DESCRIPTION, json.dumps(description, indent=1) + "\n")

    def _save(self, name: str) -> Tensors:
        beside = self._beside()
        if not self._writes:
            return {}
        every = {**torch.nn.ModuleList(self.modules).state_dict(prefix="layers."), **beside}
        weights = {name: value.detach().cpu().clone() for name, value in every.items()}
        path, draft = self.folder / name, self.folder / f".{name}.tmp"
        with writing(path, draft, own=(SafetensorError,)):
            self.folder.mkdir(exist_ok=True)
            save_file(weights, draft)
            os.replace(draft, path)
        return weights


def own_source(modules: Sequence[torch.nn.Module]) -> str | None:
    """Return the text of the file with the user's own layers; None for built-in layers."""
    own = next((layer for layer in modules if isinstance(layer, UserLayer)), None)
    if own is None:
        return None
    file = sys.modules[type(own.module).__module__].__file__
    assert file is not None, "the class was imported from a file"
    return Path(file).read_text(encoding="utf-8")


def _rank_of(found: Accuracy) -> tuple[float, int]:
    """Sort key by which the best evaluation, of several equal ones the first, is the largest."""
    assert found.validation is not None
    return found.validation, -found.epoch
