"""Compare a prediction with a run: join two traces on (rank, epoch, step, op_id), and list what limits the comparison.

Times of an op (:func:`op_times`): an op of one rank alone has compute = ended - issued. A group call (exchange, fetch,
broadcast, allreduce, allgather, barrier) starts when the last rank of its group issues it; it has wait = started -
issued and transfer = ended - started. So have copies between host and device, reads from a peer, and copies within a
rank on a stream that also makes group calls. Other copies count as compute.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simgnn.errors import ConfigError
from simgnn.outside import outside_data
from simgnn.program.kinds import COMPUTE_KINDS, GROUP_KINDS
from simgnn.record.batches import BATCHES_SCHEMA, batches_that_differ
from simgnn.record.energy import EnergyFigure, sum_of, why_unknown
from simgnn.record.result import Result, read_result
from simgnn.record.rundir import OPS_SCHEMA, TRACE_SCHEMA, TRAFFIC_SCHEMA, RunDirectory, read_table
from simgnn.tomlfile import load_toml

if TYPE_CHECKING:
    # pandas: loaded when runs are compared op by op
    import pandas as pd

PARTS = ("compute", "wait", "transfer")
KEYS = ["rank", "epoch", "step", "op_id"]
"""Columns that identify a row of a trace."""
SIDES = ("predicted", "measured")
TOP = 10
LAST = (
    "{}: an earlier version wrote the result; as the runs are of unequal length, payload is compared by its last epoch"
)
UNMATCHED = "{} ops of these epochs ran on one side only and are left out: the two decided differently what to send"
PLACEMENT = (
    ("cluster", "hosts", "hosts"),
    ("cluster", "ranks_per_host", "ranks per host"),
    ("hardware", "threads_per_rank", "threads per rank"),
)
"""(section, key, words) of the experiment settings that determine the placement of ranks."""


@dataclass(frozen=True)
class Difference:
    """Seconds of one quantity in the prediction and in the measurement. For two predictions, or two runs,
    ``predicted_s`` is that of the first directory."""

    name: str
    predicted_s: float
    measured_s: float

    @property
    def difference_s(self) -> float:
        """Predicted minus measured seconds."""
        return self.predicted_s - self.measured_s

    @property
    def error(self) -> float | None:
        """Relative error (predicted - measured) / measured; None if the measured time is zero."""
        return self.difference_s / self.measured_s if self.measured_s > 0 else None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "difference_s": self.difference_s, "error": self.error}


@dataclass(frozen=True)
class OpDifference:
    """Seconds of one op, or of all ops of one kind (``op`` = ""), in a mean epoch, averaged over ranks."""

    op: str
    kind: str
    compute: Difference
    wait: Difference
    transfer: Difference

    @property
    def whole(self) -> Difference:
        """Compute, wait and transfer together."""
        parts = (self.compute, self.wait, self.transfer)
        return Difference(self.op, sum(part.predicted_s for part in parts), sum(part.measured_s for part in parts))


@dataclass(frozen=True)
class Communication:
    """Seconds of communication in a typical epoch, the mean over ranks of what both results state of each
    (:class:`~simgnn.record.result.RankTimes`). ``total``: waiting for other ranks and transfers together;
    ``wait`` and ``transfer``: both apart, whose typical values need not add up to it; ``exposed``: the part of it
    during which no op of the rank computes."""

    total: Difference
    wait: Difference
    transfer: Difference
    exposed: Difference

    @classmethod
    def of(cls, predicted: Result, measured: Result) -> "Communication | None":
        """Return None if a result lacks the times of its ranks."""
        if not (predicted.per_rank and measured.per_rank):
            return None

        def mean(name: str, field: str) -> Difference:
            sides = ([getattr(rank, field) for rank in result.per_rank] for result in (predicted, measured))
            return Difference(name, *(float(np.mean(seconds)) for seconds in sides))

        return cls(
            mean("total", "all_communication_s"),
            mean("wait", "wait_s"),
            mean("transfer", "comm_total_s"),
            mean("exposed", "comm_exposed_s"),
        )

    @property
    def exposed_shares(self) -> tuple[float | None, float | None]:
        """The exposed part as a share of the total, predicted and measured; None where nothing is communicated."""
        pairs = zip((self.exposed.predicted_s, self.exposed.measured_s),
                    (self.total.predicted_s, self.total.measured_s), strict=True)  # fmt: skip
        predicted, measured = (exposed / total if total > 0 else None for exposed, total in pairs)
        return predicted, measured

    def as_dict(self) -> dict[str, Any]:
        parts = (self.total, self.wait, self.transfer, self.exposed)
        shares = dict(zip(("predicted_exposed_share", "measured_exposed_share"), self.exposed_shares, strict=True))
        return {**{part.name: part.as_dict() for part in parts}, **shares}


@dataclass(frozen=True)
class EnergyDifference:
    """Mean energy of a training epoch, summed over the devices that ranks compute on. If a value is None (unknown),
    ``predicted_unknown`` or ``measured_unknown`` states the reason."""

    predicted_J: float | None  # noqa: N815  the unit is part of the name
    measured_J: float | None  # noqa: N815
    predicted_unknown: str
    measured_unknown: str

    @classmethod
    def of(cls, predicted: Sequence[EnergyFigure], measured: Sequence[EnergyFigure]) -> "EnergyDifference":
        return cls(
            sum_of(predicted, "device", "epoch_mean_J"),
            sum_of(measured, "device", "epoch_mean_J"),
            why_unknown(predicted, "device"),
            why_unknown(measured, "device"),
        )

    @property
    def error(self) -> float | None:
        """Relative error (predicted - measured) / measured; None if a value is unknown or measured energy is zero."""
        if self.predicted_J is None or not self.measured_J:
            return None
        return (self.predicted_J - self.measured_J) / self.measured_J

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "error": self.error}


@dataclass(frozen=True)
class Comparison:
    """Errors of the epoch time, of its parts and of each op kind; the ops with the largest absolute differences;
    differences in communication, traffic and energy.

    ``ops_unmatched``: ops of the compared epochs that ran on one side only. ``batches_differ``: mini-batches whose rows
    or sources of rows differ, or that only one side recorded (None: neither side has mini-batches).
    """

    predicted: Result
    measured: Result
    epochs: int
    epoch: Difference
    epoch_spread_s: float
    parts: tuple[Difference, ...]
    kinds: tuple[OpDifference, ...]
    ops: tuple[OpDifference, ...]
    top: tuple[Difference, ...]
    bytes_differ: int
    messages_differ: int
    ops_unmatched: int
    energy: EnergyDifference
    communication: Communication | None = None
    batches_differ: int | None = None
    cautions: tuple[str, ...] = ()

    @property
    def sides(self) -> tuple[str, str]:
        """Names of the two directories: "predicted" and "measured"; for two runs, "measured A" and "measured B"."""
        return _sides(self.predicted, self.measured)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval in seconds that contains 90 % of the predicted epochs; None if the prediction has none, or if it is
        not compared with a measurement."""
        return self.predicted.epoch_s_interval if self.predicted.backend != self.measured.backend else None

    @property
    def inside(self) -> bool | None:
        """Whether the measured median epoch time is in the predicted interval."""
        if self.interval is None:
            return None
        return self.interval[0] <= self.epoch.measured_s <= self.interval[1]

    def as_dict(self) -> dict[str, Any]:
        """Return the values for ``--json``; for two directories of one kind with the keys ``first`` and ``second``."""
        table = {
            "backends": [self.predicted.backend, self.measured.backend],
            "cautions": list(self.cautions),
            "program_digest": self.predicted.program_digest,
            "epochs_compared": self.epochs,
            "epoch": self.epoch.as_dict(),
            "measured_epoch_spread_s": self.epoch_spread_s,
            "predicted_interval_s": None if self.interval is None else list(self.interval),
            "measured_median_inside": self.inside,
            "parts": [part.as_dict() for part in self.parts],
            "kinds": [
                {"kind": kind.kind, **{part: getattr(kind, part).as_dict() for part in PARTS}} for kind in self.kinds
            ],
            "top": [op.as_dict() for op in self.top],
            "bytes_differ": self.bytes_differ,
            "messages_differ": self.messages_differ,
            "ops_unmatched": self.ops_unmatched,
            "batches_differ": self.batches_differ,
            "energy_of_an_epoch": self.energy.as_dict(),
            "communication_of_an_epoch": None if self.communication is None else self.communication.as_dict(),
        }
        return table if self.predicted.backend != self.measured.backend else _of_one_kind(table)


def compare_runs(predicted: Path, measured: Path) -> Comparison:
    """Compare two run directories of one program: a prediction with a run, two predictions, or two runs.

    Times are those of the steady epochs in both traces (all but the first, if there are several). Traces do not contain
    the predicted waits that jitter causes, so these waits are added from the result, op by op. Raises
    :class:`ConfigError` when a directory holds no finished run or the programs differ.
    """
    first, second = RunDirectory(predicted), RunDirectory(measured)
    one, two = read_result(first.result), read_result(second.result)
    if one.backend == "executor" and two.backend == "sim":
        raise ConfigError(
            f"{predicted} is a run and {measured} is a prediction. Give the prediction first: "
            f"simgnn compare {measured} {predicted}"
        )
    if one.program_digest != two.program_digest:
        raise ConfigError(
            f"{predicted} and {measured} hold different programs ({one.program_digest[:12]} and "
            f"{two.program_digest[:12]}), and ops are compared one by one: predict and run the same experiment on the "
            "same partition. To set two systems side by side, put their results in one table: "
            "pandas.concat([one.table(), two.table()]) of simgnn.simulate and simgnn.run."
        )
    for path, result in ((predicted, one), (measured, two)):
        if result.status == "failed" or not result.epoch_s:
            raise ConfigError(f"{path} holds no finished run (status '{result.status}'): {result.message}")
    joined, epochs, unmatched, trained = _join(first, second)
    columns = [f"{part}_{side}" for part in PARTS for side in SIDES]
    per_op = joined.groupby(["op", "kind"], sort=True)[columns].sum() / (epochs * one.ranks)
    for side, result in zip(SIDES, (one, two), strict=True):
        if result.jitter is not None:
            added = per_op.index.get_level_values("op").map(result.jitter.wait_s).to_numpy(dtype=float)
            per_op[f"wait_{side}"] = (per_op[f"wait_{side}"] + np.nan_to_num(added)).clip(lower=0.0)
    rows: list[dict[Any, Any]] = per_op.reset_index().to_dict("records")
    ops = tuple(OpDifference(row["op"], row["kind"], *(_part(row, part) for part in PARTS)) for row in rows)
    steady = _within_kinds(two, joined)

    def differ(column: str, field: str) -> int:
        """Difference in traffic over the whole run; between runs of unequal length, over a mean epoch."""
        if one.epochs == two.epochs:
            return _traffic_differs(first, second, column, trained)
        return ceil(float(np.abs(np.asarray(getattr(one, field)) - np.asarray(getattr(two, field))).sum()))

    return Comparison(
        predicted=one,
        measured=two,
        epochs=epochs,
        epoch=Difference("epoch", _median(one), _median(two)),
        epoch_spread_s=float(np.subtract(*np.percentile(steady, [75, 25]))),
        parts=tuple(_difference(part, per_op, part) for part in PARTS),
        kinds=tuple(
            OpDifference("", str(kind), *(_difference(str(kind), alike, part) for part in PARTS))
            for kind, alike in per_op.groupby(level="kind", sort=True)
        ),
        ops=ops,
        top=tuple(sorted((op.whole for op in ops), key=lambda op: (-abs(op.difference_s), op.name))[:TOP]),
        bytes_differ=differ("bytes", "bytes_sent"),
        messages_differ=differ("messages", "messages"),
        ops_unmatched=unmatched,
        energy=EnergyDifference.of(one.energy, two.energy),
        communication=Communication.of(one, two),
        batches_differ=_batches_differ(first, second),
        cautions=(
            *([UNMATCHED.format(unmatched)] if unmatched else []),
            *_cautions((first, second), (one, two)),
        ),
    )


def op_times(run: RunDirectory) -> "pd.DataFrame":
    """Return :func:`timed_ops` of a run directory. Raises :class:`ConfigError` for tables that are damaged."""
    ops = read_table(run.ops, OPS_SCHEMA)
    if len(pc.unique(ops["op_id"])) < len(ops):
        raise ConfigError(f"{run.ops}: several rows have the same op_id; simulate or run again")
    return timed_ops(read_table(run.trace, TRACE_SCHEMA), ops)


def timed_ops(trace: pa.Table, described: pa.Table) -> "pd.DataFrame":
    """Return a trace with op names and kinds (``described``: the table of ops), and the seconds of ``compute``,
    ``wait`` and ``transfer``."""
    ops: pd.DataFrame = described.to_pandas()
    columns = ["op_id", "template", "op", "kind", "stream", "layer", "phase"]
    frame: pd.DataFrame = trace.to_pandas().merge(ops[columns], on="op_id")
    computes = frame["kind"].isin([kind.value for kind in COMPUTE_KINDS])
    calling = set(ops.loc[ops["kind"].isin([kind.value for kind in GROUP_KINDS]), "stream"])
    computes |= (frame["kind"] == "copy") & ~frame["stream"].isin(calling)
    frame["compute"] = (frame["ended_s"] - frame["issued_s"]).where(computes, 0.0)
    frame["wait"] = (frame["started_s"] - frame["issued_s"]).where(~computes, 0.0)
    frame["transfer"] = (frame["ended_s"] - frame["started_s"]).where(~computes, 0.0)
    return frame


def _sides(first: Result, second: Result) -> tuple[str, str]:
    words = [{"sim": "predicted", "executor": "measured"}[result.backend] for result in (first, second)]
    return (words[0], words[1]) if words[0] != words[1] else (f"{words[0]} A", f"{words[1]} B")


def _of_one_kind(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key.replace("predicted", "first").replace("measured", "second"): _of_one_kind(entry)
            for key, entry in value.items()
        }
    return [_of_one_kind(entry) for entry in value] if isinstance(value, list) else value


def _join(first: RunDirectory, second: RunDirectory) -> tuple["pd.DataFrame", int, int, set[int]]:
    """Join the ops of the compared epochs. Returns times of both sides, number of epochs, number of unmatched ops, and
    the ids of all ops that either side ran in training."""
    # pandas: loaded when runs are compared op by op
    import pandas as pd

    sides = [frame[frame["step"] >= 0] for frame in map(op_times, (first, second))]
    for run, side in zip((first, second), sides, strict=True):
        if side.duplicated(KEYS).any():
            raise ConfigError(f"{run.trace}: several rows have the same {', '.join(KEYS)}; simulate or run again")
    joined = sides[0].merge(sides[1][[*KEYS, *PARTS]], on=KEYS, suffixes=("_predicted", "_measured"), validate="1:1")
    if joined.empty:
        raise ConfigError(
            f"{first.root} and {second.root} have no epoch in common; compare runs with overlapping epochs"
        )
    if joined["epoch"].nunique() > 1:
        joined = joined[joined["epoch"] > joined["epoch"].min()]
    assert isinstance(joined, pd.DataFrame)
    epochs = joined["epoch"].unique()
    ran = sum(int(frame["epoch"].isin(epochs).sum()) for frame in sides)
    trained = {int(op_id) for side in sides for op_id in side["op_id"].unique()}
    return joined, len(epochs), ran - 2 * len(joined), trained


def _difference(name: str, rows: "pd.DataFrame", part: str) -> Difference:
    return Difference(name, float(rows[f"{part}_predicted"].sum()), float(rows[f"{part}_measured"].sum()))


def _part(row: Mapping[Any, Any], part: str) -> Difference:
    return Difference(part, *(float(row[f"{part}_{side}"]) for side in SIDES))


def _within_kinds(result: Result, joined: "pd.DataFrame") -> list[float]:
    """Return the times of the epochs after the first; where epochs differ, how far each is from the median of its kind
    (``joined``: the ops of these epochs, with their template)."""
    if not result.epoch_kinds:
        return result.epoch_s[1:] or result.epoch_s
    kinds = joined.groupby("epoch")["template"].first()
    found: list[float] = []
    for _, alike in kinds.groupby(kinds):
        times = np.array(result.epoch_s)[alike.index.to_numpy()]
        found += (times - np.median(times)).tolist()
    return found


def _median(result: Result) -> float:
    if result.epoch_s_median is not None:
        return result.epoch_s_median
    return float(np.median(result.epoch_s[1:] or result.epoch_s))


def _traffic_differs(first: RunDirectory, second: RunDirectory, column: str, trained: set[int]) -> int:
    """Sum of absolute differences in traffic over rank pairs and the ops ``trained``, which are those of training."""
    tables = []
    for run in (first, second):
        table: pd.DataFrame = read_table(run.traffic, TRAFFIC_SCHEMA).to_pandas()
        tables.append(table[table["op_id"].isin(trained)].set_index(["op_id", "source", "target"])[column])
    return int(tables[0].sub(tables[1], fill_value=0).abs().sum())


def _batches_differ(first: RunDirectory, second: RunDirectory) -> int | None:
    lacking = [run for run in (first, second) if not run.batches.is_file()]
    if len(lacking) == 2:
        return None
    if lacking:
        raise ConfigError(
            f"{lacking[0].batches}: file not found, but the other directory has a record of mini-batches. "
            "Simulate or run again."
        )
    tables = []
    for run in (first, second):
        with outside_data(run.batches, "table of batches", remedy="simulate or run again", error=ConfigError):
            tables.append(read_table(run.batches).cast(BATCHES_SCHEMA))
    return batches_that_differ(*tables)


def _cautions(runs: tuple[RunDirectory, RunDirectory], results: tuple[Result, Result]) -> list[str]:
    """Warnings to read before trusting the comparison, one line each."""
    found = []
    named = list(zip(_sides(*results), results, strict=True))
    for side, result in named:
        if result.backend == "sim":
            found += [f"{side}: {text}" for text in result.qualifications()]
    if results[0].epochs != results[1].epochs:
        found += [LAST.format(side) for side, result in named if result.payload_epochs is None]
    if {result.backend for result in results} == {"sim", "executor"}:
        found += _machines_differ(*(_table(run.hardware) for run in runs))
        there, here = (_table(run.experiment) for run in runs)
        for section, key, words in PLACEMENT:
            values = [table.get(section, {}).get(key) for table in (there, here)]
            if values[0] != values[1]:
                found.append(f"ranks are placed differently: {words} {values[0]} predicted, {values[1]} in the run")
    return found


def _machines_differ(predicted: Mapping[str, Any], measured: Mapping[str, Any]) -> list[str]:
    there, here = (table.get("meta", {}).get("name") for table in (predicted, measured))
    if there is None or here is None:
        which = "prediction" if there is None else "run"
        return [f"the {which}'s directory holds no hardware profile: whether both are of one machine is not known"]
    if there != here:
        return [f"predicted for the hardware profile '{there}', but the run's is '{here}': another machine"]
    if predicted != measured:
        return [f"two hardware profiles named '{there}': predicted with other numbers than the run's profile holds"]
    return []


def _table(path: Path) -> Mapping[str, Any]:
    return load_toml(path) if path.is_file() else {}
