"""Small prepared mini-batch runs for tests: graphs in memory, everything else as ``simgnn run`` makes it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from simgnn.experiment.load import load_experiment
from simgnn.graph.graph import Graph
from simgnn.partition.local.shards import shard_artifact
from simgnn.partition.store import partition_artifact
from simgnn.planner.batch_sizes import prepare_batches
from simgnn.planner.directory import write_run_directory
from simgnn.planner.epoch_work import with_weights
from simgnn.planner.make_plan import plan
from simgnn.planner.prepare import Prepared
from simgnn.progress import SILENT
from simgnn.sampling.batches.plan import SamplingPlan, open_plan

EPOCHS = 3


def prepared_batches(graph: Graph, folder: Path, hosts: int, each: int, system: str, *settings: str) -> Path:
    """A run directory for ``graph`` with ``each`` ranks on each of ``hosts``; two layers, float64, three epochs and
    batches of five seeds, unless set otherwise."""
    prepared, shards = batches_prepared(graph, folder.parent / "cache", hosts, each, system, *settings)
    return write_run_directory(prepared, folder, None, shards=shards)


def batches_prepared(
    graph: Graph, cache: Path, hosts: int, each: int, system: str, *settings: str
) -> tuple[Prepared, Path]:
    """What such a run directory is written from, and the folder of its shards."""
    common = [f"train.epochs={EPOCHS}", "train.dtype=float64", "model.hidden=8", "partition.kind=random"]
    common += ["model.layers=2", "batching.fanouts=[4,3]", "batching.batch_size=5"]
    experiment = load_experiment(system, [*common, *settings]).with_cluster(hosts, each)
    places = np.array(experiment.rank_hosts(), dtype=np.int64)
    experiment = with_weights(experiment, graph.facts(), lambda text: None)
    artifact = partition_artifact(graph, experiment.partition, places, experiment.seed, cache)
    shards = shard_artifact(graph, artifact, experiment.train.dtype, cache)
    batches = prepare_batches(experiment, graph, artifact, cache, SILENT)
    resolved = experiment.model_copy(update={"placement": batches.placement})
    stats = replace(artifact.stats, tables={**artifact.stats.tables, **batches.sizes.locality})
    planned = plan(resolved, stats, batches.sizes)
    return Prepared(experiment, stats, planned, graph, artifact, batches), shards.path


def sampling_of(folder: Path) -> SamplingPlan:
    """Who draws what in a prepared run."""
    return open_plan(Path(json.loads((folder / "plan" / "plan.json").read_text())["batches"]["plan"]))
