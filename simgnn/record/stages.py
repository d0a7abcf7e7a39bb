"""Stages of a training epoch with caches of halo rows, by the names of CaPGNN, and what the caches cost and save."""

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from simgnn.program.kinds import OpKind
from simgnn.program.ops import Category, Op
from simgnn.program.program import Program
from simgnn.record.epoch_kinds import kinds_of, typical

STAGES = ("check_cache", "pick_cache", "communication", "aggregation")
COSTS = STAGES[:2]
OF_CATEGORY: Mapping[str, str] = {category: category for category in get_args(Category) if category in COSTS} | {
    "comm": "communication", "comm_overhead": "communication"
}  # fmt: skip


class StageTimes(BaseModel):
    """Seconds that each rank spends in the stages of a typical epoch, float [P]: sums over ops from issue to end. Where
    streams overlap, they may add up to more than the epoch.

    ``check_cache_s``: the ages of cached rows are checked before each use. ``pick_cache_s``: rows are copied out of a
    cache, be it the device's or memory of the host, and into the device's. ``communication_s``: rows and gradients are
    packed, travel, also through memory of the host in a refresh, and are put in place; ranks wait for one another.
    ``aggregation_s``: sums over edges, and their gradients.

    ``overhead_ratio``: checking and picking, mean over ranks, by the epoch. ``epoch_s_without_cache``: of the same
    experiment with empty caches, of predictions only; ``benefit_ratio``: what caches save of it, by checking and
    picking. Source: CaPGNN."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    check_cache_s: list[float]
    pick_cache_s: list[float]
    communication_s: list[float]
    aggregation_s: list[float]
    overhead_ratio: float
    epoch_s_without_cache: float | None = None
    benefit_ratio: float | None = None

    def against(self, without_s: float, epoch_s: float) -> "StageTimes":
        """Return the times with the ratio of benefit: ``without_s`` is an epoch with empty caches, ``epoch_s`` one with
        these."""
        spent = _spent(self.check_cache_s, self.pick_cache_s)
        ratio = (without_s - epoch_s) / spent if spent else None
        return self.model_copy(update={"epoch_s_without_cache": without_s, "benefit_ratio": ratio})


def stage_of(op: Op) -> str | None:
    """Return the stage that an op belongs to; None: none of these."""
    if op.category in OF_CATEGORY:
        return OF_CATEGORY[op.category]
    return "aggregation" if op.kind is OpKind.AGGREGATE else None


def stage_times(
    program: Program, rank: NDArray[Any], epoch: NDArray[Any], op_id: NDArray[Any], seconds: NDArray[np.float64],
    epoch_s: float,
) -> StageTimes | None:  # fmt: skip
    """Return the times of a trace's training ops; None if no op reads a cache of halo rows. ``epoch``: from 0, by its
    place among the epochs of the trace; ``seconds``: from the issue of each op to its end; ``epoch_s``: of a typical
    epoch."""
    stages = [stage_of(op) for _, op in program.ops]
    if not len(epoch) or not any(stage in COSTS for stage in stages):
        return None
    place = np.array([STAGES.index(stage) if stage is not None else -1 for stage in stages])[op_id]
    chosen, epochs = place >= 0, int(epoch.max()) + 1
    sums = np.zeros((epochs, len(STAGES), program.ranks))
    np.add.at(sums, (epoch[chosen], place[chosen], rank[chosen]), seconds[chosen])
    found = dict(zip(STAGES, typical(sums, kinds_of(program.calendar, epochs)).tolist(), strict=True))
    spent = _spent(*(found[stage] for stage in COSTS))
    return StageTimes(**{f"{stage}_s": times for stage, times in found.items()}, overhead_ratio=spent / epoch_s)


def _spent(*stages: list[float]) -> float:
    """Return the mean over ranks of the seconds of some stages together."""
    return float(sum(np.mean(times) for times in stages))
