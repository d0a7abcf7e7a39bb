"""What every policy is: a frozen value whose fields are its configuration."""

from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

Moves = Literal["rows", "blocks"]
"""What travels at a sync point: rows that lists name, or all rows of a rank."""


class Policy(BaseModel):
    """A choice of one slot. Every concrete policy has a field ``kind`` with a ``Literal`` of its name in TOML.

    A policy never touches transport, clocks or globals. One file in the folder of its slot adds one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    slot: ClassVar[str]

    @property
    def label(self) -> str:
        """The value of ``kind``."""
        return str(type(self).model_fields["kind"].default)


def chosen(options: BaseModel, names: Iterable[str]) -> list[str]:
    """Those of the fields ``names`` that hold another value than their default, in their order.

    What is read back from a run directory states every field, so a default is not taken for a choice.
    """
    fields = type(options).model_fields
    return [name for name in names if getattr(options, name) != fields[name].default]
