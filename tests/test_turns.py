"""Tests that must be alone on the machine are, and are not kept waiting by those that come after them."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.turns import turn

SOON_S, LONG_S = 0.1, 30.0


class Guest:
    """Somebody with a turn in a thread of their own, who leaves when told to."""

    def __init__(self, pool: ThreadPoolExecutor, folder: Path, alone: bool) -> None:
        self.inside, self.leaving = threading.Event(), threading.Event()
        self._stay: Future[None] = pool.submit(self._visit, folder, alone)

    def _visit(self, folder: Path, alone: bool) -> None:
        with turn(folder, alone):
            self.inside.set()
            assert self.leaving.wait(LONG_S)

    def leave(self) -> None:
        self.leaving.set()
        self._stay.result(LONG_S)


@contextmanager
def guests(folder: Path, *alone: bool) -> Iterator[list[Guest]]:
    """One guest after the other; each has had the time to come in before the next one comes."""
    with ThreadPoolExecutor(len(alone)) as pool:
        found: list[Guest] = []
        for each in alone:
            found.append(Guest(pool, folder, each))
            found[-1].inside.wait(SOON_S)
        try:
            yield found
        finally:
            for guest in found:
                guest.leaving.set()


def test_others_are_in_together(tmp_path: Path) -> None:
    with guests(tmp_path, False, False) as (one, other):
        assert one.inside.wait(LONG_S)
        assert other.inside.wait(LONG_S)


@pytest.mark.parametrize("after", [False, True])
def test_who_is_alone_is_alone(after: bool, tmp_path: Path) -> None:
    with guests(tmp_path, True, after) as (alone, later):
        assert alone.inside.wait(LONG_S)
        assert not later.inside.is_set()
        alone.leave()
        assert later.inside.wait(LONG_S)


def test_who_wants_to_be_alone_comes_before_those_that_come_later(tmp_path: Path) -> None:
    with guests(tmp_path, False, True, False) as (first, alone, later):
        assert first.inside.wait(LONG_S)
        assert not alone.inside.is_set()
        assert not later.inside.is_set()
        first.leave()
        assert alone.inside.wait(LONG_S)
        assert not later.inside.is_set()
        alone.leave()
        assert later.inside.wait(LONG_S)


def test_a_test_that_fails_gives_its_turn_back(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), turn(tmp_path, alone=True):
        _ = 1 / 0
    with guests(tmp_path, True) as (next_one,):
        assert next_one.inside.wait(LONG_S)
