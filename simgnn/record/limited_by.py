"""What limits a predicted epoch: what its critical path spends its time on, and which numbers of the profile cap it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from simgnn.hardware.profile.quantities import Source

Activity = Literal["compute", "transfer", "calls", "wait"]
NOT_CHECKED = ("not checked, as that would take long (--verbose checks)", "no rate on the way of messages")
SHOWN = 0.03
"""Least share of the time that is named in the text; the rest is summed up."""


class TimeSpent(BaseModel):
    """A share of the time of the epoch. ``activity``: "compute" by op kind; "transfer" of bytes by op kind and the
    slowest kind of link on its way (``link``: ``links.NAME`` of the profile); "calls": floors and latencies of
    communication, whatever its bytes; "wait": nothing runs, or ranks wait for the slowest of several that vary."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    activity: Activity
    what: str
    link: str | None = None
    share: float

    def text(self) -> str:
        over = "" if self.link is None else f" over links.{self.link}"
        return f"{100 * self.share:.0f} % {self.what}{over}"


class RankOnPath(BaseModel):
    """A rank, and the share of the epoch in which the critical path runs through its own work and messages: the other
    ranks wait for it. Collectives belong to no rank."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int
    share: float


class ProfileLimit(BaseModel):
    """A number of the profile, and how much shorter the epoch is if it is twice as good (a rate or size doubled, a time
    or cost halved), as a share of the epoch. ``checked``: simulated so; else estimated from the critical path."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    value: str
    source: Source
    shorter: float
    checked: bool

    def text(self) -> str:
        about = "" if self.checked else "about "
        return f"{self.key} = {self.value} ({self.source}; twice as good: {about}{100 * self.shorter:.0f} % shorter)"


class LimitedBy(BaseModel):
    """What limits the epoch with number ``epoch`` (from 0), which takes about the median time.

    ``time``: what its critical path consists of, most first. ``ranks``: through which ranks it runs, most first;
    none where ranks hardly wait. ``numbers``: those that shorten the epoch most, in this order. ``without_effect``:
    rates of links and libraries that the path uses and that do not change the epoch. ``simulations``: how many were
    made to check these.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    epoch: int
    time: list[TimeSpent]
    ranks: list[RankOnPath]
    numbers: list[ProfileLimit]
    without_effect: list[ProfileLimit]
    simulations: int

    def lines(self) -> dict[str, str]:
        """Describe what the time goes into, which numbers cap it, and which do not, as three lines by name."""
        shown = [part for part in self.time if part.share >= SHOWN]
        rest = sum(part.share for part in self.time) - sum(part.share for part in shown)
        parts = [part.text() for part in shown] + ([f"{100 * rest:.0f} % other"] if rest >= SHOWN / 2 else [])
        first = self.ranks[0] if self.ranks else None
        waited = "" if first is None or len(self.ranks) < 2 else f"; {_waited(self.ranks)}"
        capped = "; ".join(number.text() for number in self.numbers) or "no single number of the profile"
        free = (
            ", ".join(f"{number.key} = {number.value}" for number in self.without_effect)
            or NOT_CHECKED[self.simulations > 0]
        )
        return {"time": ", ".join(parts) + waited, "capped by": capped, "no effect": free}


def _waited(ranks: list[RankOnPath]) -> str:
    named = [rank for rank in ranks if rank.share >= 0.1][:2] or ranks[:1]
    return "others wait for " + " and ".join(f"rank {one.rank} ({100 * one.share:.0f} %)" for one in named)
