"""Fixtures that the tests of users' policies share."""

from tests.executor.forked import forked_ranks

__all__ = ["forked_ranks"]
