"""Metrics as formulas over a trace.

Of an op that is no group call: compute = ended - issued. Of a group call (exchange, fetch, broadcast, allreduce,
allgather, barrier): wait = started - issued, where a group call starts with the latest issue of its group; transfer =
ended - started. Copies between host and device and peer reads count as transfer, as do copies within a rank on a stream
that makes group calls; other such copies are work of the rank.
"""

from typing import TYPE_CHECKING

from simgnn.program.kinds import COMPUTE_KINDS, GROUP_KINDS
from simgnn.record.rundir import RunDirectory, read_table

if TYPE_CHECKING:
    import pandas as pd


def op_times(run: RunDirectory) -> "pd.DataFrame":
    """Trace of a run with the op's name and kind, and its seconds of ``compute``, ``wait`` and ``transfer``."""
    trace: pd.DataFrame = read_table(run.trace).to_pandas()
    ops = read_table(run.ops).to_pandas()
    frame: pd.DataFrame = trace.merge(ops[["op_id", "template", "op", "kind", "stream", "layer", "phase"]], on="op_id")
    computes = frame["kind"].isin([kind.value for kind in COMPUTE_KINDS])
    # rows picked on a stream that calls no other rank are work: it neither waits for a peer nor uses a link
    calling = set(ops.loc[ops["kind"].isin([kind.value for kind in GROUP_KINDS]), "stream"])
    computes |= (frame["kind"] == "copy") & ~frame["stream"].isin(calling)
    frame["compute"] = (frame["ended_s"] - frame["issued_s"]).where(computes, 0.0)
    frame["wait"] = (frame["started_s"] - frame["issued_s"]).where(~computes, 0.0)
    frame["transfer"] = (frame["ended_s"] - frame["started_s"]).where(~computes, 0.0)
    return frame
