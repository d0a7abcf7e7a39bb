"""Which batches the hot rows of a worker's caches are counted in: those of an epoch, or all of a run."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from simgnn.sampling.batches.epoch_file import Part
from simgnn.sampling.fetches.remote_rows import Ranking, Sources


@dataclass(frozen=True)
class Rankings:
    """The rankings of a worker whose batches of ``epochs`` epochs ``part_of`` opens: one for each epoch, or with
    ``whole_run`` one for all, which is counted when it is first asked for.

    Source: RapidGNN, hot set (docs/systems/rapidgnn.md; which of the two the paper means is open).
    """

    part_of: Callable[[int], Part]
    epochs: int
    sources: Sources
    whole_run: bool = False

    def of(self, part: Part) -> Ranking:
        """By which the cache is chosen that batches of ``part`` take rows from."""
        return self._of_run if self.whole_run else Ranking.of_part(part, self.sources)

    @cached_property
    def _of_run(self) -> Ranking:
        return Ranking.of_run(map(self.part_of, range(self.epochs)), self.sources)
