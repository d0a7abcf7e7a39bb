"""Plans all fetches of a run from its presampled batches: what every rank gathers and sends in each epoch, and how the
cache of hot rows of the next epoch is filled while an epoch runs.

A folder ``hot-N`` beside the batches (``hot-N-of-E-epochs`` where hot rows are counted in a whole run) holds
``epoch-E/gather-R`` and ``epoch-E/serve-R`` for N hot rows and, at last, ``fetches.json`` with digest and totals. It is
a pure function of the batches' settings, the hosts, N, and, if it is in the folder's name, E.
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
from simgnn.outside import outside_data
from simgnn.partition.folder import ArtifactFolder, ArtifactWriter, obtain
from simgnn.program.sizes import IntArray
from simgnn.sampling.batches.epoch_file import Part
from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.batches.presample import checked_part, settings_of, write_totals
from simgnn.sampling.fetches.fetch_lists import GATHERED, SERVED, GatherPart, ServePart, write_gathers, write_served
from simgnn.sampling.fetches.remote_rows import Sources, rankings, rows_on_hosts

TOTALS = "fetches.json"
KINDS = {"gather": GATHERED, "serve": SERVED}
FORMAT = 1


@dataclass(frozen=True)
class FetchPlan:
    """A fetch plan on disk. ``made``, ``reused``: how many artefacts this call wrote, or found; ``digest``: of all."""

    path: Path
    epochs: int
    hot_rows: int
    made: int
    reused: int
    digest: str

    @classmethod
    def open(cls, path: Path, epochs: int) -> "FetchPlan":
        """Open the first ``epochs`` epochs of a plan. Raises :class:`ConfigError` when the plan cannot be read."""
        with outside_data(path / TOTALS, "fetch plan", remedy="prepare the run again", error=ConfigError):
            table = json.loads((path / TOTALS).read_text(encoding="utf-8"))
            hot_rows, digest = int(table["hot_rows"]), str(table["digest"])
        return cls(path, epochs, hot_rows, 0, 0, digest)

    def gather(self, epoch: int, rank: int) -> GatherPart:
        """Return the gather plans of a rank for an epoch, checked against their digests."""
        return GatherPart.open(_path(self.path, epoch, "gather", rank))

    def hot(self, epoch: int, rank: int) -> GatherPart:
        """Return the gather plans of a rank for an epoch, with only the lists of the cache checked."""
        return GatherPart(ArtifactFolder.open(_path(self.path, epoch, "gather", rank), GATHERED).verify("hot"))

    def serve(self, epoch: int, rank: int) -> ServePart:
        """Return the serve lists of a rank for an epoch, checked against their digests."""
        return ServePart.open(_path(self.path, epoch, "serve", rank))


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
    hot rows are counted in the batches of all epochs, so that the plan depends on the number of epochs. Contents do not
    depend on ``threads``. ``done`` receives how many of the 2 * P * epochs artefacts exist. Memory: 4 or 8 bytes a
    vertex (40 while rows are numbered), one ranking and a few batches. Raises :class:`ConfigError` for batches that are
    missing or have other settings.
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

    def keep(kind: str, epoch: int, rank: int, write: Callable[[ArtifactWriter], Mapping[str, int]]) -> None:
        nonlocal made, there
        key = {**settings, "epoch": epoch, "rank": rank}
        found, new = obtain(
            _path(place, epoch, kind, rank), KINDS[kind], lambda writer: {"made_from": key, "rows": write(writer)}
        )
        _check(found, key)
        made, there = made + new, there + 1
        done(there)

    for rank in range(plan.ranks):
        sources, part_of = Sources.of_worker(plan.owner, rank_hosts, rank), partial(opened, rank)
        ranking_of = rankings(part_of, epochs, sources, whole_run)
        for epoch in range(epochs):
            write = partial(write_gathers, partial(part_of, epoch), sources, ranking_of, hot_rows, rows, threads)
            keep("gather", epoch, rank, write)
    for epoch in range(epochs):
        paths = [_path(place, epoch, "gather", rank) for rank in range(plan.ranks)]
        gathers = [GatherPart(ArtifactFolder.open(path, GATHERED)) for path in paths]  # verified when obtained
        for rank in range(plan.ranks):
            keep("serve", epoch, rank, partial(write_served, gathers, rank, plan.steps))
    digest = hashlib.sha256(json.dumps([settings, epochs], sort_keys=True).encode())
    for epoch in range(epochs):
        for rank in range(plan.ranks):
            for kind, what in KINDS.items():
                files = ArtifactFolder.open(_path(place, epoch, kind, rank), what).files
                digest.update(json.dumps([what, epoch, rank, dict(files)], sort_keys=True).encode())
    found = FetchPlan(place, epochs, hot_rows, made, there - made, digest.hexdigest())
    write_totals(place / TOTALS, {"epochs": epochs, "hot_rows": hot_rows, "digest": found.digest})
    return found


def _check(found: ArtifactFolder, expected: Mapping[str, Any]) -> None:
    if found.details["made_from"] != expected:
        raise ConfigError(f"{found.path} was made from other settings: remove it and start again")


def _path(place: Path, epoch: int, kind: str, rank: int) -> Path:
    return place / f"epoch-{epoch}" / f"{kind}-{rank}"


@dataclass(frozen=True)
class Pieces:
    """How training steps fill the next epoch's cache, each a piece, by slot. ``step`` int64 [n]: the step that fills
    the slot; ``kept`` bool [n]: whether its row is copied from the present cache, not pulled from another host."""

    step: IntArray
    kept: NDArray[np.bool_]

    @classmethod
    def of(cls, hot: NDArray[Any], before: NDArray[Any], steps: int, only_new: bool) -> "Pieces":
        """Divide the cache ``hot`` [n] (ids by slot) into pieces; ``before`` [m]: cache of the previous epoch.
        ``only_new``: copy rows that are in both."""
        size = -(-len(hot) // steps)
        kept = np.isin(hot, before) if only_new else np.zeros(len(hot), np.bool_)
        return cls(np.arange(len(hot)) // max(size, 1), kept)

    def pulled(self, senders: IntArray, ranks: int, steps: int) -> IntArray:
        """Count the rows that each rank sends at each step, int64 [P, steps]; ``senders`` int64 [n], by slot."""
        fresh = ~self.kept
        counts = np.bincount(senders[fresh] * steps + self.step[fresh], minlength=ranks * steps)
        return counts.reshape(ranks, steps).astype(np.int64)

    def copied(self, steps: int) -> IntArray:
        """Count the rows that each step copies from the present cache to the next one, int64 [steps]."""
        return np.bincount(self.step[self.kept], minlength=steps).astype(np.int64)


@dataclass(frozen=True)
class Refill:
    """The rows that fill the next cache of one rank, a piece each step. ``slots`` int64 [k]: slots of rows that other
    hosts send, by (piece, sender, slot); ``rows`` [k]: row numbers on the senders' hosts; ``senders`` int64 [k].
    ``kept`` int64 [c]: slots of rows copied from the slots ``kept_from`` int64 [c] of the present cache.
    ``pulled_bounds``, ``kept_bounds`` int64 [T + 1]: first index of each piece, and the end."""

    slots: IntArray
    rows: NDArray[Any]
    senders: IntArray
    pulled_bounds: IntArray
    kept: IntArray
    kept_from: IntArray
    kept_bounds: IntArray

    def pulled(self, step: int) -> slice:
        """The part of ``slots`` that a step fills."""
        return slice(int(self.pulled_bounds[step]), int(self.pulled_bounds[step + 1]))

    def copied(self, step: int) -> slice:
        """The part of ``kept`` that a step fills."""
        return slice(int(self.kept_bounds[step]), int(self.kept_bounds[step + 1]))

    def of_sender(self, step: int, sender: int) -> NDArray[Any]:
        """Row numbers, on its host, of what a sender sends in a step, in the order that the requester expects."""
        piece = self.pulled(step)
        return np.asarray(self.rows[piece][self.senders[piece] == sender])


def refill(coming: GatherPart, present: GatherPart | None, steps: int) -> Refill:
    """Plan how the cache of ``coming`` is filled in ``steps`` pieces. Rows may be copied from the cache of ``present``
    (None: all rows are pulled)."""
    hot, senders = np.asarray(coming.hot), np.asarray(coming.hot_senders, dtype=np.int64)
    before = hot[:0] if present is None else np.asarray(present.hot)
    pieces = Pieces.of(hot, before, steps, present is not None)
    kept, pulled = np.flatnonzero(pieces.kept), np.flatnonzero(~pieces.kept)
    pulled = pulled[np.lexsort((pulled, senders[pulled], pieces.step[pulled]))]
    return Refill(
        slots=pulled,
        rows=np.asarray(coming.hot_rows)[pulled],
        senders=senders[pulled],
        pulled_bounds=_bounds(pieces.step[pulled], steps),
        kept=kept,
        kept_from=_places(before, hot[kept]),
        kept_bounds=_bounds(pieces.step[kept], steps),
    )


def refill_of(fetches: FetchPlan, epoch: int, rank: int, steps: int, delta: bool) -> Refill:
    """Plan how a rank's cache of ``epoch`` is filled in the epoch before, or, for epoch 0, before training (``steps`` =
    1). ``delta``: copy rows that the present cache has."""
    present = fetches.hot(epoch - 1, rank) if delta and epoch else None
    return refill(fetches.hot(epoch, rank), present, steps)


def _places(held: NDArray[Any], wanted: NDArray[Any]) -> IntArray:
    """Position of each of ``wanted`` [n] in ``held`` [k], which contains each exactly once: int64 [n]."""
    order = np.argsort(held, kind="stable")
    return order[np.searchsorted(held[order], wanted)]


def _bounds(pieces: IntArray, steps: int) -> IntArray:
    """Return the first place of each piece and the end, given the ascending piece numbers of all rows."""
    return np.searchsorted(pieces, np.arange(steps + 1)).astype(np.int64)
