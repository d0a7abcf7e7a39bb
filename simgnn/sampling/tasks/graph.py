"""The tasks of one batch and which of them wait for which: the same for every batch with as many seed vertices."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

Kind = Literal["seeds", "positives", "negatives", "neighbours", "rows", "merge"]
KINDS: tuple[Kind, ...] = ("seeds", "positives", "negatives", "neighbours", "rows", "merge")
SEED, POSITIVE, NEGATIVE = 0, 1, 2
"""Numbers of the branches: blocks of the seed vertices, of their positives, and of their negatives."""


class Task(NamedTuple):
    """One task of a batch. ``neighbours`` of hop h expands what entered its chunk at hop h - 1; ``rows`` of hop h
    fetches the input rows of what entered at hop h (0: the chunk's first vertices)."""

    kind: Kind
    branch: int = SEED
    hop: int = 0
    chunk: int = 0

    def __str__(self) -> str:
        if self.kind in ("neighbours", "rows"):
            return f"{self.kind} (branch {self.branch}, hop {self.hop}, chunk {self.chunk})"
        return self.kind


@dataclass(frozen=True)
class TaskGraph:
    """The tasks of a batch. ``chunk``: vertices of the first front of a chain of tasks; ``hops``: number of layers;
    ``first``: by branch, the most vertices from which it starts; ``fetches``: whether tasks fetch input rows.

    Task 0 chooses the seeds, the last task merges. ``parents``: by task, the numbers of the tasks that end before it.
    """

    chunk: int
    hops: int
    first: tuple[int, ...]
    fetches: bool
    tasks: tuple[Task, ...]
    parents: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, seeds: int, hops: int, chunk: int, negatives: int = 0, fetches: bool = True) -> "TaskGraph":
        """Build the graph for a batch of ``seeds`` vertices; ``negatives`` for each of them, with positives (0: none of
        both, supervised training)."""
        assert chunk > 0, "the experiment refuses schedule.task_chunk below 1"
        first = (seeds,) if not negatives else (seeds, seeds, seeds * negatives)
        tasks = [Task("seeds")]
        parents: list[tuple[int, ...]] = [()]

        def add(task: Task, *after: int) -> int:
            tasks.append(task)
            parents.append(tuple(after))
            return len(tasks) - 1

        starts = [0]
        if negatives:
            starts += [add(Task("positives", POSITIVE), 0), add(Task("negatives", NEGATIVE), 0)]
        ends = list(starts)
        for branch, (start, count) in enumerate(zip(starts, first, strict=True)):
            for number in range(-(-count // chunk)):
                before = start
                if fetches:
                    ends.append(add(Task("rows", branch, 0, number), before))
                for hop in range(1, hops + 1):
                    before = add(Task("neighbours", branch, hop, number), before)
                    if fetches:
                        ends.append(add(Task("rows", branch, hop, number), before))
                ends.append(before)
        add(Task("merge"), *sorted(set(ends)))
        return cls(chunk, hops, first, fetches, tuple(tasks), tuple(parents))

    @property
    def branches(self) -> int:
        """Number of branches: 1, or 3 where positives and negatives are drawn."""
        return len(self.first)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """By task, the numbers of the tasks that wait for it."""
        found: list[list[int]] = [[] for _ in self.tasks]
        for number, before in enumerate(self.parents):
            for parent in before:
                found[parent].append(number)
        return tuple(map(tuple, found))

    def chunks(self, branch: int) -> int:
        """Number of chains of tasks of a branch."""
        return -(-self.first[branch] // self.chunk)
