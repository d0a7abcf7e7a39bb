"""What a run did to graph and features before layer 1, which its trained model needs beside the weights."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from executor.recording.trained_model import Tensors, no_tensors
from executor.state.plan import RunPlan
from executor.world.member import World
from simgnn.partition.local.shards import ShardArtifact
from simgnn.record.rundir import RunDirectory
from simgnn.record.trained import FEATURE_MEAN, VERTEX_VECTORS
from simgnn.tomlfile import load_toml


def model_facts(plan: RunPlan) -> dict[str, Any]:
    """Return the entries of ``model.json`` that the plan decides; :class:`simgnn.record.trained.ModelFile` describes
    them."""
    stated = load_toml(RunDirectory(plan.root).experiment)["graph"]
    shards = ShardArtifact.open(plan.shards)
    width = int(shards.folder.details["feature_width"])
    held = "exact" if shards.folder.details["sparse"] else "single"
    inputs = {
        "feature_width": width,
        "symmetrised": bool(stated.get("symmetrise", True)),
        "stand_in": stated.get("stand_in_features") is not None,
        "centred": None if shards.feature_mean is None else held,
        "vector_width": plan.layers[0].width_in - width,
        "sampled": plan.batches is not None,
    }
    return {
        "classes": plan.classes,
        "multilabel": plan.multilabel,
        "class_names": list(plan.class_names),
        "embeds": plan.metric == "area_under_curve",
        "dtype": plan.train["dtype"],
        "inputs": inputs,
    }


def tensors_beside(plan: RunPlan, world: World, written: Mapping[str, torch.Tensor]) -> Callable[[], Tensors]:
    """Return a function of the tensors that belong to the model beside its layers: the mean that was subtracted from
    the features, and the vectors learned of all vertices. All ranks call it together; rank 0 gets the tensors.
    ``written``: rows in shared memory that this rank changes while it trains."""
    mean = ShardArtifact.open(plan.shards).feature_mean
    constant = {} if mean is None else {FEATURE_MEAN: torch.from_numpy(np.array(mean))}
    if plan.batches is None:
        return no_tensors if mean is None else lambda: constant
    # mini-batches: half a hundred modules that a run on the full graph does not need
    from executor.minibatch.embeddings import gather_embeddings, learned_width

    if not learned_width(plan.program):
        return lambda: constant

    def gathered() -> Tensors:
        vectors = gather_embeddings(plan, world, written)
        return constant if vectors is None else {**constant, VERTEX_VECTORS: vectors}

    return gathered
