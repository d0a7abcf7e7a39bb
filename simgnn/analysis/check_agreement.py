"""Whether recorded decisions agree with one another: what one rank sent another received, what mirrors sent woke their
masters, and counts by numbers of replicas add up to their totals."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgnn.analysis.check_record import Use, refusal, turns, uses
from simgnn.analysis.replay_rows import arrivals
from simgnn.emit.row_cache import EndEpoch
from simgnn.policies.replicas import Publication, awakenings, masters_by_replicas
from simgnn.policies.within_hosts import handed_on
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray
from simgnn.record.activity import decisions_in

EVERYWHERE = "on all ranks alike"


class Claim(NamedTuple):
    """What must hold in every turn of a decision: ``holds`` bool [P, epochs, steps], or [P, P, epochs, steps]."""

    decision: str
    holds: NDArray[np.bool_]
    expected: str


def check_agreement(root: Path, program: Program, decisions: Mapping[str, IntArray], multilabel: bool) -> None:
    """Raise :class:`ConfigError` where decisions of a run of ``program`` contradict one another, and for decisions that
    it does not take. Numbers are within their bounds (:func:`~simgnn.analysis.check_record.check_record`); a decision
    that is absent altogether is not looked for, but for counts of a controller. ``multilabel``: what these count."""
    known = uses(program)
    syncs = awakenings(program)
    tallies = {one.tally: tallied(one, decisions, program.ranks) for one in syncs}
    counts = {name for pair in counted(program) for name in pair}
    told = decisions_in(program) | counts | {name for found in tallies.values() for name in found.values()}
    unknown = sorted(decisions.keys() - told)
    if unknown:
        raise refusal(root, f"decision '{unknown[0]}'", "recorded", "none of this name: its program does not take it")
    paired = [name for found in tallies.values() for name in found.values() if decisions[name].ndim != 3]
    if paired:
        raise refusal(root, f"decision '{paired[0]}'", "told for peers", "one a rank")
    for claim in _claims(program, decisions, known, tallies):
        values = decisions[claim.decision]
        use = known.get(claim.decision)
        taken = np.ones(values.shape[-2:], dtype=np.bool_) if use is None else turns(program, use, values.shape[-2])
        wrong = np.argwhere(~claim.holds & taken)
        if len(wrong):
            *ranks, epoch, step = wrong[0].tolist()
            whose = f"on rank {ranks[0]}" if len(ranks) == 1 else f"for rank {ranks[1]} on rank {ranks[0]}"
            where = f"decision '{claim.decision}' in epoch {epoch}, step {step}"
            raise refusal(root, where, f"{int(values[(*ranks, epoch, step)])} {whose}", claim.expected)
    _check_counts(root, program, decisions, multilabel)


def tallied(one: Publication, decisions: Mapping[str, IntArray], ranks: int) -> dict[int, str]:
    """Recorded counts of woken masters: number of replicas (or hosts), 1 to ``ranks``, -> name of the decision."""
    names = {r: f"{one.tally}-{r}" for r in range(1, ranks + 1)}
    return {r: name for r, name in names.items() if name in decisions}


def counted(program: Program) -> tuple[tuple[str, str], ...]:
    """Names under which controllers record how many rows were right, and of how many."""
    points = [str(op.options["point"]) for _, op in program.ops if op.action == EndEpoch.label]
    return tuple((f"{point}/correct", f"{point}/count") for point in dict.fromkeys(points))


def _claims(
    program: Program, decisions: Mapping[str, IntArray], known: Mapping[str, Use], tallies: Mapping[str, dict[int, str]]
) -> Iterator[Claim]:
    for arrived, sent in arrivals(program).items():
        if arrived in decisions and sent in decisions:
            total = decisions[sent].sum(axis=0)
            yield Claim(arrived, decisions[arrived] == total, f"as many as all ranks together sent it by '{sent}'")
    for one in awakenings(program):
        if one.active not in decisions:
            continue
        active = decisions[one.active]
        published, gathered = decisions.get(one.published), decisions.get(one.gathered)
        if published is not None:
            yield Claim(
                one.published, published <= active[:, None], f"at most one row of each of the masters in '{one.active}'"
            )
        if gathered is not None:
            woken = f"at least as many as any rank sent it by '{one.gathered}', which wake them"
            yield Claim(one.active, active >= gathered.max(axis=0), woken)
            if published is not None:
                yield Claim(one.published, published >= gathered.swapaxes(0, 1), f"those that '{one.gathered}' woke")
        yield from _of_tallies(program, decisions, one, tallies[one.tally])
    for hop in handed_on(program):
        if all(name in decisions for name in (hop.rows, *hop.news)):
            news = np.sum([decisions[name] for name in hop.news], axis=0)
            names = " and ".join(f"'{name}'" for name in hop.news)
            yield Claim(hop.rows, decisions[hop.rows] <= news[:, None], f"at most the rows of which {names} bring news")


def _of_tallies(
    program: Program, decisions: Mapping[str, IntArray], one: Publication, names: Mapping[int, str]
) -> Iterator[Claim]:
    """Woken masters by their number of replicas: a rank tells nothing of numbers that none of its masters has."""
    if not names:
        return
    # each is bounded before any are added up
    masters = masters_by_replicas(program)
    shared = decisions[one.active]
    for r, name in names.items():
        most = masters.get(r, np.zeros(program.ranks, dtype=np.int64))[:, None, None] if masters else shared
        within = (decisions[name] >= -1) & (decisions[name] <= np.minimum(most, shared))
        yield Claim(name, within, f"-1 to the number of its masters with {r} copies, and of those in '{one.active}'")
    counts = {r: np.maximum(decisions[name], 0) for r, name in names.items()}
    total = np.sum(list(counts.values()), axis=0)
    yield Claim(one.active, shared == total, f"the sum of its counts by number of copies ('{one.tally}-')")
    if one.published in decisions:
        rows = np.sum([(r - 1) * count for r, count in counts.items()], axis=0)
        sent = decisions[one.published].sum(axis=1)
        yield Claim(one.active, rows == sent, f"such that '{one.tally}-' give the rows of '{one.published}'")


def _check_counts(root: Path, program: Program, decisions: Mapping[str, IntArray], multilabel: bool) -> None:
    """What a controller was told: right ones of all training rows, sums over ranks that all of them know."""
    trained = program.sizes.columns.get("train_rows")
    for correct, count in counted(program):
        for name in (correct, count):
            if name not in decisions:
                raise refusal(root, f"decision '{name}'", "missing", "one of every epoch")
            values = decisions[name]
            if values.ndim != 3 or np.any(values != values[:1]) or np.any(values < 0):
                raise refusal(root, f"decision '{name}'", "not the same on all ranks, or below zero", EVERYWHERE)
        if np.any(decisions[correct] > decisions[count]):
            raise refusal(root, f"decision '{correct}'", f"above '{count}'", "at most that")
        if trained is not None and not multilabel and np.any(decisions[count] != trained.sum()):
            raise refusal(root, f"decision '{count}'", "not what was trained on", f"{int(trained.sum())} training rows")
