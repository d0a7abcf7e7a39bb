"""Takes a partition from a ``stats:`` file: the one of the experiment's ranks and partitioner, if it fits."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from simgnn.errors import ConfigError
from simgnn.experiment.problems import shown
from simgnn.experiment.schema import Experiment
from simgnn.hardware.profile.profile import Profile
from simgnn.outside import expanded
from simgnn.partition.chunks.partitioner import ChunkedPartitioner
from simgnn.partition.chunks.tables import batches_in
from simgnn.partition.device_fit import FittedPartitioner
from simgnn.partition.statistics.halo_rows import ROW_ORDER
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.epoch_work import epoch_weights
from simgnn.planner.fit_partition import fitted_to, fitting_devices
from simgnn.policy import Partitioner
from simgnn.program.sizes import IntArray
from simgnn.progress import Progress
from simgnn.registry import shipped

STATISTICS = "stats:"
"""Prefix of the source of a graph that is a statistics file."""


def with_default_cluster(experiment: Experiment, default: tuple[int, int] | None) -> Experiment:
    """Return the experiment with missing hosts and ranks per host from ``default`` (else one rank)."""
    hosts, each = default or (1, 1)
    stated = experiment.cluster
    return experiment.with_cluster(stated.hosts or hosts, stated.ranks_per_host or each)


def from_statistics(
    experiment: Experiment, base: Path | None, profile: Profile | None, progress: Progress
) -> tuple[Experiment, PartitionStats]:
    """Return the experiment with cluster and partitioner resolved, and the partition of its statistics file. Raises
    :class:`ConfigError`, which names the keys to set, if no partition of the file fits, or several do. A partitioner
    that suits devices is carried out for those of ``profile`` where the file holds the parts that it starts from."""
    # Numba: loaded when a graph is prepared
    from simgnn.partition.statistics.file import load_partitions

    path = expanded(experiment.graph.source.removeprefix(STATISTICS))
    held = load_partitions(path if path.is_absolute() or base is None else base / path)
    starts = [stats for stats in held if ROW_ORDER in stats.tables] if experiment.partition.fits_devices else []
    stats = _chosen(experiment, starts or held, path)
    if not starts:
        experiment, stats = _with_its_partition(experiment, stats, path)
    if not _states_ranks(experiment):
        each = np.bincount(stats.hosts)
        if len(each) == 0 or np.any(each != each[0]) or np.any(np.diff(stats.hosts) < 0):
            raise ConfigError(
                f"cluster: missing, and the hosts in {path} have different numbers of ranks; set cluster.hosts and "
                "cluster.ranks_per_host"
            )
        experiment = experiment.with_cluster(len(each), int(each[0]))
    else:
        experiment = with_default_cluster(experiment, None)
    if experiment.ranks != stats.ranks:
        raise _other_ranks(experiment, (stats,), path)
    hosts = np.asarray(experiment.rank_hosts(), dtype=np.int64)
    if experiment.partition.drops_between_hosts and not np.array_equal(hosts, stats.hosts):
        raise ConfigError(
            f"cluster.hosts: got ranks on hosts {hosts.tolist()}, but the partition in {path} has no edges between the "
            f"hosts {stats.hosts.tolist()} of its ranks: use these hosts (cluster.hosts, cluster.ranks_per_host), or "
            "divide the graph again with yours (simgnn partition --stats FILE)"
        )
    if starts:
        return _suiting_devices(experiment, stats, held, hosts, path, profile, progress)
    return experiment, stats.on_hosts(hosts)


def numbers_of_chunks(experiment: Experiment, base: Path | None) -> tuple[int, ...]:
    """Return the numbers of chunks of each rank that the experiment's statistics file knows, ascending. Raises
    :class:`ConfigError` if it knows none for the experiment's ranks."""
    # Numba: loaded when a graph is prepared
    from simgnn.partition.statistics.file import load_partitions

    path = expanded(experiment.graph.source.removeprefix(STATISTICS))
    held = load_partitions(path if path.is_absolute() or base is None else base / path)
    if _states_ranks(experiment):
        ranks = with_default_cluster(experiment, None).ranks
        held = tuple(stats for stats in held if stats.ranks == ranks)
    numbers = {batches_in(stats.tables) for stats in held} - {None}
    if not numbers:
        raise ConfigError(
            f"partition.chunks: got 'auto', but {path} says of no number of chunks what rows they need: state them "
            "([partition.chunks], docs/statistics.md), or count them with simgnn partition --stats"
        )
    return tuple(sorted(number for number in numbers if number is not None))


def _suiting_devices(
    experiment: Experiment, starts: PartitionStats, held: Sequence[PartitionStats], hosts: IntArray, path: Path,
    profile: Profile | None, progress: Progress,
) -> tuple[Experiment, PartitionStats]:  # fmt: skip
    """Carry out the experiment's partitioner on the parts ``starts`` of a file, for the devices of its ranks. Where the
    file holds what that makes, as it was counted from the graph, take this. Options that the experiment does not state
    are those by which the file was made, but for what suited it to devices."""
    policy = cast(FittedPartitioner, experiment.partition)
    made = [stats for stats in held if stats.ranks == starts.ranks and _maker(stats) == policy.label]
    if made and made[0].made_by is not None:
        suited = FittedPartitioner.model_fields.keys() - Partitioner.model_fields.keys()
        known = {key: value for key, value in made[0].made_by.items() if key not in suited}
        stated = policy.model_dump(mode="json", include=policy.model_fields_set)
        policy = type(policy).model_validate({**known, **stated})
        experiment = experiment.model_copy(update={"partition": policy})
    if not np.array_equal(hosts, starts.hosts):
        raise ConfigError(
            f"cluster.hosts: got ranks on hosts {hosts.tolist()}, but the parts in {path} were made for "
            f"{starts.hosts.tolist()}, and '{policy.label}' suits parts to each host: use these hosts, or divide the "
            "graph again with yours (simgnn partition --stats FILE)"
        )
    expected, made_by = policy.starts_from(hosts).stated(), starts.made_by or {}
    differ = [key for key in expected if expected[key] != made_by.get(key)]
    if differ:
        one, other = (
            ", ".join(f"{key} = {shown(table.get(key, 'none'))}" for key in differ) for table in (expected, made_by)
        )
        raise ConfigError(
            f"partition.kind: '{policy.label}' with these options starts from parts with {one}, but those in {path} "
            f"were made with {other}: state the options that the file was made with, or divide the graph again (simgnn "
            "partition --stats FILE)"
        )
    starts = _noted(starts, path)
    fitted = fitted_to(experiment, starts, fitting_devices(experiment, profile), progress)
    policy = cast(FittedPartitioner, fitted.partition)
    makes = policy.resolved(experiment.seed).stated()
    for stats in made:
        if stats.made_by == makes and np.array_equal(stats.hosts, hosts):
            return fitted, _noted(stats, path)
    return fitted, policy.refined_statistics(starts, experiment.seed)


def _states_ranks(experiment: Experiment) -> bool:
    return experiment.cluster.hosts is not None or experiment.cluster.ranks_per_host is not None


def _chosen(experiment: Experiment, found: Sequence[PartitionStats], path: Path) -> PartitionStats:
    """Return the partition of the experiment's ranks and partitioner; if the file holds one only, that one."""
    if len(found) == 1:
        return _in_as_many_chunks(experiment, found, path)[0]
    fitting = list(found)
    if _states_ranks(experiment):
        stated = with_default_cluster(experiment, None)
        fitting = [stats for stats in found if stats.ranks == stated.ranks]
        if not fitting:
            raise _other_ranks(stated, found, path)
        same = [stats for stats in fitting if stats.hosts.tolist() == list(stated.rank_hosts())]
        fitting = same or fitting
    elif len({stats.ranks for stats in found}) > 1:
        raise ConfigError(
            f"cluster.ranks_per_host: missing, and {path} holds {_named(found)}; set --ranks, or cluster.hosts and "
            f"cluster.ranks_per_host, to {_listed(sorted({stats.ranks for stats in found}))} ranks in all"
        )
    fitting = _in_as_many_chunks(experiment, fitting, path)
    if len(fitting) == 1:
        return fitting[0]
    by_policy = [stats for stats in fitting if not _policy_faults(experiment, stats, path)]
    if len(by_policy) > 1:  # parts that another partition of the file started from are a second choice
        by_policy = [stats for stats in by_policy if ROW_ORDER not in stats.tables] or by_policy
    if len(by_policy) == 1:
        return by_policy[0]
    kinds = sorted({_maker(stats) for stats in fitting})
    if not by_policy:
        raise ConfigError(
            f"partition.kind: got {shown(experiment.partition.label)} and its options, which made none of {path}'s "
            f"partitions ({_named(fitting)}): set partition.kind to {_listed(kinds)} and no other options than it was "
            "made with, or make the file anew with simgnn partition --stats"
        )
    raise ConfigError(
        f"partition: {len(by_policy)} partitions in {path} fit ({_named(by_policy)}): {_telling_apart(by_policy)}"
    )


def _in_as_many_chunks(experiment: Experiment, found: Sequence[PartitionStats], path: Path) -> list[PartitionStats]:
    """Return the partitions in as many chunks as the experiment states, if its partitioner makes chunks and any of
    them is in chunks. Raises :class:`ConfigError` if none is in that many: rows that chunks need are known for the
    number with which they were counted alone."""
    numbers = {number for stats in found if (number := batches_in(stats.tables)) is not None}
    if not experiment.partition.chunked or not numbers:
        return list(found)
    wanted = cast(ChunkedPartitioner, experiment.partition).stated_chunks
    if wanted is None:
        return list(found)
    if wanted not in numbers:
        raise ConfigError(
            f"partition.chunks: got {wanted}, but {path} states what {_listed(sorted(numbers))} chunks of each rank "
            "need, which says nothing of other numbers: use one of these, or count the rows again with yours"
        )
    return [stats for stats in found if batches_in(stats.tables) == wanted]


def _telling_apart(found: Sequence[PartitionStats]) -> str:
    """Say which options tell partitions apart, and their values."""
    made = [{"kind": _maker(stats), **(stats.made_by or {})} for stats in found]
    keys = dict.fromkeys(key for one in made for key in one)
    values = {key: sorted({shown(one.get(key, "none")) for one in made}) for key in keys}
    differ = [f"partition.{key} ({_listed(each)})" for key, each in values.items() if len(each) > 1]
    return f"set {differ[0]}" if differ else "nothing tells them apart; remove all but one from the file"


def _maker(stats: PartitionStats) -> str:
    return str((stats.made_by or {}).get("kind", stats.kind))


def _named(found: Sequence[PartitionStats]) -> str:
    """Name partitions by what made them, ranks, and hosts if there are several."""
    names = []
    for stats in found:
        hosts = len(set(stats.hosts.tolist()))
        names.append(f"{_maker(stats)} into {stats.ranks}" + (f" on {hosts} hosts" if hosts > 1 else ""))
    return ", ".join(dict.fromkeys(names))


def _listed(values: Sequence[object]) -> str:
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last


def _other_ranks(experiment: Experiment, found: Sequence[PartitionStats], path: Path) -> ConfigError:
    expected = _listed(sorted({stats.ranks for stats in found}))
    held = _named(found) if len(found) > 1 else f"a partition into {expected}"
    return ConfigError(
        f"cluster.ranks_per_host: got a total of {experiment.ranks} processes, but {path} holds {held}: "
        f"use --ranks {expected}, or make a file for {experiment.ranks} with simgnn partition --ranks "
        f"{experiment.ranks} --stats FILE"
    )


def _policy_faults(experiment: Experiment, stats: PartitionStats, path: Path) -> list[str]:
    """List the options that the experiment states otherwise than the partitioner that made the statistics."""
    known, stated = stats.made_by, experiment.partition
    if known is None:
        return []
    problems, maker = [], known["kind"]
    for key in sorted(stated.model_fields_set & set(type(stated).model_fields)):
        got = stated.model_dump(mode="json")[key]
        if got is not None and got != known.get(key):
            made = shown(known[key]) if key in known else f"none (partition.kind = '{maker}')"
            problems.append(
                f"partition.{key}: got {shown(got)}, but the partition in {path} was made with {made}: remove the key, "
                "as the file decides, or partition the graph again with this key (simgnn partition --stats FILE)"
            )
    return problems


def _layer_faults(experiment: Experiment, policy: Partitioner, known: Mapping[str, Any], path: Path) -> list[str]:
    """List the options that follow from the number of the model's layers, and that a file's partition has otherwise."""
    layers = experiment.model.layers
    before, layered = (one.model_dump(mode="json") for one in (policy, policy.for_layers(layers)))
    return [
        f"partition.{key}: the partition in {path} was made with {shown(known.get(key))}, expected "
        f"{shown(layered[key])} by model.layers = {layers}: partition the graph again with this model (simgnn "
        "partition --stats FILE)"
        for key in sorted(layered)
        if layered[key] not in (before[key], known.get(key))
    ]


def _noted(stats: PartitionStats, path: Path) -> PartitionStats:
    """Add a note to statistics that do not say from which graph they were counted."""
    if stats.origin is not None:
        return stats
    note = f"{path.name} does not say from which graph it was counted: its numbers are taken as written"
    return replace(stats, notes=(*stats.notes, note))


def _with_its_partition(experiment: Experiment, stats: PartitionStats, path: Path) -> tuple[Experiment, PartitionStats]:
    """Return the experiment with the partition policy that made the statistics.

    Raises :class:`ConfigError` if the experiment states another one."""
    known, stated = stats.made_by, experiment.partition
    stats = _noted(stats, path)
    if known is None:
        note = (
            f"{path.name} does not say how its partition was made, so nobody checked that it is the experiment's "
            f"partition.kind = '{stated.label}'; state it there as [partition.made_by]"
        )
        return experiment, replace(stats, notes=(*stats.notes, note))
    problems, maker = _policy_faults(experiment, stats, path), known["kind"]
    if problems:
        raise ConfigError(problems)
    # a file of statistics never has code imported: only the experiment may name a partitioner of the user's own
    found = type(stated) if stated.label == maker else shipped("partition").get(maker)
    if found is None:
        raise ConfigError(
            f"partition.kind: got '{stated.label}', but the partition in {path} was made with '{maker}', a partitioner "
            f"of your own: set partition.kind = '{maker}'"
        )
    asked = stated if stated.label == maker else cast(Partitioner, found())
    if problems := _layer_faults(experiment, asked, known, path):
        raise ConfigError(problems)
    chosen = experiment.model_copy(update={"partition": found.model_validate(dict(known))})
    weights = known.get("weights")
    if isinstance(weights, Mapping) and weights != epoch_weights(experiment, stats.facts, lambda _: None):
        note = (
            f"the partition in {path.name} balances the work of another model than the experiment's: a run of this "
            "experiment divides the graph otherwise; partition the graph with this model (simgnn partition --stats)"
        )
        stats = replace(stats, notes=(*stats.notes, note))
    return chosen, stats
