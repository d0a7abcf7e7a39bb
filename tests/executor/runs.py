"""Small prepared runs for tests: graphs in memory, real partitions and shards, real plans."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from scipy import sparse

from executor.rank.interpreter import SPAN
from executor.rank.session import Session
from executor.state.plan import RunPlan
from executor.world.environment import RENDEZVOUS
from simgnn.emit.batches.names import HOT, INPUTS
from simgnn.emit.batches.staging import StageInputs
from simgnn.errors import BackendError
from simgnn.experiment.load import load_experiment
from simgnn.graph.csr import CSR
from simgnn.graph.graph import Graph
from simgnn.partition.local.shards import shard_artifact
from simgnn.partition.store import partition_artifact
from simgnn.planner.chunks import obtain_chunks
from simgnn.planner.directory import write_run_directory
from simgnn.planner.epoch_work import with_weights
from simgnn.planner.make_plan import plan
from simgnn.planner.prepare import Prepared, full_graph_stats
from simgnn.policy import Schedule
from simgnn.progress import SILENT
from tests.executor.schedules import SeededRandom


def small_graph(
    vertices: int = 90, seed: int = 0, *, sparse_features: bool = False, multilabel: bool = False, width: int = 12
) -> Graph:
    """A symmetric random graph with two isolated vertices, features, labels and masks."""
    draw = np.random.default_rng(seed)
    pairs = draw.integers(0, vertices - 2, size=(4 * vertices, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    both = np.unique(np.concatenate((pairs, pairs[:, ::-1])), axis=0)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(both[:, 0], minlength=vertices)))).astype(np.int64)
    dense = draw.standard_normal((vertices, width)).astype(np.float32)
    if sparse_features:
        dense *= draw.random((vertices, width)) < 0.3
    kind = draw.integers(0, 3, size=vertices)
    classes = 5
    labels: Any = draw.random((vertices, classes)) < 0.4 if multilabel else draw.integers(0, classes, size=vertices)
    return Graph(
        name="small",
        csr=CSR(indptr, both[:, 1].astype(np.int32), vertices).check(),
        features=sparse.csr_array(dense) if sparse_features else dense,
        labels=labels,
        train_mask=kind == 0,
        validation_mask=kind == 1,
        test_mask=kind == 2,
        classes=classes,
        multilabel=multilabel,
    )


def prepared_run(
    graph: Graph, folder: Path, ranks: int, *settings: str, hosts: int = 1, schedule: Schedule | None = None,
    system: str = "vanilla",
) -> Path:  # fmt: skip
    """A run directory for ``graph`` with ``ranks`` ranks on ``hosts``; float64 and 5 epochs unless set otherwise.

    ``system``: a shipped one for full graphs. ``schedule``: the program is planned with this one, in place of the one
    that the settings name.
    """
    random = ["partition.kind=random"] if system == "vanilla" else []
    experiment = load_experiment(
        system, ["train.epochs=5", "train.dtype=float64", "model.hidden=8", *random, *settings]
    ).with_cluster(hosts, ranks // hosts)
    places = np.array(experiment.rank_hosts(), dtype=np.int64)
    cache = folder.parent / "cache"
    experiment = with_weights(experiment, graph.facts(), lambda text: None)
    artifact = partition_artifact(graph, experiment.partition, places, experiment.seed, cache)
    shards = shard_artifact(graph, artifact, experiment.train.dtype, cache)
    scheduled = experiment if schedule is None else experiment.model_copy(update={"schedule": schedule})
    stats, chunks = full_graph_stats(experiment, artifact), None
    if experiment.communication.moves == "chunks":
        chunks = obtain_chunks(experiment, graph, artifact, cache, SILENT)
        stats = replace(stats, tables={**stats.tables, **chunks.tables})
    prepared = Prepared(experiment, stats, plan(scheduled, stats), graph, artifact, chunks=chunks)
    return write_run_directory(prepared, folder, None, shards=shards.path)


CACHES = (
    "sent/", "kept/", "own/", "sums/", "published/", "shift/", "threshold", "cache/", "versions/", "embeddings/",
    "push/", "bits_out/", "bits_in/",
)  # fmt: skip
"""How the names of buffers begin that policies keep rows in, or gradients of rows."""


def _caches(session: Session) -> dict[str, Any]:
    """What both ends of cached transfers hold, and the controller's state, by buffer."""
    state = session.context.store.state()
    return {name: value for name, value in state.items() if name.startswith(CACHES)}


def _staging_bytes(session: Session) -> int:
    """Bytes of all memory that input rows of mini-batches lie in, each piece once: of buffers and of their policy."""
    context = session.context
    if StageInputs not in context.resources:  # of a full graph
        return 0
    staged = context.resources[StageInputs].__self__
    held = [*staged._buffers, *staged.caches]
    for name in {INPUTS, HOT} & context.program.buffers.keys():
        first = context.store.slot(name)
        values = context.store.values[first : first + context.program.buffers[name].depth]
        held += [value for value in values if isinstance(value, torch.Tensor)]
    storages = [value.untyped_storage() for value in held]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def train_in_process(
    rank: int,
    ranks: int,
    folders: Sequence[str],
    pick_seed: int | None = None,
    resume: bool = False,
    stop_at: int | None = None,
    killed: bool = False,
    span: int = SPAN,
) -> list[dict[str, Any]]:
    """Carry out runs one after another as one of their ranks: losses, accuracies, gradients, parameters, driver.

    ``stop_at``: the run breaks off in the update of that epoch; ``killed``: without a chance to write anything more.
    ``span``: turns after which what was noted is written.
    """
    results = []
    for position, folder in enumerate(folders):
        here = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
        os.environ.update({key: str(value) for key, value in here.items()})
        os.environ[RENDEZVOUS] = str(Path(folder) / f"rendezvous-{position}-{resume}-{pick_seed}")
        schedule = None if pick_seed is None else SeededRandom(pick_seed + rank)
        session = Session(RunPlan.open(Path(folder)), "cpu", resume, schedule, span)
        optimizer = session.context.optimizer
        assert optimizer is not None
        first: list[torch.Tensor] = []
        step = optimizer.step

        def note(first: list[torch.Tensor] = first, optimizer: Any = optimizer, step: Any = step) -> None:
            if len(first) == stop_at:
                raise BackendError("broken off")
            first.append(optimizer.gradient.clone())
            step()

        optimizer.step = note  # type: ignore[method-assign]
        initial = optimizer.flat.detach().clone()
        try:
            session.run()
        except BackendError as error:
            assert stop_at is not None
            if not killed:
                session.abandon(error)
        results.append(
            {
                "losses": [session.history.losses[epoch] for epoch in sorted(session.history.losses)],
                "evaluations": dict(session.history.evaluations),
                "initial": initial,
                "gradients": first,
                "parameters": optimizer.flat.detach().clone(),
                "buffers": [] if session.context.network is None else session.context.network.state(),
                "caches": _caches(session),
                "written": {name: rows.clone() for name, rows in session.context.written().items()},
                "serial": session.interpreter.serial,
                "alive": sum(value is not None for value in session.context.store.values),
                "staging_bytes": _staging_bytes(session),
            }
        )
        dist.destroy_process_group()
    return results
