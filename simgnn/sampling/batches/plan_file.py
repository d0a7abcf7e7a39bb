"""A sampling plan on disk, for processes that draw batches while they train: its graph is memory-mapped by all."""

from pathlib import Path
from typing import Any

import numpy as np

from simgnn.errors import ConfigError
from simgnn.graph.csr import CSR
from simgnn.partition.folder import ArtifactFolder, ArtifactWriter, obtain
from simgnn.sampling.batches.plan import SamplingPlan

WHAT = "sampling plan"
PLAN = "plan"
"""Its folder, beside the batches that were drawn by it."""


def save_plan(plan: SamplingPlan, source: str, path: Path) -> Path:
    """Write the plan into the folder ``path``, unless it lies there already; ``source``: digest of its graph and
    partition. Returns the folder. Raises :class:`ConfigError` where another plan lies there."""
    details = {
        "source": source,
        "fanouts": list(plan.fanouts),
        "batch_size": plan.told_batch_size,
        "seed": plan.seed,
        "columns": plan.csr.columns,
        "last": plan.last,
    }

    def make(writer: ArtifactWriter) -> dict[str, Any]:
        arrays = {
            "indptr": plan.csr.indptr,
            "indices": plan.csr.indices,
            "owner": plan.owner,
            "workers": np.concatenate(plan.workers),
            "training": np.array([len(mine) for mine in plan.workers], np.int64),
        }
        for name, array in arrays.items():
            writer.array(name, np.asarray(array))
        return details

    found, _ = obtain(path, WHAT, make)
    changed = [key for key, value in details.items() if found.details.get(key) != value]
    if changed:
        told = "; ".join(f"{key}: there {found.details.get(key)}, here {details[key]}" for key in changed)
        raise ConfigError(
            f"batching.storage: {path} holds the sampling plan of other settings ({told}); expected that of this "
            "experiment: remove it, or name another folder"
        )
    return found.path


def open_plan(path: Path) -> SamplingPlan:
    """The plan in ``path``, memory-mapped. Raises :class:`~simgnn.partition.folder.CorruptArtifactError` when it is not
    whole."""
    folder = ArtifactFolder.open(path, WHAT).verify()
    details = folder.details
    bounds, size = np.cumsum(folder.array("training"))[:-1], details["batch_size"]
    return SamplingPlan(
        csr=CSR(folder.array("indptr"), folder.array("indices"), int(details["columns"])),
        owner=folder.array("owner"),
        workers=tuple(np.split(folder.array("workers"), bounds)),
        fanouts=tuple(details["fanouts"]),
        batch_size=tuple(size) if isinstance(size, list) else int(size),
        seed=int(details["seed"]),
        last=details["last"],
    )
