"""Threads that wait for jobs."""

import threading
import time

from executor.rank.lanes import Workers


def test_jobs_run_in_threads_that_are_there_and_in_new_ones_where_none_waits() -> None:
    before = threading.active_count()
    workers = Workers(2)
    waiting = threading.active_count()
    go, seen = threading.Event(), set[str]()

    def job() -> None:
        go.wait(10)
        seen.add(threading.current_thread().name)

    ended = [workers.run(f"stream-{number}", job) for number in range(3)]
    assert waiting == before + 2
    assert threading.active_count() == before + 3
    go.set()
    assert all(end.wait(10) for end in ended)
    assert seen == {"stream-0", "stream-1", "stream-2"}


def test_threads_that_wait_end_and_leave_nothing_to_the_next_run() -> None:
    before = threading.active_count()
    workers = Workers(3)
    ended = workers.run("stream-one", lambda: None)
    workers.close()
    assert ended.wait(timeout=10)
    limit = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < limit:
        time.sleep(0.01)
    assert threading.active_count() == before
