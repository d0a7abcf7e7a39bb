"""Fills in the rates by which a partitioner chooses the order of chunks, and obtains the chunks of a partition."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.transfer_rates import transfer_rates
from simgnn.hardware.profile.profile import Profile
from simgnn.partition.chunks.partitioner import ChunkedPartitioner
from simgnn.progress import Progress

if TYPE_CHECKING:
    from simgnn.graph.graph import Graph
    from simgnn.partition.chunks.store import ChunkArtifact
    from simgnn.partition.store import PartitionArtifact


def with_transfer_rates(experiment: Experiment, profile: Profile | None) -> Experiment:
    """Return the experiment with a partitioner that knows the rates at which rows move, if its order of chunks depends
    on them: those of the hardware ``profile``, unless the experiment states them.

    Raises :class:`ConfigError` without a profile, :class:`HardwareError` for one that lacks a rate."""
    if not experiment.partition.chunked:
        return experiment
    policy = cast(ChunkedPartitioner, experiment.partition)
    if policy.rates is not None or not policy.settings(policy.stated_chunks or 1).chooses:
        return experiment
    if profile is None:
        raise ConfigError(
            f"partition.kind: got '{policy.label}' without a hardware profile, expected one: the order of chunks "
            "follows from how fast rows move; name it with --hardware (hardware.profile), measure this machine with "
            "`simgnn calibrate`, state partition.rates, or keep the order with partition.candidates = ['initial']"
        )
    machine = Machine.place(profile, experiment.rank_hosts(), experiment.hardware.threads)
    return experiment.model_copy(update={"partition": policy.timed(transfer_rates(machine))})


def obtain_chunks(
    experiment: Experiment, graph: "Graph", parts: "PartitionArtifact", cache: Path | None, progress: Progress
) -> "ChunkArtifact":
    """Return the chunks of ``parts``, the experiment's partition of ``graph``, from the cache or newly made. Rates are
    filled in already (:func:`with_transfer_rates`)."""
    # Numba: loaded when a graph is prepared
    from simgnn.partition.chunks.store import chunk_artifact

    policy = cast(ChunkedPartitioner, experiment.partition)
    return chunk_artifact(graph, parts, policy.settings(), cache, progress)
