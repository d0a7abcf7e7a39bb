"""The link between two hosts: rates of one message and of all ranks at once, both ways at once, and the floor."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simgnn.analysis.fit.calls import LARGE_BYTES, efficiency, floor_and_rates, message_rate, noise
from simgnn.analysis.fit.errors import CallErrors, Predictor, held_out, without
from simgnn.analysis.fit.network import check_enough
from simgnn.analysis.fit.samples import Sample
from simgnn.hardware.profile.links import LinkType
from simgnn.hardware.profile.quantities import Bandwidth, Duration, Points

ONE_WAY_AT_A_TIME = 0.6
"""Both ways at once with at most this share of one way's rate each: the directions share the link."""


@dataclass(frozen=True)
class Pair:
    """Two hosts. Rates in bytes per second: ``way_bytes_per_s`` each way, both at once and all ranks together;
    ``message_bytes_per_s`` one message alone. ``errors``: of predicting exchanges of sizes that were held out."""

    floor_s: float
    way_bytes_per_s: float
    message_bytes_per_s: float
    share: Points
    spread: float
    reach: float
    errors: CallErrors

    @property
    def half_duplex(self) -> bool:
        """Whether both directions together carry no more than one alone."""
        return self.way_bytes_per_s < ONE_WAY_AT_A_TIME * self.message_bytes_per_s

    def link(self, latency_s: float, slower: float) -> LinkType:
        """The link of one of the two to the network; ``slower``: how many times slower it is with all hosts at once."""
        rate = self.way_bytes_per_s * (2 if self.half_duplex else 1) / slower
        note = "between two hosts, all their ranks, both ways at once"
        if slower > 1:
            note += f"; slower by {slower:.2f} when all hosts talk at once, which is stated here"
        reach = (0.0, self.reach)
        return LinkType(
            kind="ethernet",
            bandwidth=Bandwidth.of(rate, "measured", spread=self.spread, range=reach, note=note),
            latency=Duration.of(latency_s, "measured", note="this link's part, beyond the message's floor"),
            duplex="half" if self.half_duplex else "full",
            message_bandwidth=Bandwidth.of(self.message_bytes_per_s, "measured", range=reach, note="one message alone"),
            efficiency=self.share,
        )


def fit_pair(sends: Sequence[Sample], exchanges: Sequence[Sample]) -> Pair:
    """Fit what was measured between two hosts. Raises :class:`HardwareError` for fewer than three sizes."""
    check_enough(sends, exchanges, "calibrate again with --fresh")
    floor, rates = floor_and_rates(sends, [sample.last_s for sample in sends])
    reach = max(sample.sizes["bytes"] for sample in exchanges)
    _, way = _floor_and_way(exchanges)
    alone = message_rate(sends, floor, min(LARGE_BYTES, reach))
    return Pair(
        floor,
        way,
        alone,
        efficiency(sends, rates, floor, alone),
        noise(exchanges),
        float(max(reach, *(sample.sizes["bytes"] for sample in sends))),
        held_out(exchanges, lambda size: _predictor(without(exchanges, size))),
    )


def _floor_and_way(exchanges: Sequence[Sample]) -> tuple[float, float]:
    """Seconds of an exchange of no bytes, to the last rank, as a link that many messages share is through with all
    bytes only then; bytes per second each way."""
    floor, _ = floor_and_rates(exchanges, [sample.last_s for sample in exchanges])
    reach = max(sample.sizes["bytes"] for sample in exchanges)
    large = [sample for sample in exchanges if sample.sizes["bytes"] >= min(LARGE_BYTES, reach)]
    return floor, float(np.median([s.sizes["way_bytes"] / max(s.last_s - floor, s.last_s * 0.05) for s in large]))


def _predictor(exchanges: Sequence[Sample]) -> Predictor:
    """Seconds of an exchange between the two hosts, fitted to these."""
    floor, way = _floor_and_way(exchanges)
    return lambda sample: floor + sample.sizes["way_bytes"] / way
