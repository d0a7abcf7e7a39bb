"""The slots of an experiment: their defaults, and checks between choices. Each policy and section reports which choices
do not suit it, by the traits of the others."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

from simgnn import policy
from simgnn.emit.batches.neighbours import Batching, NeighbourSampling
from simgnn.emit.batches.placement import Placement, RowStore
from simgnn.emit.chunks.policies import ChunkCommunication, ChunkPlacement
from simgnn.emit.communication import BatchCommunication, Communication
from simgnn.emit.freshness import Freshness, MovesBlocks, MovesRows
from simgnn.errors import ConfigError
from simgnn.experiment.problems import Origin, line, shown
from simgnn.policy import Choices, CommunicationTraits, Cut, Epochs, Moves, Partitioner, Policy, Refusal, Serving
from simgnn.program.calendar import MOST_SPECIAL, special_epochs
from simgnn.registry import file_of, policy_class, reported, shipped

SLOTS: tuple[str, ...] = tuple(policy.SLOTS)
DEFAULT_KIND: Mapping[str, str] = {
    "partition": "metis", "communication": "halo", "batching": "full", "freshness": "always", "codec": "none",
    "placement": "device", "schedule": "bsp",
}  # fmt: skip
"""The kind in each slot that an experiment does not name: vanilla's choices."""
SERVING = {slot: base for slot, base in policy.SLOTS.items() if issubclass(base, Serving)}
"""Slots whose choices say which transfers they serve."""
MOVED: Mapping[Moves, str] = {
    "rows": "listed rows of the full graph",
    "blocks": "whole blocks of rows of the full graph",
    "batches": "input rows of mini-batches",
    "chunks": "rows of chunks, between hosts and devices",
}
BASES: Mapping[str, tuple[type[Policy], ...]] = {
    "communication": (Communication, Communication, BatchCommunication, ChunkCommunication),
    "batching": (Batching, Batching, NeighbourSampling, Batching),
    "freshness": (MovesRows, MovesBlocks, Freshness, Freshness),
    "codec": (policy.Codec, policy.Codec, policy.Codec, policy.Codec),
    "placement": (Placement, Placement, RowStore, ChunkPlacement),
    "schedule": (policy.Schedule, policy.Schedule, policy.MiniBatchSchedule, policy.Schedule),
}
"""Slot -> the classes whose methods the planner calls, for rows, blocks, batches and chunks."""
Stated = Callable[[tuple[str, ...]], bool]
"""Whether a key path was written by a user: in a file that is not a shipped system, or on the command line."""


def kinds_in(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kind that an experiment's table names in each slot."""
    slots = {slot: table.get(slot) for slot in SLOTS}
    return {slot: found["kind"] for slot, found in slots.items() if isinstance(found, Mapping) and "kind" in found}


def usable_class(slot: str, kind: object) -> type[Policy]:
    """Return the class of a policy. Raises :class:`ConfigError` also where it lacks what its traits promise."""
    found = policy_class(slot, kind)
    for fault in _broken_promises(found):
        raise ConfigError(f"got '{kind}', {fault} ({file_of(found)})")
    return found


def _broken_promises(found: type[Policy]) -> Iterator[str]:
    if issubclass(found, Partitioner | CommunicationTraits) and getattr(found, "cut", None) not in get_args(Cut):
        yield f"a class whose cut is none of {', '.join(get_args(Cut))}"
    moves: Any = getattr(found, "serves", ())
    if issubclass(found, CommunicationTraits):
        moves = (found.moves,)
    elif issubclass(found, policy.BatchingTraits):
        moves = ("batches" if found.mini_batches else "rows",)
    if not isinstance(moves, tuple) or not MOVED.keys() >= set(moves):
        yield f"a class that serves {moves!r}, expected a tuple of {', '.join(MOVED)}"
        return
    for what, base in zip(MOVED, BASES.get(found.slot, ()), strict=False):
        if what in moves and not issubclass(found, base):
            yield f"a class for {what}, which must derive from {base.__name__} (simgnn.emit, simgnn.policy)"
    for trait, needed in (("encodes", False), ("exact", True)):
        if "batches" in moves and getattr(found, trait, needed) is not needed:
            why = "rows of batches travel as they are, all of this step"
            yield f"a class that serves batches, which needs {trait} = {needed}: {why}"


def settled(
    values: Mapping[str, Any], origin: Origin, stated: Stated, trains: bool = True
) -> tuple[dict[str, Any], list[str]]:
    """Return ``values`` (section or slot -> checked value) without idle options of shipped systems, and all faults.

    An option without effect falls back to its default; if a user has set it, it is a fault. ``trains``: whether the
    partition is to be trained on, so that all slots must suit one another."""
    asked = {name: values[name] for name in (*SLOTS, "model", "train", "graph", "cluster")}
    choices = Choices(**asked, trains=trains, kinds=shipped)
    problems: list[str] = []
    with reported(asked[slot] for slot in SLOTS):
        for name in asked:
            for option, choice, why in getattr(choices, name).idle(choices):
                options = getattr(choices, name)
                default = type(options).model_fields[option].default
                if stated((name, option)):
                    expected = "no value" if default is None else shown(default)
                    got = shown(getattr(options, option))
                    message = f"got {got} with {choice}, expected {expected}, the default: {why}"
                    problems.append(line((name, option), message, origin))
                else:
                    choices = replace(choices, **{name: options.model_copy(update={option: default})})
        found = [*slot_refusals(choices), *epoch_refusals(choices)]
        for name in asked:
            found += getattr(choices, name).refuses(choices)
        problems += [line((section, option), message, origin) for section, option, message in found]
    return {**values, **{name: getattr(choices, name) for name in asked}}, problems


def slot_refusals(choices: Choices) -> Iterator[Refusal]:
    """Yield slots that do not suit one another: what a partition divides, and what moves rows, blocks or batches."""
    if not choices.trains:
        return
    communication, batching = choices.communication, choices.batching
    if choices.partition.cut != communication.cut:
        yield Refusal(
            "partition", "kind",
            f"got '{choices.partition.label}' with communication.kind = '{communication.label}', "
            f"{expected_cut(communication.cut)}",
        )  # fmt: skip
    moved: set[Moves] = {communication.moves}
    if (communication.moves == "batches") != batching.mini_batches:
        moved = {"batches"} if batching.mini_batches else {"rows", "blocks"}
        fitting = choices.fitting(CommunicationTraits, lambda other: other.moves in moved)
        yield Refusal(
            "communication", "kind",
            f"got '{communication.label}' with batching.kind = '{batching.label}', expected {fitting}: "
            f"it moves {MOVED[communication.moves]}",
        )  # fmt: skip
    for slot in SERVING:
        choice: Serving = getattr(choices, slot)
        if moved.isdisjoint(choice.serves):
            beside = batching if "batches" in (*moved, *choice.serves) else communication
            yield Refusal(
                slot, "kind",
                f"got '{choice.label}' with {beside.slot}.kind = '{beside.label}', expected "
                f"{choices.fitting(SERVING[slot], lambda other: not moved.isdisjoint(other.serves))}: it does not "
                f"serve {' or '.join(MOVED[each] for each in sorted(moved))}",
            )  # fmt: skip


def epoch_refusals(choices: Choices) -> Iterator[Refusal]:
    """Yield special epochs (:class:`~simgnn.policy.Epochs`) of freshness and codec that cannot be planned."""
    asked: dict[str, Epochs] = {}
    for choice in (choices.freshness, choices.codec):
        epochs = choice.epochs
        faults = list(epochs.faults()) if isinstance(epochs, Epochs) else [f"{epochs!r}, expected Epochs"]
        yield from (Refusal(choice.slot, "kind", f"'{choice.label}' declares {fault} (epochs)") for fault in faults)
        if not faults:
            asked[choice.slot] = epochs
    cycles = [cycle for epochs in asked.values() for cycle in epochs.cycles]
    if len(asked) < 2 or not choices.trains:
        return
    freshness, codec = choices.freshness, choices.codec
    for choice in (freshness, codec) if choices.batching.mini_batches else ():
        names = " and ".join(f"'{name}'" for name in asked[choice.slot].special)
        if names and "batches" in choice.serves:  # else :func:`slot_refusals` refuses it
            yield Refusal(
                choice.slot, "kind",
                f"got '{choice.label}' with batching.kind = '{choices.batching.label}', expected another "
                f"{choice.slot}: its special epochs ({names}) are those of the full graph, and an epoch of "
                "mini-batches has many steps",
            )  # fmt: skip
    both = sorted(set(asked["freshness"].special) & set(asked["codec"].special))
    if both:
        yield Refusal(
            "codec", "kind",
            f"got '{codec.label}' with freshness.kind = '{freshness.label}', expected a codec whose special epochs "
            f"have other names: both call epochs '{both[0]}', and mean different ones",
        )  # fmt: skip
    refuses = any(codec.refuses(choices))  # and says more of it
    if asked["codec"].special and choices.communication.moves == "blocks" and not refuses:
        yield Refusal(
            "codec", "kind",
            f"got '{codec.label}' with communication.kind = '{choices.communication.label}', expected a codec without "
            f"special epochs ({', '.join(asked['codec'].special)}): blocks have one form in all epochs",
        )  # fmt: skip
    if special_epochs(tuple(cycles)) > MOST_SPECIAL:
        one, other = asked["freshness"].period, asked["codec"].period
        yield Refusal(
            "codec", "kind",
            f"got '{codec.label}', whose special epochs repeat after {other} epochs, with freshness.kind = "
            f"'{freshness.label}', whose repeat after {one}: together they have {special_epochs(tuple(cycles))} before "
            f"they repeat, expected at most {MOST_SPECIAL}: choose periods of which one divides the other",
        )  # fmt: skip


def expected_cut(cut: Cut) -> str:
    """List the shipped partitions that divide a graph by a cut, for messages."""
    what = "edges (a vertex-cut)" if cut == "vertex-cut" else "vertices (an edge-cut)"
    kinds = shipped("partition").items()
    fitting = [kind for kind, found in kinds if issubclass(found, Partitioner) and found.cut == cut]
    return f"expected a partition that divides {what}; use {', '.join(fitting)}"
