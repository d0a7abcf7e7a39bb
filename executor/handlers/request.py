"""One round of request and reply: rows by rank and position there. The op ``fetch`` and the feature store share it."""

from dataclasses import dataclass

import torch

from executor.handlers.wire import all_to_all, counts_of, row_bytes
from executor.state.context import GroupHandle


@dataclass(frozen=True)
class Reply:
    """What a round brought, and what of it left this rank.

    ``positions`` int64: what this rank was asked for, member after member, as many as ``served`` says. ``rows`` [k, F]
    on the group's device: row i answers request ``places[i]`` (int64 [k]). ``asked``, ``served``: positions asked of
    each member and rows sent to it; ``position_bytes``, ``row_bytes``: of one. ``control_bytes``: of the counts that
    went ahead.
    """

    positions: torch.Tensor
    rows: torch.Tensor
    places: torch.Tensor
    asked: list[int]
    served: list[int]
    position_bytes: int
    row_bytes: int
    control_bytes: int


def request_rows(stored: torch.Tensor, owner: torch.Tensor, position: torch.Tensor, group: GroupHandle) -> Reply:
    """Rows ``position`` int64 [k] of what the ranks ``owner`` int64 [k] hold, this rank ``stored`` [n, F].

    Every member of the group calls it, with requests or without. Counts (8 bytes a pair), positions, rows.
    """
    places = torch.argsort(owner, stable=True)
    wanted = position[places]
    ask = member_counts(owner, group)
    asked = ask.tolist()
    served, header = counts_of(ask, group)
    positions = all_to_all(wanted, asked, served, group)
    reply = stored.index_select(0, positions.to(stored.device))
    rows = all_to_all(reply, served, asked, group)
    return Reply(positions, rows, places, asked, served, row_bytes(wanted), row_bytes(reply), header)


def member_counts(ranks: torch.Tensor, group: GroupHandle) -> torch.Tensor:
    """How often each member of the group occurs among ``ranks`` int64 [k]: int64 [members]."""
    members = torch.tensor(group.members)
    return torch.bincount(torch.searchsorted(members, ranks.cpu()), minlength=len(members))
