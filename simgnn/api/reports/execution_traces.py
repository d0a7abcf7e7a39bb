"""Writes the program of a prediction or run, with its times, as execution traces of MLCommons Chakra."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import simgnn
from simgnn.errors import ConfigError
from simgnn.outputs import check_output_folder
from simgnn.program.storage import load_program
from simgnn.record.activity import decisions_in, decisions_of, read_activity
from simgnn.record.epoch_kinds import kinds_of
from simgnn.record.result import read_result
from simgnn.record.rundir import TRACE_SCHEMA, RunDirectory, read_table
from simgnn.report.chakra import rank_nodes, write_chakra
from simgnn.sim.limited_by.find import typical_epoch


@dataclass(frozen=True)
class ExecutionTraces:
    """Traces that were written: a file for each rank, of ``epoch`` (from 1); ``nodes``: in all."""

    files: tuple[Path, ...]
    epoch: int
    nodes: int


def export_traces(directory: Path, out: Path, epoch: int | None = None) -> ExecutionTraces:
    """Write the traces of one epoch of a run directory to the new folder ``out``. ``epoch``: from 1; default: one that
    took about the median time. Raises :class:`ConfigError` for a directory without times, and for a prediction whose
    sizes are decided while training, of which only a run has a record."""
    check_output_folder(out, "--out")
    if out.is_dir() and any(out.iterdir()):
        raise ConfigError(f"--out: got {out}, which is not empty; expected a folder that is new or empty: name another")
    run = RunDirectory(directory)
    result = read_result(run.result)
    if result.status != "ok" or not run.trace.is_file():
        raise ConfigError(f"export: got {directory}, which has no times (status '{result.status}'); expected a trace")
    program = load_program(run.plan)
    decided = {}
    if decisions_in(program):
        if not run.activity.is_file():
            raise ConfigError(
                f"export: got {directory}, a prediction whose messages depend on decisions made while training; "
                "expected the run that recorded them: export that one"
            )
        decided = decisions_of(read_activity(run.activity), program.ranks, program.calendar.steps)
    chosen = epoch - 1 if epoch is not None else typical_epoch(
        result.epoch_s, kinds_of(program.calendar, len(result.epoch_s))[-1].epochs
    )  # fmt: skip
    table = read_table(run.trace, TRACE_SCHEMA)
    columns = {name: table.column(name).to_numpy() for name in TRACE_SCHEMA.names}
    nodes = rank_nodes(program, columns, chosen, decided)
    facts = {
        "written_by": f"simgnn {simgnn.__version__}",
        "experiment": result.name,
        "times": "predicted" if result.backend == "sim" else "measured",
        "hardware": result.hardware or "",
        "program_digest": result.program_digest,
        "epoch": str(chosen + 1),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        files = write_chakra(nodes, temporary, facts)
        if out.is_dir():
            out.rmdir()
        os.replace(temporary, out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return ExecutionTraces(tuple(out / file.name for file in files), chosen + 1, sum(map(len, nodes)))
