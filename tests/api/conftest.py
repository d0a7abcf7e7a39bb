"""What the tests of the functions share."""

from tests.cli.conftest import small
from tests.executor.forked import forked_ranks

__all__ = ["forked_ranks", "small"]
