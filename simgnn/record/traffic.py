"""Traffic of an epoch by one definition for both backends and all systems: what ranks put on links, and why.

A rank's traffic is every byte that leaves it for another rank, on the same host or another. A message counts its bytes
once. A collective counts what its algorithm sends: an all-reduce of n bytes over P ranks 2 (P - 1) n, a broadcast and
each part of an all-gather (P - 1) times their bytes, a barrier nothing. Rings, trees and binomial trees all send as
much; they differ in which rank sends it. Here each rank of an all-reduce or all-gather counts what it sends on a ring,
and the root of a broadcast counts all of it.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from simgnn.program.kinds import COLLECTIVE_KINDS, OpKind
from simgnn.program.program import Program
from simgnn.record.epoch_kinds import kinds_among

Floats = NDArray[np.float64]


class LinkTraffic(BaseModel):
    """Bytes that the links of one kind carry in an epoch. A byte counts on every link that it crosses.

    ``link``: its name in the profile (``links.NAME``). ``total_bytes``: of all such links, both directions together;
    copies between a GPU and its host's memory count, too. ``busiest``: the direction of one link that carries most.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    link: str
    total_bytes: float
    busiest: str
    busiest_bytes: float


class Traffic(BaseModel):
    """Bytes that each rank sends to others in an epoch, float [P]; mean over the result's payload epochs, where epochs
    differ over a period of those of each kind.

    ``total`` = ``payload`` (rows, gradients, weights, ids of rows) + ``control`` (counts, masks, flags by which ranks
    agree). ``by_link``: what the links of the profile carry, most first; of predictions only.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    total: list[float]
    payload: list[float]
    control: list[float]
    by_link: list[LinkTraffic] = []


def bytes_per_handed_byte(kind: OpKind, members: int) -> float:
    """Return the bytes that a rank sends for each byte of the tensor that it hands to a collective of ``members``; for
    a broadcast the root alone hands one."""
    if members < 2 or kind is OpKind.BARRIER:
        return 0.0
    return 2.0 * (members - 1) / members if kind is OpKind.ALLREDUCE else members - 1.0


def traffic_by_rank(program: Program, trace: Mapping[str, NDArray[Any]], epochs: range) -> Traffic:
    """Sum the traffic of each rank over the training ops of a trace, as the mean of ``epochs``; where epochs differ, as
    the mean over a period of that of each kind among them. ``trace``: columns of ``TRACE_SCHEMA``."""
    sums = np.zeros((3, program.ranks))
    for alike in kinds_among(program.calendar, epochs):
        sums += alike.share * (_sums_of(program, trace, alike.epochs) / len(alike.epochs))
    total, of_payload, of_control = sums.tolist()
    return Traffic(total=total, payload=of_payload, control=of_control)


def _sums_of(program: Program, trace: Mapping[str, NDArray[Any]], epochs: NDArray[np.int64]) -> Floats:
    """All bytes of each rank in ``epochs``, those of payload, and those of control, [3, P]."""
    chosen = (trace["step"] >= 0) & np.isin(trace["epoch"], epochs)
    names = "rank", "op_id", "bytes_sent", "collective_bytes", "control_bytes"
    rank, op_id, sent, collective, control = (trace[name][chosen] for name in names)
    factor = _factors(program)[op_id, rank]
    is_collective = np.array([op.kind in COLLECTIVE_KINDS for _, op in program.ops], dtype=np.bool_)[op_id]
    payload = sent + collective * factor
    agreed = control * np.where(is_collective, factor, 1.0)
    parts = payload + agreed, payload, agreed
    return np.stack([np.bincount(rank, part, minlength=program.ranks) for part in parts])


def _factors(program: Program) -> Floats:
    """:func:`bytes_per_handed_byte` of every op on every rank, [ops, P]; zero for ops that are no collective."""
    found = np.zeros((len(program.ops), program.ranks))
    for number, (_, op) in enumerate(program.ops):
        if op.kind in COLLECTIVE_KINDS:
            team, runs = program.team_of(op), np.ones(program.ranks, dtype=np.bool_)
            if op.ranks is not None:
                runs = np.asarray(program.sizes.columns[op.ranks]) != 0
            for one in np.unique(team[runs]).tolist():
                members = runs & (team == one)
                found[number, members] = bytes_per_handed_byte(op.kind, int(members.sum()))
    return found
