"""Fills in the rates by which a partitioner chooses the order of chunks, and obtains the chunks of a partition."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.transfer_rates import TransferRates, transfer_rates
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


def check_order_rates(experiment: Experiment, made_by: Mapping[str, Any] | None, profile: Profile | None) -> None:
    """Raise :class:`ConfigError` where the order of chunks in a statistics file was chosen by other rates than those of
    the hardware ``profile``, which chooses another one: ``made_by`` says how the file's partition was made. Rates that
    the experiment states are the user's."""
    policy = experiment.partition
    if experiment.communication.moves != "chunks" or not policy.chunked or made_by is None or not made_by.get("rates"):
        return
    if cast(ChunkedPartitioner, policy).rates is not None:
        return
    made_with = TransferRates.model_validate(made_by["rates"])
    here = None
    if profile is not None:
        here = transfer_rates(Machine.place(profile, experiment.rank_hosts(), experiment.hardware.threads))
    if here != made_with:
        got = "no hardware profile" if here is None else _rates(here)
        raise ConfigError(
            f"graph.source: got '{experiment.graph.source}', whose order of chunks was chosen by {_rates(made_with)}, "
            f"expected one for the hardware here ({got}): another order may be cheaper; divide the graph again with "
            "this profile (simgnn partition --hardware PROFILE --stats FILE), or state partition.rates to keep it"
        )


def _rates(rates: TransferRates) -> str:
    return ", ".join(f"{name} = {rate:.4g}" for name, rate in rates.model_dump(exclude_none=True).items())


def obtain_chunks(
    experiment: Experiment, graph: "Graph", parts: "PartitionArtifact", cache: Path | None, progress: Progress
) -> "ChunkArtifact":
    """Return the chunks of ``parts``, the experiment's partition of ``graph``, from the cache or newly made. Rates are
    filled in already (:func:`with_transfer_rates`)."""
    # Numba: loaded when a graph is prepared
    from simgnn.partition.chunks.store import chunk_artifact

    policy = cast(ChunkedPartitioner, experiment.partition)
    return chunk_artifact(graph, parts, policy.settings(), cache, progress)
