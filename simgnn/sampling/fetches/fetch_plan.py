"""All fetches of a run, planned from its presampled batches: what every rank gathers and sends in each epoch.

A folder ``hot-N`` beside the batches (``hot-N-of-E-epochs`` where hot rows are counted in a whole run) holds
``epoch-E/gather-R`` and ``epoch-E/serve-R`` for N hot rows and, once all are there, ``fetches.json`` with digest and
totals. It is a pure function of the batches' settings, the hosts, N, and the run's epochs where they count.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.partition.folder import ArtifactFolder, ArtifactWriter, obtain
from simgnn.sampling.batches.epoch_file import Part
from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.batches.presample import checked_part, settings_of, write_totals
from simgnn.sampling.fetches import gather
from simgnn.sampling.fetches import sent_rows as serve
from simgnn.sampling.fetches.gather import GatherPart, write_gathers
from simgnn.sampling.fetches.ranked_batches import Rankings
from simgnn.sampling.fetches.remote_rows import Sources, rows_on_hosts
from simgnn.sampling.fetches.sent_rows import ServePart, write_served

IntArray = NDArray[np.int64]
TOTALS = "fetches.json"
FORMAT = 1


@dataclass(frozen=True)
class FetchPlan:
    """What :func:`plan_fetches` wrote: ``made`` artefacts now, ``reused`` ones of an earlier call; SHA-256 of all."""

    path: Path
    epochs: int
    hot_rows: int
    made: int
    reused: int
    digest: str

    @classmethod
    def open(cls, path: Path, epochs: int) -> "FetchPlan":
        """The first ``epochs`` epochs of a plan that was made. Raises :class:`ConfigError` where it is not there."""
        try:
            table = json.loads((path / TOTALS).read_text(encoding="utf-8"))
            hot_rows, digest = int(table["hot_rows"]), str(table["digest"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path / TOTALS} cannot be read ({error}): prepare the run again") from error
        return cls(path, epochs, hot_rows, 0, 0, digest)

    def gather(self, epoch: int, rank: int) -> GatherPart:
        """How a rank's batches of an epoch come together; checked against its digests."""
        return GatherPart.open(_gather_path(self.path, epoch, rank))

    def hot(self, epoch: int, rank: int) -> GatherPart:
        """As :meth:`gather`, with only the lists of its cache checked."""
        return GatherPart(ArtifactFolder.open(_gather_path(self.path, epoch, rank), gather.WHAT).verify("hot"))

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
    """Plan the fetches of epochs 0..epochs-1, whose batches of all ranks lie in ``folder``; what is there is kept.

    ``source``: digest of graph and partition, as the batches were made with; ``rank_hosts`` int64 [P]; ``whole_run``:
    hot rows are counted in the batches of all epochs, so that a plan of more epochs is another one. Contents do not
    depend on ``threads``. ``done`` is told how many of the 2 * P * epochs artefacts are there. In memory are 4 or 8
    bytes a vertex (40 while rows are numbered), one ranking and a few batches. Raises :class:`ConfigError` for missing
    or other batches.
    """
    place = folder / (f"hot-{hot_rows}-of-{epochs}-epochs" if whole_run else f"hot-{hot_rows}")
    rows = rows_on_hosts(np.asarray(plan.owner), rank_hosts)
    settings: dict[str, Any] = {
        **settings_of(plan, source), "fetch_format": FORMAT, "hosts": rank_hosts.tolist(), "hot_rows": hot_rows,
        **({"hot_of_epochs": epochs} if whole_run else {}),
    }  # fmt: skip

    def opened(epoch: int, rank: int) -> Part:
        part = checked_part(folder, epoch, rank)
        _check(part.folder, {**settings_of(plan, source), "epoch": epoch, "worker": rank})
        return part

    made = 0
    for rank in range(plan.ranks):
        sources = Sources.of_worker(plan.owner, rank_hosts, rank)
        rankings = Rankings(partial(opened, rank=rank), epochs, sources, whole_run)
        for epoch in range(epochs):
            key = {**settings, "epoch": epoch, "rank": rank}

            def make(
                writer: ArtifactWriter, epoch: int = epoch, key: Mapping[str, Any] = key, of: Rankings = rankings
            ) -> Mapping[str, Any]:
                part = of.part_of(epoch)
                counts = write_gathers(part, of.sources, of.of(part), hot_rows, rows, writer, threads)
                return {"made_from": key, "rows": counts}

            found, new = obtain(_gather_path(place, epoch, rank), gather.WHAT, make)
            _check(found, key)
            made += new
            done(rank * epochs + epoch + 1)
    parts = [(epoch, rank) for epoch in range(epochs) for rank in range(plan.ranks)]
    made += _plan_served(plan, settings, place, epochs, lambda served: done(len(parts) + served))
    return _seal(settings, place, epochs, made, parts)


def _plan_served(
    plan: SamplingPlan, settings: Mapping[str, Any], place: Path, epochs: int, done: Callable[[int], None]
) -> int:
    """Write what every rank sends; how many artefacts this call made."""
    made = 0
    for epoch in range(epochs):
        paths = [_gather_path(place, epoch, rank) for rank in range(plan.ranks)]
        gathers = [GatherPart(ArtifactFolder.open(path, gather.WHAT)) for path in paths]  # verified when obtained
        for rank in range(plan.ranks):
            key = {**settings, "epoch": epoch, "rank": rank}

            def make(
                writer: ArtifactWriter,
                gathers: list[GatherPart] = gathers,
                rank: int = rank,
                key: Mapping[str, Any] = key,
            ) -> Mapping[str, Any]:
                return {"made_from": key, "rows": write_served(gathers, rank, plan.steps, writer)}

            found, new = obtain(_serve_path(place, epoch, rank), serve.WHAT, make)
            _check(found, key)
            made += new
            done(epoch * plan.ranks + rank + 1)
    return made


def _seal(settings: Mapping[str, Any], place: Path, epochs: int, made: int, parts: list[tuple[int, int]]) -> FetchPlan:
    """Digest over all artefacts, in order of epoch and rank."""
    digest = hashlib.sha256(json.dumps([settings, epochs], sort_keys=True).encode())
    for epoch, rank in parts:
        for path, what in ((_gather_path, gather.WHAT), (_serve_path, serve.WHAT)):
            files = ArtifactFolder.open(path(place, epoch, rank), what).files
            digest.update(json.dumps([what, epoch, rank, dict(files)], sort_keys=True).encode())
    found = FetchPlan(place, epochs, settings["hot_rows"], made, 2 * len(parts) - made, digest.hexdigest())
    write_totals(place / TOTALS, {"epochs": epochs, "hot_rows": found.hot_rows, "digest": found.digest})
    return found


def _check(found: ArtifactFolder, expected: Mapping[str, Any]) -> None:
    if found.details["made_from"] != expected:
        raise ConfigError(f"{found.path} was made from other settings: remove it and start again")


def _gather_path(place: Path, epoch: int, rank: int) -> Path:
    return place / f"epoch-{epoch}" / f"gather-{rank}"


def _serve_path(place: Path, epoch: int, rank: int) -> Path:
    return place / f"epoch-{epoch}" / f"serve-{rank}"
