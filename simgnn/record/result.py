"""``result.json``: the results of a simulation or run, with the same fields. SI units; null means not measured."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

import simgnn
from simgnn.errors import ConfigError
from simgnn.outside import read_text
from simgnn.record.energy import EnergyFigure
from simgnn.record.limited_by import LimitedBy
from simgnn.record.memory import MemoryPeak
from simgnn.record.stages import StageTimes
from simgnn.record.traffic import Traffic
from simgnn.schema_faults import sentences
from simgnn.tomlfile import write_atomically

SCHEMA_VERSION = 1
LIBRARIES = ("numpy", "scipy", "numba", "simpy", "torch", "dgl", "pymetis", "pyarrow")
"""Libraries whose versions can change results."""
VARIABLES = ("OMP_", "MKL_", "NUMBA_", "NCCL_", "GLOO_", "TORCH_", "CUDA_", "MALLOC_", "SIMGNN_")
"""Prefixes of environment variables that influence times."""
SUPERSEDED = frozenset({"energy_by_device_J", "energy_by_host_J"})
"""Fields of earlier versions, whose results stay readable: ``energy`` replaces them."""
WEIGHTED_SUMS = "weighted sums"
"""What predictions for graphs with edge weights name in ``assumed``."""
STATED_DECISIONS = "decisions that options state"
"""What predictions name in ``assumed`` if options, not a recorded run, say how much is sent."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RankTimes(_Table):
    """Seconds of one rank, medians over the training epochs after the first.

    ``compute_s``: ops that do not communicate. ``wait_s``: from the issue of a group op to the latest issue in its
    group. ``comm_total_s``: from start to end of communication ops. ``comm_exposed_s``: the part of waiting and
    transfer during which the rank computes nothing. ``communication_s``: waiting and transfers of an epoch together,
    of which the median differs from the sum of both medians; null in results of earlier versions.
    """

    compute_s: float
    wait_s: float
    comm_total_s: float
    comm_exposed_s: float
    communication_s: float | None = None

    @property
    def all_communication_s(self) -> float:
        """Seconds of waiting and transfers together; never below ``comm_exposed_s`` but in earlier results."""
        return self.wait_s + self.comm_total_s if self.communication_s is None else self.communication_s


class JitterCorrection(_Table):
    """Correction for jitter: a synchronous step waits for its slowest rank, which a deterministic run misses.

    ``epoch_s_median``: of the deterministic run, without jitter; ``added_s``: what jitter adds to a median epoch;
    ``wait_s``: the part of it that is waiting at each op, mean over ranks. ``epoch_s`` and the ranks' waits already
    include it, the trace does not. ``interval_parts``: relative standard deviations behind ``epoch_s_interval``.
    """

    epoch_s_median: float
    added_s: float
    wait_s: dict[str, float]
    interval_parts: dict[str, float]


class EpochKind(_Table):
    """Epochs of one kind, in a run whose epochs differ. ``template``: what their ops are listed under;
    ``epochs_of_period`` of every ``period`` epochs are such ones. ``epochs``: their number in the run after its first
    epoch, ``epoch_s_median``: the median of their times."""

    template: str
    epochs_of_period: int
    period: int
    epochs: int
    epoch_s_median: float


class Accuracy(_Table):
    """Accuracy after an epoch, or another metric that ``Result.accuracy_metric`` names."""

    epoch: int
    train: float | None
    validation: float | None
    test: float | None


class TimedAccuracy(Accuracy):
    """Accuracy after an epoch, with the time: ``seconds`` since training began, without evaluations."""

    seconds: float


class EarlyStop(_Table):
    """Why a run ended before its last epoch: the validation accuracy did not improve any more.

    ``epoch``: the last trained epoch, from 1; ``best_epoch``, ``best_validation``: the best accuracy so far;
    ``evaluations``: evaluations after it, none of which was better.
    """

    epoch: int
    best_epoch: int
    best_validation: float
    evaluations: int

    def reason(self) -> str:
        return f"training ended after epoch {self.epoch}: {self.since()}"

    def since(self) -> str:
        """Say since when the accuracy has not improved."""
        return (
            f"none of the last {self.evaluations} evaluations was better than validation {self.best_validation:.4f} "
            f"after epoch {self.best_epoch} (train.patience)"
        )


class EvaluationCost(_Table):
    """What one evaluation between two epochs costs where it reads other rows than training, in seconds.
    ``evaluate_s``: the evaluation itself. ``drain_s``: how much longer the epoch around it takes, since late rows
    arrive before it begins and nothing travels behind it; null where no rows are late, and in a run, which evaluated
    after its last epoch only."""

    evaluate_s: float
    drain_s: float | None

    def reason(self) -> str:
        drained = "" if self.drain_s is None else f", and {1e3 * self.drain_s:.4g} ms until late rows have arrived"
        return (
            "evaluated after the last epoch only (train.eval_every = 0): an evaluation reads exact rows, which travel "
            f"for it alone, and one between two epochs costs {1e3 * self.evaluate_s:.4g} ms{drained}"
        )


class InputRows(_Table):
    """Number of input rows of all mini-batches: predicted, or counted by the ranks of a run where they moved the rows.

    ``local``: rows in the memory of a rank's host; ``hit``: rows of other hosts found in a cache of hot rows;
    ``pulled``: rows that other hosts sent for a batch. ``cached``: rows that other hosts sent to fill caches.
    """

    local: int
    hit: int
    pulled: int
    cached: int

    @property
    def hit_rate(self) -> float | None:
        """Share of the needed rows of other hosts that were found in caches; None where none was needed."""
        return self.hit / (self.hit + self.pulled) if self.hit + self.pulled else None


class HaloRows(_Table):
    """Where a layer takes the halo rows of all ranks from in an epoch between two refreshes: a cache on the ``device``,
    memory of the ``host`` that its ranks share, or (``sent``) their owners."""

    device: int
    host: int
    sent: int

    @property
    def hit_rate(self) -> float:
        """Share of halo rows that a cache has."""
        return (self.device + self.host) / (self.device + self.host + self.sent)


class DroppedEdges(_Table):
    """Edges that no rank holds, as the partitioner dropped halo rows: to suit the ranks' devices, or those of other
    hosts. ``by_rank``: in-edges of its own rows that each rank lacks; ``of``: edges of the graph; ``status``: how the
    choice ended (null: there was none, or not known); ``between_hosts``: those of ``by_rank`` that come from another
    host (null: there is one host)."""

    by_rank: tuple[int, ...]
    of: int
    status: str | None = None
    between_hosts: tuple[int, ...] | None = None

    def reason(self) -> str:
        """Say how many edges are dropped, and what that means for accuracies."""
        count = sum(self.by_rank)
        ended = "" if self.status is None else f", costs of ranks: {self.status}"
        if not count:
            return f"dropped edges: none{ended}"
        far = f", {sum(self.between_hosts):,} of them between hosts" if self.between_hosts is not None else ""
        share = f"{100 * count / max(self.of, 1):.3g} %"
        return (
            f"dropped edges: {count:,} of {self.of:,} ({share}{far}{ended}): the model is trained and "
            "evaluated on the graph without them, so that losses and accuracies are those of this smaller graph; "
            "`simgnn infer RUN` computes the scores on all edges"
        )


class Result(_Table):
    """The results of one simulation or run."""

    schema_version: int = SCHEMA_VERSION
    backend: Literal["sim", "executor"]
    status: Literal["ok", "oom", "failed"]
    message: str = ""
    name: str
    digest: str | None
    program_digest: str
    hardware: str | None = None
    seed: int
    ranks: int
    hosts: int
    epochs: int
    versions: dict[str, str] = {}
    environment: dict[str, Any] = {}
    epoch_s: list[float]
    epoch_s_median: float | None  # after the first epoch; where epochs differ, the mean over a period of medians
    epoch_kinds: list[EpochKind] = []  # where epochs differ, rarest first
    epoch_s_interval: tuple[float, float] | None = None  # 90 % of an epoch's distribution
    jitter: JitterCorrection | None = None
    limited_by: LimitedBy | None = None  # of a prediction that fits into memory
    per_rank: list[RankTimes] = []
    # first and last epoch, from 0, of those whose mean bytes and messages are recorded (simgnn.record.summary), of each
    # of `epoch_kinds` as often as in a period; null in results of earlier versions, which recorded the last epoch alone
    payload_epochs: tuple[int, int] | None = None
    traffic: Traffic | None = None  # bytes between ranks, by one definition for all systems; null for a failed run
    bytes_sent: list[list[float]] = []  # [P][P] payload of messages, mean of payload_epochs
    bytes_sent_first_epoch: list[list[int]] = []
    collective_bytes: list[float] = []  # [P] tensors handed to collectives, mean of payload_epochs
    control_bytes: list[float] = []
    messages: list[list[float]] = []
    memory: list[MemoryPeak] = []  # of each device, and of each host beside its GPUs: all that is resident
    buffer_bytes: list[int] = []  # [P] largest sum of live buffers at bounds of decisions
    # [P] peak of what is allocated, over the idle process; of a GPU: tensors on it; else blocks of a page or more, and
    # of smaller ones (objects of the run) what exceeds the idle process's room for them
    peak_memory_bytes: list[int] | None = None
    # [P] peak of what the device of each rank holds: on a CPU all but mappings, its own and shared ones
    device_memory_bytes: list[int] | None = None
    # [P] of mappings: the rank's own, and on the first rank of each host what its ranks share; null: none
    shared_memory_bytes: list[int] | None = None
    host_memory_bytes: list[int] | None = None  # [P] peak in host memory beside a GPU's
    resident_memory_bytes: list[int] | None = None  # [P] with what the allocator keeps
    idle_memory_bytes: list[int] | None = None  # [P] resident in a rank before it trains: no part of the others
    # of all devices that ranks compute on; null where one of them is not known
    energy_J: float | None = None  # noqa: N815  the unit is part of the name
    energy: list[EnergyFigure] = []  # by device, host and memory, with its source
    halo_rows: HaloRows | None = None  # of a layer whose halo rows are cached; null: there is none
    input_rows: InputRows | None = None  # of all mini-batches; null: there are none
    loss: list[float] | None = None
    accuracy: list[Accuracy] | None = None
    # what `accuracy` holds; micro_f1 where vertices have several labels
    accuracy_metric: Literal["accuracy", "micro_f1"] = "accuracy"
    evaluation: EvaluationCost | None = None  # where they read other rows than training, and none came between epochs
    early_stop: EarlyStop | None = None  # of a run that ended by train.patience; `epochs` then counts trained ones
    # of a prediction: what a recorded run reached, at the predicted ends of its epochs
    time_to_accuracy: list[TimedAccuracy] | None = None
    stages: StageTimes | None = None  # of an epoch with caches of halo rows; null: there are none
    dropped_edges: DroppedEdges | None = None  # by a partitioner that drops halo rows; null: it drops none
    extrapolated: list[str] = []
    # work that the hardware profile has no measurement of: other work stands in; WEIGHTED_SUMS, STATED_DECISIONS
    assumed: list[str] = []
    transferred: bool = False
    uncalibrated: bool = False
    synthetic: list[str] = []
    confidence: dict[str, str] = {}
    notes: list[str] = []

    @model_validator(mode="before")
    @classmethod
    def _without_superseded(cls, table: Any) -> Any:
        return {key: table[key] for key in table if key not in SUPERSEDED} if isinstance(table, dict) else table

    def qualifications(self) -> list[str]:
        """List the reasons why numbers are less reliable than measurements of the machine, one line each."""
        lines = [] if self.early_stop is None else [self.early_stop.reason()]
        if self.evaluation is not None:
            lines.append(self.evaluation.reason())
        if self.dropped_edges is not None:
            lines.append(self.dropped_edges.reason())
        if self.uncalibrated:
            lines.append(
                f"uncalibrated: '{self.hardware}' describes its machine by datasheets, publications and assumptions; "
                "nothing was measured there. Compare alternatives with it, but expect single times to be off by more "
                "than the documented errors (`simgnn calibrate` measures a machine)"
            )
        stood_in = [name for name in self.assumed if name not in (WEIGHTED_SUMS, STATED_DECISIONS)]
        if stood_in:
            lines.append(
                f"assumed: '{self.hardware}' has no measurement of {', '.join(stood_in)}: other work, or another "
                "machine's times scaled by clock and copy rate, stand in; run `simgnn calibrate` (without --quick)"
            )
        if WEIGHTED_SUMS in self.assumed:
            lines.append(
                f"assumed: {WEIGHTED_SUMS} take as long as plain sums and a pass that reads the weights; no machine's "
                "were measured"
            )
        if STATED_DECISIONS in self.assumed:
            lines.append(
                "assumed: how much is sent is what options of the experiment state, not what a run decided; record one "
                "and add --activity"
            )
        if self.extrapolated:
            names = ", ".join(self.extrapolated[:5]) + (", ..." if len(self.extrapolated) > 5 else "")
            lines.append(
                f"sizes beyond the calibration: {len(self.extrapolated)} ops are smaller or larger than what the "
                f"profile was measured with, so that their times are extrapolated: {names}"
            )
        if self.transferred:
            lines.append("transferred: the activity was recorded on another partition")
        if self.synthetic:
            lines.append(f"synthetic: {', '.join(self.synthetic)}")
        return lines + self.notes


def versions() -> dict[str, str]:
    """Versions of Python, simgnn and the installed ``LIBRARIES``. They are not part of a digest."""
    found = {"python": platform.python_version(), "simgnn": simgnn.__version__}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def environment() -> dict[str, Any]:
    """Host, processor, cores and the environment variables that influence times. They are not part of a digest."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.is_file() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": next(models, platform.machine()),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "variables": {key: value for key, value in sorted(os.environ.items()) if key.startswith(VARIABLES)},
    }


def write_result(result: Result, path: Path) -> None:
    """Write ``result.json`` atomically: under a temporary name, then renamed."""
    write_atomically(path, result.model_dump_json(indent=1))


def read_result(path: Path) -> Result:
    """Read ``result.json``. Raises :class:`ConfigError` when it is missing or does not fit the schema."""
    try:
        return Result.model_validate_json(read_text(path, ConfigError, "copy the run directory again"))
    except OSError as error:
        raise ConfigError(f"no result at {path} ({error.strerror}). The run has not ended, or it failed.") from error
    except ValidationError as error:
        faults = [f"{path} is not a result of schema {SCHEMA_VERSION}: {fault}" for fault in sentences(Result, error)]
        raise ConfigError(faults) from error
    except ValueError as error:
        raise ConfigError(f"{path} is not a result of schema {SCHEMA_VERSION}: {error}") from error


def check_unfinished(path: Path) -> None:
    """Raise :class:`ConfigError` where ``path`` holds the result of a finished run, which must not be overwritten."""
    if path.is_file() and read_result(path).status == "ok":
        raise ConfigError(
            f"DIR: got {path.parent}, which holds a finished run ({path.name}); expected one not trained yet: "
            "go on with more epochs (simgnn run --resume --epochs), or prepare another run"
        )
