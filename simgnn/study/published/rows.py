"""Predicts published results under varied assumptions, one row each."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, cast

import numpy as np

from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.device_fit import FittedPartitioner
from simgnn.study.backend import Backend
from simgnn.study.cases import case_experiment
from simgnn.study.profile_variants import adjusted
from simgnn.study.published.graph import (
    Variation,
    divide,
    kept_bytes,
    listed_statistics,
    statistics,
    variations,
)
from simgnn.study.published.suite import Dataset, PublishedSuite, PublishedTable, Quantity
from simgnn.study.published.tables import Entry
from simgnn.tomlfile import Table, write_toml

Verdict = Literal["fits", "oom", "undecided"]
EPOCHS = 3


@dataclass(frozen=True)
class PublishedRow:
    """One published result and its prediction. ``timed``: what both times are of. ``factor``: predicted over published
    time. ``low_s``, ``high_s``: least and largest prediction over the variations; None if running out of memory is
    predicted. ``noise``: relative standard
    deviation of the published time, rounding included. ``file``: the printed table. ``discordant``: number of other
    timed rows whose order with this row is predicted wrongly. ``published_communication_s``: seconds of an epoch in
    which ranks communicate and do not compute, as printed; ``predicted_communication_s``: the mean over ranks.
    ``published_ratio``, ``predicted_ratio``: the time over that of the system without the last step of an ablation
    (None: no such time is printed, or none is predicted)."""

    file: str
    label: str
    dataset: str
    model: str
    layers: int
    ranks: int
    published_s: float | None
    published_status: str
    noise: float
    predicted_s: float | None
    low_s: float | None
    high_s: float | None
    factor: float | None
    verdict: Verdict
    discordant: int | None = None
    published_communication_s: float | None = None
    predicted_communication_s: float | None = None
    timed: Quantity = "epoch"
    published_ratio: float | None = None
    predicted_ratio: float | None = None

    @property
    def ratio_factor(self) -> float | None:
        """Predicted over published ratio of a step of an ablation; None: no such ratio is printed, or predicted."""
        if self.published_ratio is None or self.predicted_ratio is None:
            return None
        return self.predicted_ratio / self.published_ratio

    @property
    def communication_factor(self) -> float | None:
        """Predicted over published communication; None: not printed, or no time is predicted."""
        if self.published_communication_s is None or self.predicted_communication_s is None:
            return None
        return self.predicted_communication_s / self.published_communication_s


def published_row(suite: PublishedSuite, table: PublishedTable, entry: Entry, backend: Backend) -> PublishedRow:
    """Predict a published result under all variations. Raises :class:`ConfigError` for a graph that the suite does not
    describe."""
    name, ranks = entry.dataset, entry.ranks
    dataset = next((one for one in suite.datasets if name in one.names), None)
    if dataset is None:
        raise ConfigError(
            f"datasets: {table.file} has rows of the graph '{name}', which the suite does not describe; add it"
        )
    kind = table.models[entry.model]
    changes = variations(suite, table, kind, ranks, str(ranks) in dataset.counted)
    results = [_predicted(suite, table, dataset, entry, change, backend) for change in changes]
    _, communication, full = results[0]
    scored = [one[0 if table.timed == "epoch" else 1] for one in results]
    predicted, times = scored[0], [seconds for seconds in scored if seconds is not None]
    agree = all(verdict == full for _, _, verdict in results)
    published = None if entry.seconds is None else entry.seconds / table.epochs
    return PublishedRow(
        file=table.file,
        label=table.label,
        dataset=name,
        model=entry.model,
        layers=entry.layers,
        ranks=ranks,
        published_s=published,
        published_status=entry.status,
        noise=0.0 if published is None else float(np.hypot(table.noise, rounding(entry.text))),
        predicted_s=predicted,
        low_s=min(times, default=None),
        high_s=max(times, default=None),
        factor=None if published is None or predicted is None else predicted / published,
        verdict=("oom" if full else "fits") if agree else "undecided",
        published_communication_s=None if entry.communication is None else entry.communication / table.epochs,
        predicted_communication_s=communication,
        timed=table.timed,
    )


def rounding(text: str) -> float:
    """Return the standard deviation of the rounding error of a printed decimal number, divided by the number."""
    unit = 10.0 ** -len(text.partition(".")[2])
    return float(unit / np.sqrt(12) / float(text))


def _predicted(
    suite: PublishedSuite, table: PublishedTable, dataset: Dataset, entry: Entry, change: Variation, backend: Backend
) -> tuple[float | None, float | None, bool]:
    """Return the predicted seconds of an epoch and those of communication (None if memory runs out), and whether memory
    runs out."""
    name, ranks, kind = entry.dataset, entry.ranks, table.models[entry.model]
    with TemporaryDirectory(prefix="simgnn-published-") as scratch:
        path = Path(scratch) / "graph.toml"
        own: Table = {
            "name": f"{name}-{ranks}",
            "model": {"kind": kind, "layers": entry.layers},
            "graph": {"source": f"stats:{path}"},
            "cluster": {"hosts": 1, "ranks_per_host": ranks},
            "train": {"epochs": EPOCHS, "eval_every": 0},
        }
        if table.chunked is not None:
            of_ranks = dataset.chunks.get(str(ranks))
            own["partition"] = {"chunks": 1 if of_ranks is None else of_ranks.chunks}
        given = [one.set for one in table.given if kind in one.models]
        system = table.extends or suite.extends
        # what is cached and dropped follows from devices, whatever their software makes of their speed
        profile_of = table.profile if table.listed else None
        experiment = case_experiment(system, [table.set, *given, dataset.set, change.set, own], profile_of)
        experiment = _whole_periods(experiment, table.epochs)
        told = statistics(suite, dataset, name, ranks, change, table.blocks is not None, table.chunked is not None)
        if table.listed:
            arrays = listed_statistics(suite, dataset, ranks, change, told["partition"])
            np.savez(path.with_suffix(".npz"), allow_pickle=False, **arrays)  # compressing takes longer than all else
            told["partition"] = {"arrays": path.with_suffix(".npz").name, **_made_by(experiment)}
        write_toml(path, told)
        adjustments = [one for one in table.adjust if one.concerns(kind, dataset)]
        profile = load_profile(table.profile)
        profile = profile if table.backend is None else profile.using(table.backend)
        found = backend.predict(experiment, adjusted(profile, adjustments, change.memory))
    full = found.result.status == "oom"
    if table.kept is not None:
        widths = experiment.model.widths(dataset.features, dataset.classes)
        division = divide(suite, dataset, ranks, change, table.blocks is not None)
        needed = kept_bytes(table.kept, widths, division)
        full = full or needed > min(found.machine.device(rank).memory.value for rank in range(ranks))
    if full:
        return None, None, True
    exposed = float(np.mean([times.comm_exposed_s for times in found.result.per_rank]))
    return found.result.epoch_s_median, exposed, False


def _whole_periods(experiment: Experiment, epochs: int) -> Experiment:
    """Return the experiment with an epoch of every kind after the first, if its epochs differ; at most ``epochs``."""
    needed = min(1 + experiment.freshness.epochs.period, epochs)
    if needed <= experiment.train.epochs:
        return experiment
    return experiment.model_copy(update={"train": experiment.train.model_copy(update={"epochs": needed})})


def _made_by(experiment: Experiment) -> Table:
    """Say that the parts are those which the experiment's partitioner starts from, if it changes others' parts."""
    if not experiment.partition.fits_devices:
        return {}
    hosts = np.asarray(experiment.rank_hosts(), dtype=np.int64)
    starts = cast(FittedPartitioner, experiment.partition).starts_from(hosts)
    return {"made_by": starts.resolved(experiment.seed).stated()}
