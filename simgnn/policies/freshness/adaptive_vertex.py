"""Adaptive cache of vertices: a row travels only when it has moved by more than epsilon since it was last sent."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan, nan
from typing import ClassVar, Literal, Self

from array_api_compat import array_namespace, device
from pydantic import Field, model_validator

from simgnn.emit.caches.cached_rows import CachedRows
from simgnn.emit.caches.row_cache import IndexForm, State
from simgnn.policy import Array, Choices, CommunicationTraits, Metrics, PolicyContext, Refusal, chosen

CONTROLLED_BY = (
    "rise_factor", "fall_factor", "largest_change", "rise_margin", "fall_margin", "largest_epsilon", "smallest_epsilon",
    "mean_share", "direction",
)  # fmt: skip
"""Options of the controller, which a fixed threshold does not have."""


@dataclass(frozen=True)
class Threshold:
    """The controller's state, the same on all ranks. ``mean_accuracy`` None: no epoch has ended yet."""

    epsilon: float
    mean_accuracy: float | None = None


class AdaptiveVertex(CachedRows):
    """Rows of hidden values and gradients that barely changed are not sent; their receivers reuse the last ones.

    Per sync point (a layer and a direction) both ends of a transfer keep the rows as last sent. A row z with the cached
    row c is not sent iff max|z - c| is finite and at most ``epsilon`` times max|z| (``reference = "cached"``: max|c|).
    What is sent is the row itself (codec "none"), else the encoded difference from c. Both ends add what the receiver
    decodes, so that their caches stay bit-identical and errors of the codec do not accumulate. After each epoch the
    threshold follows the training accuracy. Input features and evaluations are exact.

    On a vertex-cut (communication "master-mirror") a mirror sends the change of its part, and a vertex of which any
    copy moved is published to all mirrors. On halo rows (communication "halo") the owner sends forward and the holder
    of the halo row backward; a row goes to all peers that need it or to none. docs/systems/cdfgnn.md describes the
    controller, which sums hosts add up first, and how sums of attention are tested.

    Source: CDFGNN (arXiv 2408.00232), sections 4 and 5, equation 6. Deviations: the prose's direction of equation 6 (as
    printed it is the opposite: ``direction = "printed"``, for study), clamped after the step; ``epsilon`` starts at
    0.01, which the paper leaves open; rows without copies are not tested; senders add what receivers decode, where the
    paper keeps the exact row; the scatter sends differences too; and halo rows are our own form."""

    state_width: ClassVar[int] = 2

    kind: Literal["adaptive-vertex"] = "adaptive-vertex"
    epsilon: float = Field(
        default=0.01, ge=0, lt=1, description="threshold in the first epoch; 0: send every row that changed"
    )
    adapt: bool = Field(default=True, description="adapt the threshold to the training accuracy")
    rise_factor: float = Field(default=1.05, gt=1, le=100, description="factor by which the threshold rises")
    fall_factor: float = Field(default=0.9, gt=0, lt=1, description="factor by which the threshold falls")
    largest_change: float = Field(default=0.01, gt=0, lt=1, description="largest change of the threshold in one epoch")
    rise_margin: float = Field(default=0.02, ge=0, lt=1, description="gain in accuracy over its mean that raises it")
    fall_margin: float = Field(
        default=0.001, ge=0, lt=1, description="loss of accuracy against its mean that lowers it"
    )
    largest_epsilon: float = Field(default=0.3, gt=0, lt=1, description="upper bound of the threshold")
    smallest_epsilon: float = Field(default=0.001, gt=0, lt=1, description="lower bound of the threshold")
    mean_share: float = Field(default=0.8, ge=0, lt=1, description="weight of the old mean accuracy in the new mean")
    reference: Literal["current", "cached"] = Field(default="current", description="row to which changes are relative")
    direction: Literal["prose", "printed"] = Field(
        default="prose", description="printed: as equation 6 is printed, for study"
    )
    fold_on_active: bool = Field(
        default=False, description="masters whose mirrors changed also add their own part, however little it changed"
    )
    index: IndexForm = Field(default="bitmap", description="how sent rows are named: a bit per row, or ids")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        unused = [] if self.adapt else chosen(self, CONTROLLED_BY)
        if unused:
            raise ValueError(
                f"adapt: got false with {', '.join(unused)}, expected true: a threshold that is fixed at epsilon reads "
                f"none of these; set adapt = true, or remove {', '.join(unused)}"
            )
        if self.adapt and not self.smallest_epsilon <= self.epsilon <= self.largest_epsilon:
            raise ValueError(
                f"epsilon: got {self.epsilon}, expected smallest_epsilon ({self.smallest_epsilon}) to largest_epsilon "
                f"({self.largest_epsilon}), between which the threshold adapts; for a fixed one set adapt = false"
            )
        return self

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        if self.fold_on_active and choices.communication.cut != "vertex-cut":
            adding = choices.fitting(CommunicationTraits, lambda communication: communication.cut == "vertex-cut")
            yield Refusal(
                "freshness", "fold_on_active",
                f"got true with communication.kind = '{choices.communication.label}', expected false: only masters "
                f"that add up parts (communication.kind = {adding}) have one of their own to add",
            )  # fmt: skip

    def index_form(self) -> IndexForm:
        return self.index

    def adds_woken_parts(self) -> bool:
        return self.fold_on_active

    def init(self, context: PolicyContext) -> State:
        return self.epsilon, nan

    def end_epoch(self, context: PolicyContext, metrics: Metrics, state: State) -> State:
        epsilon, mean = state
        found = self.adjusted(Threshold(epsilon, None if isnan(mean) else mean), metrics.accuracy)
        return found.epsilon, nan if found.mean_accuracy is None else found.mean_accuracy

    @property
    def thresholds(self) -> Self:
        return self

    def start(self) -> Threshold:
        return Threshold(self.epsilon)

    def adjusted(self, state: Threshold, accuracy: float | None) -> Threshold:
        """Return the controller's state after an epoch with this training accuracy (None: no training vertices).

        A pure function in float64, so that all ranks compute the same state."""
        if not self.adapt or accuracy is None:
            return state
        mean = accuracy if state.mean_accuracy is None else state.mean_accuracy
        gain = accuracy - mean if self.direction == "prose" else mean - accuracy
        epsilon = state.epsilon
        if gain > self.rise_margin and epsilon < self.largest_epsilon:
            epsilon = min(self.rise_factor * epsilon, epsilon + self.largest_change, self.largest_epsilon)
        elif gain < -self.fall_margin and epsilon > self.smallest_epsilon:
            epsilon = max(self.fall_factor * epsilon, epsilon - self.largest_change, self.smallest_epsilon)
        return Threshold(epsilon, self.mean_share * mean + (1 - self.mean_share) * accuracy)

    def moved(self, context: PolicyContext, rows: Array, cached: Array, state: State) -> Array:
        """Choose the rows whose largest change is NaN or exceeds the threshold."""
        xp = array_namespace(rows)
        change = xp.max(xp.abs(rows - cached), axis=1)
        size = xp.max(xp.abs(rows if self.reference == "current" else cached), axis=1)
        epsilon = xp.asarray(state[0], dtype=rows.dtype, device=device(rows))
        return ~(xp.isfinite(change) & (change <= epsilon * size))
