"""Records beside a rank's trace: decisions of policies, losses of mini-batches, and sources of their rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from numpy.typing import ArrayLike

from executor.recording.trace import LATEST, RowFile, put_aside, read_parts
from executor.state.buffers import Now
from executor.state.context import RankContext
from executor.state.plan import RunPlan
from simgnn.policy import Metrics
from simgnn.record.activity import ACTIVITY_SCHEMA, columns_of, decisions_in
from simgnn.record.batches import LOSSES_SCHEMA, TAKEN_SCHEMA, places_of

FLUSH_ROWS = 65_536
SCHEMAS = {"activity": ACTIVITY_SCHEMA, "losses": LOSSES_SCHEMA, "taken": TAKEN_SCHEMA}
"""Schema of each kind of file that a rank writes: decisions, losses, sources of rows."""


def record_file(folder: Path, rank: int, kind: str) -> Path:
    """Return the file to which a rank writes its records of a kind."""
    return folder / f"rank-{rank}.{kind}.arrow"


class SideFile(RowFile):
    """The file to which one rank writes one kind of record; :data:`SCHEMAS` lists the kinds."""

    def __init__(self, folder: Path, rank: int, kind: str, start_epoch: int, flush_rows: int = FLUSH_ROWS) -> None:
        super().__init__(record_file(folder, rank, kind), SCHEMAS[kind], start_epoch)
        self.rank, self._flush_rows = rank, flush_rows

    def flush(self, force: bool = True) -> None:
        if force or len(self._rows) >= self._flush_rows:
            self.write()


class DecisionRecorder(SideFile):
    """Records the decisions of a rank's policies."""

    def __init__(self, folder: Path, rank: int, start_epoch: int = 0) -> None:
        super().__init__(folder, rank, "activity", start_epoch)

    def note(self, now: Now, decision: str, peer: int, value: int) -> None:
        self._rows.append((now.epoch, now.step, decision, peer, value))

    def columns(self, rows: Sequence[tuple[Any, ...]]) -> Sequence[ArrayLike]:
        epochs, steps, decisions, peers, values = zip(*rows, strict=True)
        point, phase, name = columns_of(decisions)
        return [epochs, steps, point, phase, [self.rank] * len(rows), peers, name, values]


class LossRecorder(SideFile):
    """Records the losses of a rank's mini-batches, before they are summed over ranks. ``trained``: number of training
    rows of all ranks, by which losses were divided."""

    def __init__(self, folder: Path, rank: int, trained: int, start_epoch: int = 0) -> None:
        super().__init__(folder, rank, "losses", start_epoch, flush_rows=4096)
        self.trained = trained

    def note(self, now: Now, metrics: torch.Tensor) -> None:
        self._rows.append((now.epoch, now.step, Metrics.loss_of(metrics)))

    def columns(self, rows: Sequence[tuple[Any, ...]]) -> Sequence[ArrayLike]:
        epochs, steps, losses = zip(*rows, strict=True)
        return [[self.rank] * len(rows), epochs, steps, torch.cat(losses).cpu().numpy() * self.trained]


class OriginRecorder(SideFile):
    """Records where a rank got the rows of its mini-batches. ``places``: names of all places where rows are counted,
    from :func:`simgnn.record.batches.places_of`."""

    def __init__(self, folder: Path, rank: int, places: Sequence[str], start_epoch: int = 0) -> None:
        super().__init__(folder, rank, "taken", start_epoch)
        self._number = {place: number for number, place in enumerate(places)}

    def note(self, epoch: int, step: int, place: str, peer: int, rows: int) -> None:
        self._rows.append((epoch, step, place, peer, rows))

    def columns(self, rows: Sequence[tuple[Any, ...]]) -> Sequence[ArrayLike]:
        epochs, steps, places, peers, counts = zip(*rows, strict=True)
        return [[self.rank] * len(rows), epochs, steps, [self._number[place] for place in places], peers, counts]


class Notes:
    """The side records of one rank, to which the handlers of its context write; only the kinds that its program has.

    ``start``: epochs that earlier starts of the run have trained; ``resume``: whether their records are kept.
    """

    def __init__(self, plan: RunPlan, context: RankContext, start: int, resume: bool) -> None:
        self._folder, rank = plan.trace, context.rank
        self._kinds = ["activity"] if decisions_in(plan.program) else []
        self._kinds += ["losses", "taken"] if plan.batches is not None else []
        if resume:
            for kind in self._kinds:
                put_aside(record_file(plan.trace, rank, kind))
        self._files: list[SideFile] = []
        if "activity" in self._kinds:
            decisions = DecisionRecorder(plan.trace, rank, start)
            context.note = decisions.note
            self._files.append(decisions)
        if plan.batches is not None:
            assert context.task is not None
            losses = LossRecorder(plan.trace, rank, context.task.train_total, start)
            origins = OriginRecorder(plan.trace, rank, places_of(plan.program), start)
            context.note_loss, context.note_rows = losses.note, origins.note
            self._files += [losses, origins]

    def files(self, rank: int) -> list[Path]:
        """Return the files to which another rank of the run writes the same kinds of records."""
        return [record_file(self._folder, rank, kind) for kind in self._kinds]

    def flush(self, force: bool = True) -> None:
        for file in self._files:
            file.flush(force)

    def close(self) -> None:
        for file in self._files:
            file.close()


def merged_records(folder: Path, kind: str) -> pa.Table:
    """Return the records of one kind of all ranks; in a resumed run, each epoch from the last start that trained it."""
    kept = [SCHEMAS[kind].empty_table()]
    ends: dict[int, int] = {}
    parts = read_parts(folder, kind, SCHEMAS[kind])
    for rank, _, table, start in sorted(parts, key=lambda part: (part[0], -part[1])):
        end = ends.setdefault(rank, LATEST)
        if start < end:  # else a later start trained all of its epochs
            kept.append(table.filter(pa.array(table["epoch"].to_numpy() < end)))
        if len(table):  # a start that broke off before it wrote anything takes no epoch from the ones before
            ends[rank] = min(end, start)
    return pa.concat_tables(kept)
