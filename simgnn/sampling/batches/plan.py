"""Sampling plan: the training vertices of each worker and the batches of each epoch; and its folder on disk."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from simgnn.errors import ConfigError
from simgnn.graph.csr import CSR, IndexArray
from simgnn.partition.folder import ArtifactFolder, ArtifactWriter, obtain
from simgnn.partition.partition import digest_of
from simgnn.sampling.draw.branches import BranchSampler
from simgnn.sampling.draw.compared import ComparedPairs
from simgnn.sampling.draw.sampler import Batch, Sampler
from simgnn.sampling.draw.seeds import batch_seed, epoch_order, hash64, shuffled

Vertices = NDArray[np.int64]


def local_split(train: Vertices, owner: NDArray[np.int32], ranks: int) -> tuple[Vertices, ...]:
    """Give each rank the training vertices (ascending, int64 [n]) that it owns: sets of unequal size."""
    owners = np.asarray(owner)[train]
    bounds = np.cumsum(np.bincount(owners, minlength=ranks))[:-1]
    return tuple(np.split(train[np.argsort(owners, kind="stable")], bounds))


def even_split(
    train: Vertices, owner: NDArray[np.int32], rank_hosts: NDArray[np.int64], seed: int
) -> tuple[Vertices, ...]:
    """Divide training vertices into sets that differ by one vertex at most, mostly owned by the rank's host (DistDGL:
    Zheng et al., IA3 2020).

    Training vertices, grouped by owning host, are cut evenly into a range for each host. Ranges are assigned to hosts
    so that hosts own as many of their vertices as possible; a host's range is shuffled and cut evenly among its ranks.
    ``owner`` int32 [V]; ``rank_hosts`` int64 [P]. Deviation: the paper gives each range to the host that owns most of
    it, which may give two ranges to one host.
    """
    hosts, places = np.unique(rank_hosts, return_inverse=True)
    host = places[np.asarray(owner)[train]]
    order = np.argsort(host, kind="stable")
    ranges = np.array_split(order, len(hosts))
    owned = np.stack([np.bincount(host[piece], minlength=len(hosts)) for piece in ranges])
    parts: list[Vertices] = [np.empty(0, np.int64)] * len(rank_hosts)
    for piece, place in zip(*linear_sum_assignment(owned, maximize=True), strict=True):
        mixed = shuffled(np.sort(train[ranges[piece]]), hash64("split", seed, int(place)))
        members = np.flatnonzero(places == place)
        for rank, part in zip(members, np.array_split(mixed, len(members)), strict=True):
            parts[int(rank)] = np.sort(part)
    return tuple(parts)


Last = Literal["keep", "drop"]
"""Whether an epoch keeps or drops short last batches, and batches that only some workers have."""


@dataclass(frozen=True)
class SamplingPlan:
    """Everything that determines the batches of a run: graph, seed, fan-outs by hop from the seed vertices, batch size,
    and the training vertices of each worker (ascending, int64 [n_w]). ``owner`` int32 [V] is the rank that holds a row.

    ``batch_size``: seed vertices of a full batch, one number for all workers or one for each. ``last``: with "keep",
    the last batch of a worker may be short or missing; with "drop", all workers have equally many batches, all of them
    full (docs/systems/mini-batches.md). ``negatives``: of each seed in unsupervised training; 0: training with labels.
    ``compared``: the pairs by which unsupervised training is evaluated; None: not at all.
    """

    csr: CSR
    owner: NDArray[np.int32]
    workers: tuple[Vertices, ...]
    fanouts: tuple[int, ...]
    batch_size: int | tuple[int, ...]
    seed: int
    last: Last = "keep"
    negatives: int = 0
    compared: ComparedPairs | None = None

    def sampler(self) -> "Sampler | BranchSampler":
        """Make a sampler of the plan's batches, for one thread at a time."""
        if self.negatives:
            return BranchSampler(self.csr, self.fanouts, self.negatives)
        return Sampler(self.csr, self.fanouts)

    @property
    def ranks(self) -> int:
        """Number of ranks P; worker w is rank w."""
        return len(self.workers)

    def size_of(self, worker: int) -> int:
        """Return the number of seed vertices in a full batch of a worker."""
        return self.batch_size if isinstance(self.batch_size, int) else self.batch_size[worker]

    @property
    def told_batch_size(self) -> int | list[int]:
        """``batch_size`` as JSON files have it: one number, or a list with one for each worker."""
        return self.batch_size if isinstance(self.batch_size, int) else list(self.batch_size)

    def batches(self, worker: int) -> int:
        """Batches of a worker in an epoch; 0 for a worker without training vertices."""
        if self.last == "drop":
            return min(len(mine) // self.size_of(w) for w, mine in enumerate(self.workers))
        return -(-len(self.workers[worker]) // self.size_of(worker))

    @property
    def unsupervised_settings(self) -> dict[str, Any]:
        """What decides unsupervised training, as plain values by name; empty for training with labels."""
        if self.compared is None:
            return {"negatives": self.negatives} if self.negatives else {}
        pairs, validation = (self.compared.vertices, self.compared.partners), self.compared.validation
        digest = digest_of(["compared pairs"], pairs)
        return {"negatives": self.negatives, "compared": digest, "validation": validation}

    def seeds_in(self, worker: int) -> NDArray[np.int64]:
        """Count the seed vertices of each batch of a worker in an epoch, int64 [batches]."""
        size = self.size_of(worker)
        return np.clip(len(self.workers[worker]) - size * np.arange(self.batches(worker)), 0, size)

    @property
    def steps(self) -> int:
        """Training steps of an epoch: every rank takes part in each, with or without a batch."""
        return max(self.batches(worker) for worker in range(self.ranks))

    @property
    def trained(self) -> int:
        """Number of seed vertices in all batches of an epoch."""
        return sum(min(len(mine), self.batches(w) * self.size_of(w)) for w, mine in enumerate(self.workers))

    def epoch(self, worker: int, epoch: int) -> "WorkerEpoch":
        return WorkerEpoch(self, worker, epoch)

    @cached_property
    def workers_digest(self) -> str:
        """SHA-256 over the training vertices of each worker."""
        return digest_of(["training vertices"], self.workers)


@dataclass(frozen=True)
class WorkerEpoch:
    """The batches of one worker in one epoch; each of its training vertices is a seed at most once."""

    plan: SamplingPlan
    worker: int
    epoch: int

    def __len__(self) -> int:
        return self.plan.batches(self.worker)

    @cached_property
    def order(self) -> IndexArray:
        """The worker's training vertices in the order of this epoch."""
        return epoch_order(self.plan.workers[self.worker], self.plan.seed, self.worker, self.epoch)

    def seeds(self, batch: int) -> IndexArray:
        """Seed vertices of a batch; none where the worker has no such batch."""
        size = self.plan.size_of(self.worker)
        return self.order[batch * size : (batch + 1) * size]

    def sample(self, batch: int, sampler: Sampler | BranchSampler) -> Batch:
        """Draw a batch, with :meth:`SamplingPlan.sampler`."""
        return sampler.sample(self.seeds(batch), batch_seed(self.plan.seed, self.worker, self.epoch, batch))


PLAN_WHAT = "sampling plan"
PLAN = "plan"
"""Name of the folder of the plan, beside its batches."""


def save_plan(plan: SamplingPlan, source: str, path: Path) -> Path:
    """Write the plan into the folder ``path``, unless it is there already; ``source``: digest of its graph and
    partition. Raises :class:`ConfigError` where another plan is there."""
    details = {
        "source": source,
        "fanouts": list(plan.fanouts),
        "batch_size": plan.told_batch_size,
        "seed": plan.seed,
        "columns": plan.csr.columns,
        "last": plan.last,
        **plan.unsupervised_settings,
    }

    def make(writer: ArtifactWriter) -> dict[str, Any]:
        arrays = {
            "indptr": plan.csr.indptr,
            "indices": plan.csr.indices,
            "owner": plan.owner,
            "workers": np.concatenate(plan.workers),
            "training": np.array([len(mine) for mine in plan.workers], np.int64),
        }
        if plan.compared is not None:
            arrays |= {f"compared_{name}": getattr(plan.compared, name) for name in ("vertices", "partners")}
        for name, array in arrays.items():
            writer.array(name, np.asarray(array))
        return details

    found, _ = obtain(path, PLAN_WHAT, make)
    changed = [key for key, value in details.items() if found.details.get(key) != value]
    if changed:
        told = "; ".join(f"{key}: there {found.details.get(key)}, here {details[key]}" for key in changed)
        raise ConfigError(
            f"batching.storage: {path} holds the sampling plan of other settings ({told}); expected that of this "
            "experiment: remove it, or name another folder"
        )
    return found.path


def open_plan(path: Path) -> SamplingPlan:
    """Open the plan in ``path``, memory-mapped. Raises :class:`~simgnn.partition.folder.CorruptArtifactError`."""
    folder = ArtifactFolder.open(path, PLAN_WHAT).verify()
    details = folder.details
    bounds, size = np.cumsum(folder.array("training"))[:-1], details["batch_size"]
    compared = None
    if "compared" in details:
        pairs = folder.array("compared_vertices"), folder.array("compared_partners")
        compared = ComparedPairs(*pairs, int(details["validation"]))
    return SamplingPlan(
        csr=CSR(folder.array("indptr"), folder.array("indices"), int(details["columns"])),
        owner=folder.array("owner"),
        workers=tuple(np.split(folder.array("workers"), bounds)),
        fanouts=tuple(details["fanouts"]),
        batch_size=tuple(size) if isinstance(size, list) else int(size),
        seed=int(details["seed"]),
        last=details["last"],
        negatives=int(details.get("negatives", 0)),
        compared=compared,
    )
