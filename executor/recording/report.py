"""Turns the traces and counts of all ranks into the tables and the result of the run directory."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from executor.energy.meter import energy_figures
from executor.recording.metrics import History
from executor.recording.side_records import merged_records
from executor.recording.trace import LATEST, read_parts
from executor.state.plan import RunPlan
from executor.world.member import group_ids
from simgnn.program.kinds import GROUP_KINDS
from simgnn.program.program import Program
from simgnn.record.activity import decisions_in
from simgnn.record.batches import batch_table, batches_that_differ, draws_batches, input_rows
from simgnn.record.energy import sum_of
from simgnn.record.epoch_kinds import Alike, kinds_among, typical_s
from simgnn.record.result import EarlyStop, EvaluationCost, Result, environment, versions, write_result
from simgnn.record.rundir import TRACE_SCHEMA, TRAFFIC_SCHEMA, RunDirectory, ops_table, write_table
from simgnn.record.stages import StageTimes, stage_times
from simgnn.record.summary import (
    Columns,
    buffer_bytes,
    described_kinds,
    epoch_windows,
    evaluation_s,
    halo_rows,
    payload_epochs,
    per_rank,
    rank_times,
)
from simgnn.record.traffic import traffic_by_rank
from simgnn.seal import seal_folder
from simgnn.tomlfile import write_atomically

Pairs = Mapping[int, Mapping[tuple[int, int], list[int]]]
"""Payload that each rank counted: rank -> (op id, target) -> [messages, bytes]."""
FIRST, TOLD, LAST = "first", "told", "last"
"""Epochs whose payload is counted separately: the first one, those of :func:`payload_epochs`, and the last one if it is
not among these. A run that is resumed for more epochs needs the last one, too."""
PHASES = ("total", FIRST, TOLD)
"""The parts of a run for which a rank counts its payload."""
OTHER_ROWS = (
    "{} batches did not take their rows from where the program says (batches.parquet lists the sources): predictions "
    "for the program do not hold for this run; please report it"
)
TIMES = ("issued_s", "started_s", "ended_s")
ACTIVITY_ORDER = [(name, "ascending") for name in ("epoch", "step", "point", "phase", "name", "rank", "peer")]


def write_counts(folder: Path, rank: int, counts: Mapping[str, Mapping[tuple[int, int], list[int]]]) -> None:
    """Write a rank's payload by (op id, target), for each of ``PHASES``."""
    table = {phase: [[*key, *value] for key, value in counts[phase].items()] for phase in counts}
    write_atomically(folder / f"rank-{rank}.traffic.json", json.dumps(table))


def read_counts(folder: Path, ranks: int, phase: str) -> Pairs:
    """Read all ranks' counts of one phase; a rank that did not write them has none."""
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
    memory: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    ended: EarlyStop | None = None,
) -> Result:
    """Write trace, ops, traffic, batches (of a mini-batch run), activity (policies' decisions, if any) and
    ``result.json``, then seal the files that a replay reads. A failed run gets the same files, as far as it ran.
    ``memory``: fields of the result; ``notes`` qualify its numbers; ``ended``: why it trained fewer epochs than the
    plan has."""
    run, program, ranks = RunDirectory(plan.root), plan.program, plan.ranks
    whole = status == "ok"  # else ranks have not written all their counts and readings, or those of other epochs
    trace = merge_trace(plan.trace, program)
    counts = {phase: read_counts(plan.trace, ranks, phase) for phase in PHASES}
    write_table(trace, run.trace)
    write_table(ops_table(program), run.ops)
    write_table(traffic_table(counts["total"]), run.traffic)
    batches: pa.Table | None = None
    elsewhere: list[str] = []
    if draws_batches(program):
        losses, origins = (merged_records(plan.trace, kind) for kind in ("losses", "taken"))
        batches = batch_table(program, trace, losses, origins)
        write_table(batches, run.batches)
        other = batches_that_differ(batches, batch_table(program, trace)) if whole else 0
        elsewhere = [OTHER_ROWS.format(other)] if other else []
    if decisions_in(program):
        write_table(merged_records(plan.trace, "activity").sort_by(ACTIVITY_ORDER), run.activity)
    columns = Columns.of(trace, program)
    windows = epoch_windows(columns)
    seconds = (windows[:, 1] - windows[:, 0]).tolist()
    counted = payload_epochs(len(seconds), program.calendar)
    if ended is not None:  # its last epoch sent as much as those before, which was counted
        counted = range(counted.start, len(seconds))
    kinds = kinds_among(program.calendar, counted)
    # from the first issue of the run to its last end, evaluations included
    span = (pc.min(trace["issued_s"]).as_py(), pc.max(trace["ended_s"]).as_py())
    energy = energy_figures(plan.trace, ranks, span, windows) if whole else []
    loss = None if history is None else [history.losses[epoch] for epoch in sorted(history.losses)]
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
        epochs=plan.epochs if ended is None else ended.epoch,
        versions=versions(),
        environment={**environment(), **(facts or {})},
        epoch_s=seconds,
        epoch_s_median=typical_s(seconds, program.calendar) if seconds else None,
        epoch_kinds=described_kinds(seconds, program.calendar),
        per_rank=rank_times(columns, ranks, program.calendar) if seconds else [],
        stages=_stage_times(program, columns, seconds),
        payload_epochs=(counted[0], counted[-1]) if counted else None,
        traffic=traffic_by_rank(program, columns.table, counted) if whole else None,
        bytes_sent=mean_matrix(counts[TOLD], program, ranks, 1, kinds) if whole else [],
        bytes_sent_first_epoch=pair_matrix(counts[FIRST], program, ranks, 1) if whole else [],
        messages=mean_matrix(counts[TOLD], program, ranks, 0, kinds) if whole else [],
        collective_bytes=per_rank(columns, "collective_bytes", ranks, kinds),
        control_bytes=per_rank(columns, "control_bytes", ranks, kinds),
        buffer_bytes=buffer_bytes(program),
        **(memory or {}),
        energy_J=sum_of(energy, "device", "total_J"),
        energy=energy,
        halo_rows=halo_rows(program),
        input_rows=None if batches is None else input_rows(batches),
        loss=loss or None,
        accuracy=None if history is None else history.accuracy(),
        evaluation=_evaluation_cost(plan, trace) if whole else None,
        early_stop=ended,
        accuracy_metric="micro_f1" if plan.multilabel else "accuracy",
        synthetic=list(plan.synthetic),
        dropped_edges=plan.dropped_edges,
        notes=[*plan.notes, *notes, *elsewhere],
    )
    write_result(result, run.result)
    seal_folder(run.root, run.recorded)
    return result


def _stage_times(program: Program, columns: Columns, epoch_s: Sequence[float]) -> StageTimes | None:
    if not epoch_s:
        return None
    lasted, whole_s = columns.ended - columns.issued, typical_s(epoch_s, program.calendar)
    return stage_times(program, columns.rank, columns.epoch, columns.table["op_id"], lasted, whole_s)


def _evaluation_cost(plan: RunPlan, trace: pa.Table) -> EvaluationCost | None:
    """What an evaluation between epochs would have cost, if it reads other rows than training and none took place."""
    if plan.train["eval_every"] or not any(policy.evaluates_apart for policy in plan.policies.values()):
        return None
    columns = {name: trace[name].to_numpy() for name in ("epoch", "step", "issued_s", "ended_s")}
    return EvaluationCost(evaluate_s=evaluation_s(columns), drain_s=None)


def write_failed(plan: RunPlan, message: str) -> None:
    """Write ``result.json`` of a failed run whose tables cannot be written."""
    failed = Result(
        backend="executor",
        status="failed",
        message=message,
        name=plan.name,
        digest=None,
        program_digest=plan.digest,
        seed=plan.seed,
        ranks=plan.ranks,
        hosts=len(set(plan.program.hosts)),
        epochs=plan.epochs,
        versions=versions(),
        environment=environment(),
        epoch_s=[],
        epoch_s_median=None,
    )
    write_result(failed, RunDirectory(plan.root).result)


def merge_trace(folder: Path, program: Program) -> pa.Table:
    """Merge the traces of all ranks in ``folder`` into one table, sorted by (rank, epoch, issue).

    Collectives start with their last member. In a resumed run, each epoch comes from the last start that trained it,
    and the times of each start follow those of the previous one.
    """
    parts: dict[int, list[tuple[pa.Table, int]]] = {}
    for _, number, table, start in read_parts(folder, "", TRACE_SCHEMA):
        parts.setdefault(number, []).append((table, start))
    kept = [{name: TRACE_SCHEMA.empty_table()[name].to_numpy() for name in TRACE_SCHEMA.names}]
    shift = 0.0
    for number in sorted(parts):
        # a start that broke off before it wrote anything takes no epoch from the ones before
        later = [start for after in parts if after > number for table, start in parts[after] if len(table)]
        latest = shift
        for table, _ in parts[number]:
            rows = table["epoch"].to_numpy() < min(later, default=LATEST)
            columns = {name: table[name].to_numpy()[rows] for name in TRACE_SCHEMA.names}
            columns |= {name: columns[name] + shift for name in TIMES}
            latest = max(latest, columns["ended_s"].max(initial=0.0))
            kept.append(columns)
        shift = latest
    joined = {name: np.concatenate([columns[name] for columns in kept]) for name in TRACE_SCHEMA.names}
    joined["started_s"] = collective_starts(program, joined)
    rows = np.lexsort((joined["op_id"], joined["issued_s"], joined["epoch"], joined["rank"]))
    return pa.table({name: column[rows] for name, column in joined.items()}, schema=TRACE_SCHEMA)


def collective_starts(program: Program, trace: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return when the work of each op began: for a collective the latest issue of its group, else as it was noted.

    A member may finish before the last one issues the op (the root of a broadcast): its start is then its end.
    """
    teams = np.full((len(program.ops), program.ranks), -1, dtype=np.int64)  # -1: the op has no group
    for number, (_, op) in enumerate(program.ops):
        group = program.group_of(op)
        if op.kind in GROUP_KINDS and group is not None:
            teams[number] = group_ids(program, group.members)
    op_id, issued = trace["op_id"], trace["issued_s"]
    team = teams[op_id, trace["rank"]]
    starts = trace["started_s"].copy()
    chosen = np.flatnonzero(team >= 0)
    if not len(chosen):
        return starts
    keys = np.stack([trace["epoch"][chosen], trace["step"][chosen], op_id[chosen], team[chosen]])
    _, inverse = np.unique(keys, axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    latest = np.full(int(inverse.max()) + 1, -np.inf)
    np.maximum.at(latest, inverse, issued[chosen])
    starts[chosen] = np.minimum(latest[inverse], trace["ended_s"][chosen])
    return starts


def traffic_table(pairs: Pairs) -> pa.Table:
    """Build the table of payload by op and rank pair (:data:`simgnn.record.trace.TRAFFIC_SCHEMA`)."""
    rows = sorted(
        (op_id, source, target, messages, nbytes)
        for source, counted in pairs.items()
        for (op_id, target), (messages, nbytes) in counted.items()
    )
    columns: list[tuple[int, ...]] = list(zip(*rows, strict=True)) or [() for _ in TRAFFIC_SCHEMA]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, TRAFFIC_SCHEMA, strict=True)], schema=TRAFFIC_SCHEMA)


def pair_matrix(pairs: Pairs, program: Program, ranks: int, what: int, only: str | None = None) -> list[list[int]]:
    """Sum messages (``what`` = 0) or payload bytes (1) of training ops by [source, target], without control ops.
    ``only``: the template of these ops; None: of all."""
    matrix = [[0] * ranks for _ in range(ranks)]
    for source, counted in pairs.items():
        for (op_id, target), numbers in counted.items():
            template, op = program.ops[op_id]
            control = op.transfer is not None and op.transfer.control
            chosen = not program.evaluates(template) if only is None else template == only
            if chosen and not control:
                matrix[source][target] += numbers[what]
    return matrix


def mean_matrix(pairs: Pairs, program: Program, ranks: int, what: int, kinds: Sequence[Alike]) -> list[list[float]]:
    """:func:`pair_matrix` of payload counted in several epochs: the mean over a period of that of each kind of epoch;
    zeros without an epoch."""
    means = np.zeros((ranks, ranks))
    for alike in kinds:
        # each of several kinds has a template of its own; the only epoch of a run has that of first epochs
        matrix = pair_matrix(pairs, program, ranks, what, None if len(kinds) == 1 else alike.template)
        means += alike.share * (np.array(matrix) / len(alike.epochs))
    found: list[list[float]] = means.tolist()
    return found
