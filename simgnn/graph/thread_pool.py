"""Run the chunks of a job on a few threads; results come in chunk order, so the number of threads changes nothing."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def usable_threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(work: Callable[[int], T], chunks: int, threads: int | None = None) -> Iterator[T]:
    """Yield ``work(0), work(1), ...`` from threads, up to ``threads + 1`` ahead; ``work`` should release the GIL."""
    threads = min(threads or usable_threads(), max(chunks, 1))
    if threads == 1:
        yield from map(work, range(chunks))
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="simgnn-graph") as pool:
        waiting: list[Future[T]] = []
        for chunk in range(chunks):
            waiting.append(pool.submit(work, chunk))
            if len(waiting) > threads:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()
