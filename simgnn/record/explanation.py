"""Where an epoch goes, for whom ranks wait, and how its predicted time changes with the numbers that it depends on."""

from pydantic import BaseModel, ConfigDict

from simgnn.hardware.profile.quantities import Source
from simgnn.record.limited_by import Activity

EXPLANATION_SCHEMA = 1


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PathPart(Strict):
    """Seconds of the critical path: see :class:`simgnn.record.limited_by.TimeSpent`."""

    activity: Activity
    what: str
    link: str | None
    seconds: float


class RankWaits(Strict):
    """Seconds of a rank in the explained epoch. ``on_path_s``: how long the critical path runs through its own ops;
    ``waits_s``: until the last of those that it meets has arrived; ``waited_for_s``: how long all others together
    waited for it; ``longest_for``: the rank that it waits for longest, None if it waits for none."""

    rank: int
    compute_s: float
    on_path_s: float
    waits_s: float
    longest_for: int | None
    waited_for_s: float


class ExplainedEpoch(Strict):
    """One epoch of a prediction or a run. ``epoch``: its number, from 0; ``epoch_s``: its time, which the parts of
    ``path`` sum to; ``waits`` [P][P]: seconds that rank i waited for rank j."""

    epoch: int
    epoch_s: float
    path: list[PathPart]
    ranks: list[RankWaits]
    waits: list[list[float]]


class LinkUse(Strict):
    """What the links of one kind carry in an epoch. ``busiest``: the direction of one link that carries most, with its
    bytes and the share of the epoch in which these would fill it."""

    link: str
    total_bytes: float
    busiest: str
    busiest_bytes: float
    bytes_per_s: float
    utilisation: float


class EvenWork(Strict):
    """The predicted epoch if all ranks computed equally long and sent the same messages. ``shares`` [P]: of the work of
    each rank, on devices of different speed not the same."""

    epoch_s: float
    shares: list[float]


class Effect(Strict):
    """The predicted epoch with a number twice as good and half as good. ``part``: what it belongs to, "experiment" for
    an option: then of twice and half of it, whichever is better first. None: that value is refused, for the reason in
    ``refused``."""

    key: str
    part: str
    value: str
    source: Source | None
    better_s: float | None
    worse_s: float | None
    better: str
    worse: str
    refused: list[str] = []

    def gain(self, epoch_s: float) -> float:
        """By which share of ``epoch_s`` the better value shortens the epoch; 0 if it is refused."""
        return 0.0 if self.better_s is None else 1.0 - self.better_s / epoch_s


class Explanation(Strict):
    """Why an epoch takes as long as it does.

    ``epoch_s``: the predicted median, which ``effects`` and ``even_work`` are compared with; ``predicted``: the epoch
    that takes about as long. ``measured``: that of a run, None for an experiment. ``effects``: those that change the
    epoch by at least NO_EFFECT, largest gain first; ``without_effect``: keys of the others. ``notes``: those of the
    prediction."""

    schema_version: int = EXPLANATION_SCHEMA
    name: str
    hardware: str
    ranks: int
    epoch_s: float
    epoch_s_interval: tuple[float, float] | None
    predicted: ExplainedEpoch
    measured: ExplainedEpoch | None
    measured_s: float | None
    even_work: EvenWork
    links: list[LinkUse]
    effects: list[Effect]
    without_effect: list[str]
    uncalibrated: bool
    notes: list[str]
