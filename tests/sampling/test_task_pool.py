"""Threads take ready tasks in order, end all with one message when one fails, and really run at once."""

import threading

import numpy as np
import pytest

from simgnn.errors import BackendError
from simgnn.sampling.draw.sampler import Sampler
from simgnn.sampling.tasks.batch import BatchMaker, BatchTasks
from simgnn.sampling.tasks.claims import claim, claim_all
from simgnn.sampling.tasks.pool import Ready, TaskPool, TaskRecord, batch_then_cost
from simgnn.sampling.tasks.requests import Request
from simgnn.sampling.tasks.rows import RowTable
from simgnn.sampling.tasks.structure import WholeStructure
from tests.sampling.parted_sampling import assert_equal_batches
from tests.sampling.sampling_graphs import hubs

CSR = hubs()
FANOUTS = (4, 3)
ROWS = RowTable(np.random.default_rng(0).standard_normal((CSR.rows, 5), dtype=np.float32))


def maker(chunk: int = 7, negatives: int = 2) -> BatchMaker:
    return BatchMaker(WholeStructure(CSR), FANOUTS, chunk, negatives, ROWS)


def recorded(threads: int, batches: int, **options: object) -> list[TaskRecord]:
    """Records of all tasks in the order in which they began."""
    found: list[TaskRecord] = []
    pool = TaskPool(threads, record=found.append, **options)  # type: ignore[arg-type]
    try:
        made = maker()
        for number in range(batches):
            pool.launch(number, made.begin(np.arange(number, number + 30), number))
        for number in range(batches):
            pool.take(number, 60)
    finally:
        pool.close()
    assert len({(record.ready.batch, record.ready.number) for record in found}) == len(found)
    assert len(found) == batches * len(made.graph(30).tasks)
    return sorted(found, key=lambda record: record.started_s)


@pytest.mark.parametrize("threads", [1, 4])
def test_no_task_begins_before_its_parents_end(threads: int) -> None:
    found = recorded(threads, 5)
    ended = {(record.ready.batch, record.ready.number): record.ended_s for record in found}
    parents = maker().graph(30).parents
    for record in found:
        for parent in parents[record.ready.number]:
            assert ended[record.ready.batch, parent] <= record.started_s


@pytest.mark.parametrize("order", [batch_then_cost, lambda ready: (-ready.cost, ready.batch)], ids=["cost", "heavy"])
def test_one_thread_takes_the_first_of_all_that_are_ready(order) -> None:
    found = recorded(1, 5, order=order)
    for place, record in enumerate(found):
        ready = [other for other in found[place:] if other.ready_s < found[place - 1].ended_s] if place else []
        assert all(order(record.ready) <= order(other.ready) for other in ready)


def test_a_batch_ends_before_a_task_of_a_younger_one_begins() -> None:
    found = recorded(1, 5)
    numbers = [record.ready.batch for record in found]
    first = numbers.index(1)  # the launching thread may be slower than the pool
    assert sorted(numbers[first:]) == numbers[first:]


def test_the_order_is_batch_then_cost() -> None:
    task = maker().graph(30).tasks[0]
    given = [Ready(batch, cost, 0, task) for batch in (2, 1) for cost in (3.0, 1.0, 20.0)]
    found = sorted(given, key=batch_then_cost)
    assert [(ready.batch, ready.cost) for ready in found] == sorted((ready.batch, ready.cost) for ready in given)


def test_costs_are_those_of_the_source() -> None:
    degrees = CSR.degrees()
    tasks = maker(chunk=8).begin(np.arange(30), 1)
    graph = tasks.graph
    entered: dict[tuple[int, int], np.ndarray] = {}
    for number, task in enumerate(graph.tasks):
        cost = tasks.cost(number)
        if task.kind == "neighbours":
            vertices = tasks._front(task).vertices
            assert cost == degrees[vertices].sum()
            known = entered.setdefault((task.branch, task.hop), np.empty(0, np.int64))
            assert not np.intersect1d(known, vertices).size, "tasks of a hop expand different vertices"
            entered[task.branch, task.hop] = np.concatenate((known, vertices))
        elif task.kind == "rows":
            assert cost == 5 * len(tasks._front(task).vertices)
        else:
            expected = {"seeds": 30, "positives": degrees[:30].sum(), "negatives": 60, "merge": 0}
            assert cost == expected[task.kind]
        assert tasks.run(number) == []
    assert tasks.made is not None
    for branch, batch in enumerate(tasks.made.branches):
        for hop in (1, 2):
            np.testing.assert_array_equal(
                np.sort(entered[branch, hop]), np.sort(batch.vertices[: batch.sizes[hop - 1]])
            )


class Fails(BatchTasks):
    """A batch of which one task raises."""

    at = 5

    def run(self, number: int) -> list[Request]:
        if number == self.at:
            raise MemoryError("no room for neighbours")
        return super().run(number)


@pytest.mark.parametrize("at", [0, 1, 5, -1])
@pytest.mark.parametrize("threads", [1, 4])
def test_a_task_that_raises_ends_all_with_one_message(threads: int, at: int) -> None:
    made = maker()
    graph = made.graph(30)
    at %= len(graph.tasks)
    pool = TaskPool(threads)
    try:
        pool.launch(0, made.begin(np.arange(30), 0))
        pool.take(0, 60)
        bad = Fails(made, graph, np.arange(30), 1)
        bad.at = at
        pool.launch(1, bad)
        pool.launch(2, made.begin(np.arange(30), 2))
        with pytest.raises(BackendError) as caught:
            pool.take(1, 60)
        assert str(caught.value) == f"batch 1, task '{graph.tasks[at]}': MemoryError: no room for neighbours"
        with pytest.raises(BackendError, match="batch 1, task"):
            pool.take(2, 60)
    finally:
        pool.close()
    assert not any(thread.is_alive() for thread in pool._threads)


def test_a_batch_that_does_not_end_is_reported() -> None:
    pool = TaskPool(1)
    try:
        with pytest.raises(BackendError, match=r"batch 3.*train\.timeout"):
            pool.take(3, 0.01)
    finally:
        pool.close()


class Meets(BatchTasks):
    """A batch whose first two tasks of hop 1 wait for each other: they end only if two threads run them at once."""

    meeting: threading.Barrier

    def run(self, number: int) -> list[Request]:
        task = self.graph.tasks[number]
        if task.kind == "neighbours" and task.hop == 1 and task.chunk < 2:
            self.meeting.wait(30)
        return super().run(number)


def test_two_tasks_of_a_batch_are_in_flight_at_once() -> None:
    made = maker(negatives=0)
    tasks = Meets(made, made.graph(30), np.arange(30), 4)
    tasks.meeting = threading.Barrier(2)
    pool = TaskPool(2)
    try:
        pool.launch(0, tasks)
        assert_equal_batches(pool.take(0, 60).branches[0], Sampler(CSR, FANOUTS).sample(np.arange(30), 4))
    finally:
        pool.close()


def test_exactly_one_thread_claims_a_vertex() -> None:
    """Threads that claim the same vertices at once, again and again: each vertex goes to one of them."""
    vertices, threads = 1 << 16, 4
    for turn in range(10):
        words = np.zeros(vertices // 64 * 2, np.uint64)
        taken = [np.empty(vertices, np.int64) for _ in range(threads)]
        counts = [0] * threads
        start = threading.Barrier(threads)

        def work(thread: int, words=words, taken=taken, counts=counts, start=start, turn=turn) -> None:
            # neighbouring bits of one word are contended
            order = np.random.default_rng(turn * threads + thread).permutation(vertices // 512)
            mine = (order[:, None] * 512 + np.arange(512)).reshape(-1)
            start.wait()
            counts[thread] = claim_all(words, 2, mine, taken[thread])

        running = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
        for one in running:
            one.start()
        for one in running:
            one.join()
        every = np.concatenate([some[:count] for some, count in zip(taken, counts, strict=True)])
        np.testing.assert_array_equal(np.sort(every), np.arange(vertices))
        assert (words[::2] == np.uint64(2**64 - 1)).all()
        assert not words[1::2].any()


def test_kernels_hold_no_interpreter_lock() -> None:
    """Numba's own flag, of each kernel that a task calls."""
    from simgnn.sampling.draw import pairs
    from simgnn.sampling.tasks import claims, merge, places, rows, structure

    kernels = [
        value
        for module in (claims, merge, pairs, places, rows, structure)
        for value in vars(module).values()
        if hasattr(value, "py_func") and value.py_func.__module__ == module.__name__
    ]
    assert len(kernels) >= 12
    assert claim in kernels
    assert all(kernel.targetoptions.get("nogil") for kernel in kernels)
