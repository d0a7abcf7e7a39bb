"""The trained model of a run, in the folder ``model`` of its directory.

``last.safetensors`` holds the weights after the last epoch, ``best.safetensors`` those of the epoch with the best
validation accuracy, ``model.json`` the layers that they belong to.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from executor.recording.disk import writing
from simgnn.model.spec import LayerSpec
from simgnn.record.result import Accuracy, versions
from simgnn.record.rundir import RunDirectory
from simgnn.tomlfile import write_atomically

SCHEMA_VERSION = 1
LAST, BEST, DESCRIPTION = "last.safetensors", "best.safetensors", "model.json"


class TrainedModel:
    """Writes the folder ``model``; one rank does, since all hold the same weights.

    A weight of layer l (from 1) is called "layers.K.NAME", where K = l - 1 and NAME is its name in the layer's module,
    as in the ``state_dict`` of a ``torch.nn.ModuleList``. Buffers of a module, such as running means, are among them.
    """

    def __init__(self, root: Path, specs: Sequence[LayerSpec], modules: Sequence[torch.nn.Module]) -> None:
        self.folder = RunDirectory(root).model
        self.specs, self.modules = specs, modules
        self._best: Accuracy | None = None

    def evaluated(self, accuracy: Sequence[Accuracy]) -> None:
        """Save the weights as the best if the last evaluation has a higher validation accuracy than all before it."""
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

    def finish(self, epochs: int, facts: Mapping[str, Any]) -> None:
        """Write the weights after the last epoch, and ``model.json``. ``facts``: more entries for that file."""
        self._save(LAST)
        shapes = {name: list(value.shape) for name, value in self._weights().items()}
        kept = self._best is not None and (self.folder / BEST).is_file()
        best = {"file": BEST, **self._best.model_dump()} if kept and self._best is not None else None
        description = {
            "schema_version": SCHEMA_VERSION,
            "layers": [asdict(spec) for spec in self.specs],
            "weights": shapes,
            **facts,
            "last": {"file": LAST, "epoch": epochs},
            "best": best,
            "versions": versions(),
        }
        with writing(self.folder / DESCRIPTION):
            write_atomically(self.folder / DESCRIPTION, json.dumps(description, indent=1) + "\n")

    def _weights(self) -> dict[str, torch.Tensor]:
        every = torch.nn.ModuleList(self.modules).state_dict(prefix="layers.")
        return {name: value.detach().cpu().clone() for name, value in every.items()}

    def _save(self, name: str) -> None:
        path, draft = self.folder / name, self.folder / f".{name}.tmp"
        with writing(path, draft, own=(SafetensorError,)):
            self.folder.mkdir(exist_ok=True)
            save_file(self._weights(), draft)
            os.replace(draft, path)


def _rank_of(found: Accuracy) -> tuple[float, int]:
    """Sort key by which the best evaluation, of several equal ones the first, is the largest."""
    assert found.validation is not None
    return found.validation, -found.epoch
