"""Plans all fetches of a run from its presampled batches: what every rank gathers and sends in each epoch.

A folder ``hot-N`` beside the batches (``hot-N-of-E-epochs`` where hot rows are counted in a whole run) holds
``epoch-E/gather-R`` and ``epoch-E/serve-R`` for N hot rows and, at last, ``fetches.json`` with digest and totals. It is
a pure function of the batches' settings, the hosts, N, and the run's epochs where they count.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from simgnn.errors import ConfigError
from simgnn.partition.folder import ArtifactFolder, ArtifactWriter, obtain
from simgnn.program.sizes import IntArray
from simgnn.sampling.batches.epoch_file import Part
from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.batches.presample import checked_part, settings_of, write_totals
from simgnn.sampling.fetches.fetch_lists import GATHERED, SERVED, GatherPart, ServePart, write_gathers, write_served
from simgnn.sampling.fetches.remote_rows import Sources, rankings, rows_on_hosts

TOTALS = "fetches.json"
FORMAT = 1


@dataclass(frozen=True)
class FetchPlan:
    """A plan on disk: artefacts ``made`` by this call and ``reused`` ones, and a SHA-256 of all."""

    path: Path
    epochs: int
    hot_rows: int
    made: int
    reused: int
    digest: str

    @classmethod
    def open(cls, path: Path, epochs: int) -> "FetchPlan":
        """The first ``epochs`` epochs of a plan. Raises :class:`ConfigError` where it cannot be read."""
        try:
            table = json.loads((path / TOTALS).read_text(encoding="utf-8"))
            hot_rows, digest = int(table["hot_rows"]), str(table["digest"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path / TOTALS} cannot be read ({error}): prepare the run again") from error
        return cls(path, epochs, hot_rows, 0, 0, digest)

    def gather(self, epoch: int, rank: int) -> GatherPart:
        """How a rank gathers the rows of its batches in an epoch; checked against its digests."""
        return GatherPart.open(_gather_path(self.path, epoch, rank))

    def hot(self, epoch: int, rank: int) -> GatherPart:
        """As :meth:`gather`, with only the lists of its cache checked."""
        return GatherPart(ArtifactFolder.open(_gather_path(self.path, epoch, rank), GATHERED).verify("hot"))

    def serve(self, epoch: int, rank: int) -> ServePart:
        """What a rank sends in an epoch; checked against its digests."""
        return ServePart.open(_serve_path(self.path, epoch, rank))


def plan_fetches(
    plan: SamplingPlan,
    source: str,
    folder: Path,
    epochs: int,
    rank_hosts: IntArray,
    hot_rows: int,
    whole_run: bool = False,
    *,
    threads: int | None = None,
    done: Callable[[int], None] = lambda artefacts: None,
) -> FetchPlan:
    """Plan the fetches of epochs 0..epochs-1, whose batches of all ranks lie in ``folder``; plans that exist are kept.

    ``source``: digest of graph and partition, as the batches were made with; ``rank_hosts`` int64 [P]; ``whole_run``:
    hot rows are counted in the batches of all epochs, so that a plan of more epochs is another one. Contents do not
    depend on ``threads``. ``done`` receives how many of the 2 * P * epochs artefacts exist. In memory are 4 or 8 bytes
    a vertex (40 while rows are numbered), one ranking and a few batches. Raises :class:`ConfigError` for missing or
    other batches.
    """
    place = folder / (f"hot-{hot_rows}-of-{epochs}-epochs" if whole_run else f"hot-{hot_rows}")
    rows = rows_on_hosts(np.asarray(plan.owner), rank_hosts)
    settings: dict[str, Any] = {
        **settings_of(plan, source), "fetch_format": FORMAT, "hosts": rank_hosts.tolist(), "hot_rows": hot_rows,
        **({"hot_of_epochs": epochs} if whole_run else {}),
    }  # fmt: skip
    made = there = 0

    def opened(rank: int, epoch: int) -> Part:
        part = checked_part(folder, epoch, rank)
        _check(part.folder, {**settings_of(plan, source), "epoch": epoch, "worker": rank})
        return part

    def keep(
        path: Path, what: str, epoch: int, rank: int, write: Callable[[ArtifactWriter], Mapping[str, int]]
    ) -> None:
        nonlocal made, there
        key = {**settings, "epoch": epoch, "rank": rank}
        found, new = obtain(path, what, lambda writer: {"made_from": key, "rows": write(writer)})
        _check(found, key)
        made, there = made + new, there + 1
        done(there)

    for rank in range(plan.ranks):
        sources, part_of = Sources.of_worker(plan.owner, rank_hosts, rank), partial(opened, rank)
        ranking_of = rankings(part_of, epochs, sources, whole_run)
        for epoch in range(epochs):
            write = partial(write_gathers, partial(part_of, epoch), sources, ranking_of, hot_rows, rows, threads)
            keep(_gather_path(place, epoch, rank), GATHERED, epoch, rank, write)
    for epoch in range(epochs):
        paths = [_gather_path(place, epoch, rank) for rank in range(plan.ranks)]
        gathers = [GatherPart(ArtifactFolder.open(path, GATHERED)) for path in paths]  # verified when obtained
        for rank in range(plan.ranks):
            keep(_serve_path(place, epoch, rank), SERVED, epoch, rank, partial(write_served, gathers, rank, plan.steps))
    digest = hashlib.sha256(json.dumps([settings, epochs], sort_keys=True).encode())
    for epoch in range(epochs):
        for rank in range(plan.ranks):
            for path_of, what in ((_gather_path, GATHERED), (_serve_path, SERVED)):
                files = ArtifactFolder.open(path_of(place, epoch, rank), what).files
                digest.update(json.dumps([what, epoch, rank, dict(files)], sort_keys=True).encode())
    found = FetchPlan(place, epochs, hot_rows, made, there - made, digest.hexdigest())
    write_totals(place / TOTALS, {"epochs": epochs, "hot_rows": hot_rows, "digest": found.digest})
    return found


def _check(found: ArtifactFolder, expected: Mapping[str, Any]) -> None:
    if found.details["made_from"] != expected:
        raise ConfigError(f"{found.path} was made from other settings: remove it and start again")


def _gather_path(place: Path, epoch: int, rank: int) -> Path:
    return place / f"epoch-{epoch}" / f"gather-{rank}"


def _serve_path(place: Path, epoch: int, rank: int) -> Path:
    return place / f"epoch-{epoch}" / f"serve-{rank}"
