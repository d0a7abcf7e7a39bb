"""After a run: ranks' traces and counts become the tables and the result of the run directory."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from executor.energy.series import energy_figures
from executor.recording.activity import merge_activity
from executor.recording.losses import merge_losses
from executor.recording.merge import merge_trace, traffic_table
from executor.recording.message_counts import Pairs, mean_matrix, pair_matrix
from executor.recording.metrics import History
from executor.recording.row_origins import merge_taken
from executor.state.plan import RunPlan
from simgnn.record.activity import decisions_in
from simgnn.record.batches import batch_table, batches_that_differ, draws_batches, input_rows
from simgnn.record.energy import sum_of
from simgnn.record.result import Result, environment, versions, write_result
from simgnn.record.rundir import RunDirectory, ops_table, write_table
from simgnn.record.summary import Columns, buffer_bytes, epoch_windows, payload_epochs, per_rank, rank_times
from simgnn.seal import seal_folder

FIRST, TOLD = "first", "told"
"""Epochs whose payload is counted apart: the first one, and those of :func:`payload_epochs`."""
PHASES = ("total", FIRST, TOLD)
"""What a rank's counts are told for."""
OTHER_ROWS = (
    "{} batches did not take their rows from where the program says (batches.parquet tells whence): what is predicted "
    "for the program does not hold for this run; please report it"
)


def write_counts(folder: Path, rank: int, counts: Mapping[str, Mapping[tuple[int, int], list[int]]]) -> Path:
    """A rank's payload by (op id, target), for each of ``PHASES``."""
    path = folder / f"rank-{rank}.traffic.json"
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps({phase: [[*key, *value] for key, value in counts[phase].items()] for phase in counts}))
    os.replace(draft, path)
    return path


def read_counts(folder: Path, ranks: int, phase: str) -> Pairs:
    """All ranks' counts of one phase; a rank that did not get to write them counts as none."""
    found: dict[int, dict[tuple[int, int], list[int]]] = {}
    for rank in range(ranks):
        path = folder / f"rank-{rank}.traffic.json"
        rows = json.loads(path.read_text()).get(phase, []) if path.is_file() else []
        found[rank] = {(op_id, target): [messages, nbytes] for op_id, target, messages, nbytes in rows}
    return found


def write_report(
    plan: RunPlan,
    status: Literal["ok", "failed"],
    message: str = "",
    history: History | None = None,
    memory: Mapping[str, list[int]] | None = None,
    facts: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Result:
    """Write trace, ops, traffic, batches (of a mini-batch run), activity (where policies decide anything) and
    ``result.json``, then seal what a replay reads; also for a run that failed, as far as it came. ``notes`` qualify
    its numbers."""
    run, program, ranks = RunDirectory(plan.root), plan.program, plan.ranks
    trace = merge_trace(plan.trace, program)
    counts = {phase: read_counts(plan.trace, ranks, phase) for phase in PHASES}
    write_table(trace, run.trace)
    write_table(ops_table(program), run.ops)
    write_table(traffic_table(counts["total"]), run.traffic)
    batches: pa.Table | None = None
    elsewhere: list[str] = []
    if draws_batches(program):
        batches = batch_table(program, trace, merge_losses(plan.trace), merge_taken(plan.trace))
        write_table(batches, run.batches)
        # ranks of a run that failed may not have told all that they took
        other = batches_that_differ(batches, batch_table(program, trace)) if status == "ok" else 0
        elsewhere = [OTHER_ROWS.format(other)] if other else []
    if decisions_in(program):
        write_table(merge_activity(plan.trace), run.activity)
    columns = Columns.of(trace, program)
    windows = epoch_windows(columns)
    seconds = (windows[:, 1] - windows[:, 0]).tolist()
    steady, told = seconds[1:] or seconds, payload_epochs(len(seconds))
    # ranks of a run that failed have not told their counts, or have told them of other epochs
    whole = status == "ok"
    # ranks of a run that failed may not have told what they measured
    energy = energy_figures(plan.trace, ranks, _span(trace), windows) if status == "ok" else []
    losses = [] if history is None else [history.losses[epoch] for epoch in sorted(history.losses)]
    result = Result(
        backend="executor",
        status=status,
        message=message,
        name=plan.name,
        digest=None,
        program_digest=plan.digest,
        seed=plan.seed,
        ranks=ranks,
        hosts=len(set(program.hosts)),
        epochs=plan.epochs,
        versions=versions(),
        environment={**environment(), **(facts or {})},
        epoch_s=seconds,
        epoch_s_median=float(np.median(steady)) if steady else None,
        per_rank=rank_times(columns, ranks) if seconds else [],
        payload_epochs=(told[0], told[-1]) if told else None,
        bytes_sent=mean_matrix(counts[TOLD], program, ranks, 1, told) if whole else [],
        bytes_sent_first_epoch=pair_matrix(counts[FIRST], program, ranks, 1) if whole else [],
        messages=mean_matrix(counts[TOLD], program, ranks, 0, told) if whole else [],
        collective_bytes=per_rank(columns, "collective_bytes", ranks, told),
        control_bytes=per_rank(columns, "control_bytes", ranks, told),
        buffer_bytes=buffer_bytes(program),
        **(memory or {}),
        energy_J=sum_of(energy, "device", "total_J"),
        energy=energy,
        input_rows=None if batches is None else input_rows(batches),
        loss=losses or None,
        accuracy=None if history is None else history.accuracy(),
        accuracy_metric="micro_f1" if plan.multilabel else "accuracy",
        synthetic=list(plan.synthetic),
        notes=[*notes, *elsewhere],
    )
    write_result(result, run.result)
    seal_folder(run.root, run.recorded)
    return result


def _span(trace: pa.Table) -> tuple[float, float]:
    """From the first issue of a run to the last end, evaluations included."""
    return float(np.min(trace["issued_s"].to_numpy())), float(np.max(trace["ended_s"].to_numpy()))
