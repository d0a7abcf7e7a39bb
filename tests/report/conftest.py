"""What the tests of reports share."""

from tests.cli.conftest import small

__all__ = ["small"]
