"""Peaks of memory in a result: of devices, and of hosts beside their GPUs, with everything that is resident there."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from simgnn.units import readable_bytes, share_of_bytes

Place = Literal["device", "host", "budget"]
IDLE, IN_USE, KEPT_FREE = "idle process", "in use", "kept free by the allocator"


class MemoryPeak(BaseModel):
    """Peak of one memory. All that is resident in it counts.

    ``place``: "device": of a GPU, or of the host that CPU ranks run on; "host": of a host beside its GPUs; "budget": of
    what ``placement.device_bytes`` leaves to the device of a rank. ``ranks``:
    those that share it; ``fullest``: the one that holds most of it. ``parts``: bytes by part, which sum to
    ``peak_bytes``. ``capacity_bytes``: null where it is not known.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    place: Place
    name: str
    ranks: list[int]
    fullest: int
    peak_bytes: int
    capacity_bytes: int | None = None
    parts: dict[str, int] = {}

    @property
    def share(self) -> float:
        """Peak over capacity; 0 where the capacity is not known."""
        return self.peak_bytes / self.capacity_bytes if self.capacity_bytes else 0.0

    def text(self) -> str:
        """Describe the peak, such as "Peak 66.4 of 80 GiB (83 %) on rank 3"."""
        peak = share_of_bytes(self.peak_bytes, self.capacity_bytes) if self.capacity_bytes else None
        where = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"{self.name} (ranks {_ranges(self.ranks)})"
        return f"Peak {peak or readable_bytes(self.peak_bytes)} on {where}"


def fullest_memory(peaks: Sequence[MemoryPeak], place: Place) -> MemoryPeak | None:
    """Return the memory of a kind with the largest share of its capacity; of equals, the one with the highest peak."""
    found = [peak for peak in peaks if peak.place == place]
    return max(found, key=lambda peak: (peak.share, peak.peak_bytes), default=None)


def budget_peak(budget: int, held: Sequence[int]) -> list[MemoryPeak]:
    """Build the peak of the rank whose device holds most of its ``budget`` in bytes; none without one (0). ``held``
    [P]: the most bytes that each rank's device holds."""
    if not budget or not held:
        return []
    fullest = int(np.argmax(held))
    peak = MemoryPeak(
        place="budget",
        name="placement.device_bytes",
        ranks=[fullest],
        fullest=fullest,
        peak_bytes=held[fullest],
        capacity_bytes=budget,
    )
    return [peak]


def measured_peaks(memory: Mapping[str, Sequence[int]], hosts: Sequence[int], gpu: bool) -> list[MemoryPeak]:
    """Build the peaks of a run from numbers that each rank measured, [P] each, with the names of the result's fields
    and ``capacity_bytes``. ``hosts`` [P]: host of each rank.

    Ranks on CPUs share the memory of their host, idle processes included. Their peaks need not come at one time, and
    pages of libraries that they share count for each: the sum is an upper bound.
    """
    places = [[rank] for rank in range(len(hosts))]
    if not gpu:
        places = [[rank for rank, other in enumerate(hosts) if other == host] for host in dict.fromkeys(hosts)]
    found = []
    for ranks in places:
        used, resident, idle = (
            np.array([memory[name][rank] for rank in ranks])
            for name in ("peak_memory_bytes", "resident_memory_bytes", "idle_memory_bytes")
        )
        each = {IN_USE: used, KEPT_FREE: np.maximum(resident - used, 0)}
        if not gpu:  # the idle process of a rank with a GPU lies in the memory of its host
            each = {IDLE: idle, **each}
        totals = np.sum(list(each.values()), axis=0)
        found.append(
            MemoryPeak(
                place="device",
                name=f"the GPU of rank {ranks[0]}" if gpu else f"host {hosts[ranks[0]]}",
                ranks=ranks,
                fullest=ranks[int(np.argmax(totals))],
                peak_bytes=int(totals.sum()),
                capacity_bytes=max(int(memory["capacity_bytes"][rank]) for rank in ranks),
                parts={name: int(part.sum()) for name, part in each.items()},
            )
        )
    return found


def over_budget(budget: int, held: Sequence[int]) -> list[str]:
    """Describe the ranks of a run whose devices held more than their ``budget`` in bytes; nothing without one (0)."""
    over = [rank for rank, nbytes in enumerate(held) if budget and nbytes > budget]
    if not over:
        return []
    ranks = f"rank{'s' * (len(over) > 1)} {_ranges(over)}"
    return [
        f"placement.device_bytes: {ranks} held up to {max(held):,} B, more than the budget of {budget:,} B, though the "
        "prediction fitted into it"
    ]


def result_fields(
    memory: Mapping[str, Sequence[int]], hosts: Sequence[int], gpu: bool, budget: int = 0
) -> dict[str, Any]:
    """Return the memory fields of the result of a run, see :func:`measured_peaks` and :func:`budget_peak`."""
    fields: dict[str, Any] = {name: list(numbers) for name, numbers in memory.items() if name != "capacity_bytes"}
    held = fields["device_memory_bytes"]
    if not any(fields["shared_memory_bytes"]):
        fields["shared_memory_bytes"] = None
    return {**fields, "memory": [*measured_peaks(memory, hosts, gpu), *budget_peak(budget, held)]}


def _ranges(ranks: Sequence[int]) -> str:
    """Write ascending ranks shortly: "0-3, 8"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ", ".join("-".join(map(str, run)) for run in runs)
