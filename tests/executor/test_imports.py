"""Imports that last, kept out of the sight of Python's collector of reference cycles."""

import gc

import pytest

from executor.launch.startup import lasting_imports


def test_the_collector_is_on_again_after_an_import_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    on: list[bool] = []

    def fail() -> None:
        with lasting_imports():
            on.append(gc.isenabled())
            raise ImportError("no such library")

    monkeypatch.setattr(gc, "freeze", lambda: None)  # else objects of other tests would last, too
    try:
        with pytest.raises(ImportError, match="no such library"):
            fail()
        on.append(gc.isenabled())
    finally:
        gc.enable()
    assert on == [False, True]
