"""Draws faults by a seed: which system runs where, what is done to it, and when."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from simgnn.experiment.load import load_experiment
from tools.list_predictions import systems

Kind = Literal[
    "rank-killed",
    "rank-stopped",
    "disk-full",
    "directory-deleted",
    "launcher-killed",
    "launcher-terminated",
    "launcher-interrupted",
    "executor-killed",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""SIGKILL or SIGSTOP of a rank; no room left on the disk of the run directory; the run directory deleted; SIGKILL,
SIGTERM or SIGINT of ``simgnn run``; SIGKILL of the process between it and the ranks."""
Moment = Literal["meeting", "first-epoch", "middle", "checkpoint", "last-epoch"]
MOMENTS: tuple[Moment, ...] = get_args(Moment)
"""When the first rank waits for the others; in the first epoch; after some of the epochs; while a checkpoint is being
written; after the last checkpoint before the end."""
LONGEST_DELAY_S = {"meeting": 0.5, "first-epoch": 0.05, "middle": 0.1, "checkpoint": 0.0, "last-epoch": 0.3}
"""Most seconds between a moment and the fault. A checkpoint is written within milliseconds."""


@dataclass(frozen=True)
class Setup:
    """A system and where it runs. Several hosts are all on this machine."""

    system: str
    hosts: int
    ranks_per_host: int

    @property
    def ranks(self) -> int:
        return self.hosts * self.ranks_per_host

    @property
    def name(self) -> str:
        return f"{self.system}-{self.hosts}x{self.ranks_per_host}"


@dataclass(frozen=True)
class Fault:
    """What is done to a run. ``rank``: which rank, if it is done to one; ``share`` [0, 1): of the epochs that are
    trained before, where the moment leaves it open; ``delay_s``: seconds between the moment and the fault."""

    setup: Setup
    kind: Kind
    moment: Moment
    rank: int
    share: float
    delay_s: float

    @property
    def name(self) -> str:
        """A word for folders."""
        return f"{self.setup.name}-{self.kind}-{self.moment}"

    def __str__(self) -> str:
        hosts = f"{self.setup.hosts} hosts, " if self.setup.hosts > 1 else ""
        which = f" {self.rank}" if self.kind.startswith("rank-") else ""
        return f"{self.setup.system}, {hosts}{self.setup.ranks} ranks, {self.kind}{which}, {self.moment}"


def setups(system: str) -> list[Setup]:
    """Return where a system runs: two or three ranks of one host, on mini-batches also two hosts."""
    hosts = [Setup(system, 2, 1)] if mini_batches(system) else []
    return [Setup(system, 1, 2), Setup(system, 1, 3), *hosts]


def mini_batches(system: str) -> bool:
    """Return whether a system trains on mini-batches."""
    return load_experiment(system).batching.mini_batches


T = TypeVar("T")


def draw_faults(
    seed: int, count: int, chosen: Sequence[str] = (), kinds: Sequence[Kind] = KINDS
) -> list[Fault]:  # fmt: skip
    """Draw ``count`` faults. Systems (default: all) have equal shares, and so have pairs of kind and moment."""
    generator = random.Random(seed)

    def dealt(cards: Sequence[T]) -> list[T]:
        """Each of ``cards`` as often as the others, in random order."""
        rounds = -(-count // len(cards))
        return [card for _ in range(rounds) for card in generator.sample(cards, len(cards))][:count]

    names = dealt(list(chosen) or systems())
    places = {name: setups(name) for name in names}
    pairs = dealt([(kind, moment) for kind in kinds for moment in MOMENTS])
    faults = []
    for name, (kind, moment) in zip(names, pairs, strict=True):
        setup = generator.choice(places[name])
        rank, share = generator.randrange(setup.ranks), generator.random()
        faults.append(Fault(setup, kind, moment, rank, share, generator.uniform(0.0, LONGEST_DELAY_S[moment])))
    return faults
