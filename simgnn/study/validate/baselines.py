"""Baselines to compare predictions with: a linear regression on flops and bytes, and alpha-beta plus roofline.

Both get the same program as the simulator. The regression is fitted to measured runs of other groups than the one that
it predicts; the simulator uses no runs. Alpha-beta plus roofline gets its rates from the same calibration, and no fit.
Both know where ranks share a host's link to the network, and how often an op runs that a guard may skip.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2

import numpy as np

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.work import flops_and_bytes
from simgnn.program.kinds import PAIRWISE_KINDS, OpKind
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray
from simgnn.study.error_measures import Floats

COLLECTIVES = (OpKind.BROADCAST, OpKind.ALLGATHER, OpKind.ALLREDUCE)
REFERENCE_ROWS, REFERENCE_WIDTH, REFERENCE_BYTES = 20_000, 256, 2**20
"""Sizes at which rates are read from a calibration: so large that the cost of a call is negligible."""


@dataclass(frozen=True)
class Demand:
    """Work of each rank in a steady epoch, float64 [P]. Bytes of messages, broadcasts and all-gathers, from rank to
    rank, are divided into those inside a host and those between hosts."""

    flops: Floats
    memory_bytes: Floats
    roofline_s: Floats
    inside_bytes: Floats
    across_bytes: Floats
    alpha_beta_s: float

    def features(self, speeds: Sequence[float], link_bytes_per_s: float | None, hosts: Sequence[int]) -> list[float]:
        """Return the regression's columns: 1, flops, memory bytes, bytes inside hosts, seconds of bytes between hosts.

        ``speeds``: declared share of a core of each rank. ``link_bytes_per_s``: declared rate of a host's link.
        """
        across_s = np.bincount(hosts, self.across_bytes).max() / link_bytes_per_s if link_bytes_per_s else 0.0
        slowest = [(work / np.asarray(speeds)).max() for work in (self.flops, self.memory_bytes)]
        return [1.0, *map(float, slowest), float(self.inside_bytes.max()), float(across_s)]


def demand(program: Program, machine: Machine, decided: Mapping[str, IntArray]) -> Demand:
    """Compute the work of a typical epoch of a program; the first one may differ from it. ``decided``: whether guarded
    ops run, int64 [P, epochs, steps]; such an op counts by the share of steady steps in which it runs."""
    P = program.ranks
    flops, moved, roofline, inside, across = np.zeros((5, P))
    alpha_beta = 0.0
    peak, bandwidth = _rates(machine)
    same = np.equal.outer(program.hosts, program.hosts)
    for step in range(program.calendar.steps):
        ops = [
            (share, op)
            for template, share in program.calendar.typical(step).items()
            for op in program.templates[template].ops
        ]
        for share, op in ops:
            runs = share * (np.ones(P) if op.guard is None else _share(decided[op.guard.decision]))
            for work in op.work:
                sizes = {name: program.sizes.per_rank(size, 1, step) for name, size in work.sizes.items()}
                done, touched = flops_and_bytes(work.primitive, sizes)
                flops += runs * done
                moved += runs * touched
                roofline += runs * np.maximum(done / peak, touched / bandwidth)
            sent, seconds = np.zeros((P, P)), 0.0
            if op.route is not None and op.transfer is not None and op.kind in PAIRWISE_KINDS:
                rows = program.sizes.routes[op.route].matrix(P, 1, step)
                sent = np.asarray(rows * op.transfer.row_bytes, dtype=np.float64)
                seconds = _exchange_s(sent, machine)
            elif op.transfer is not None and P > 1 and op.kind in COLLECTIVES:
                rows = program.sizes.per_rank(op.transfer.rows, 1, step)
                root = op.root or 0
                nbytes = float(rows[root] if op.kind is OpKind.BROADCAST else rows.max()) * op.transfer.row_bytes
                if op.kind is OpKind.ALLREDUCE:  # a ring: 2 (P - 1) steps of bytes / P each
                    seconds = 2 * (P - 1) * _hop_s(nbytes / P, machine)
                else:  # a binomial tree of a broadcast, the P - 1 steps of an all-gather
                    ranks = np.arange(P)  # each sends to the next; a broadcast ends before its root
                    sent[ranks, (ranks + 1) % P] = (P - 1) * nbytes if op.kind is OpKind.ALLGATHER else nbytes
                    sent[:, root] *= op.kind is OpKind.ALLGATHER
                    seconds = (P - 1 if op.kind is OpKind.ALLGATHER else ceil(log2(P))) * _hop_s(nbytes, machine)
            inside += runs * (sent * same).sum(axis=1)
            across += runs * (sent * ~same).sum(axis=1)
            alpha_beta += runs.max() * seconds
    return Demand(flops, moved, roofline, inside, across, alpha_beta)


def _share(values: IntArray) -> Floats:
    """Return the share of steps in which a guarded op runs, [P], without the first epoch if there are several."""
    steady = values[:, 1:] if values.shape[1] > 1 else values
    return np.asarray((steady != 0).mean(axis=(1, 2)))


def roofline_s(found: Demand) -> float:
    """Return the epoch time by alpha-beta plus roofline: the slowest rank's work, then all communication."""
    return float(found.roofline_s.max()) + found.alpha_beta_s


def held_out_regression(rows: Floats, measured: Floats, groups: Sequence[str]) -> Floats:
    """Predict each group [n] by a regression fitted to all other groups (least squares of relative errors, costs not
    negative); NaN if there are none. ``rows``: :meth:`Demand.features`, [n, features]."""
    # SciPy's optimizers: loaded when baselines are fitted
    from scipy.optimize import nnls

    predicted = np.full(len(measured), np.nan)
    names = np.asarray(groups)
    for group in sorted(set(groups)):
        left_out = names == group
        if not left_out.all():
            relative = rows[~left_out] / measured[~left_out, None]
            scale = np.abs(relative).max(axis=0)
            scale[scale == 0] = 1.0
            costs, _ = nnls(relative / scale, np.ones(len(relative)))
            predicted[left_out] = rows[left_out] @ (costs / scale)
    return predicted


def _rates(machine: Machine) -> tuple[Floats, Floats]:
    """Return flops and memory bytes per second of each rank, [P] each, from a large matrix product and copy."""
    product = {"rows": REFERENCE_ROWS, "inner": REFERENCE_WIDTH, "outer": REFERENCE_WIDTH, "item_bytes": 4}
    copied = {"rows": REFERENCE_ROWS, "width": REFERENCE_WIDTH, "item_bytes": 4}
    product_s, _, _ = machine.work_seconds_all("matmul", product)
    copy_s, _, _ = machine.work_seconds_all("copy", copied)
    flops, moved = 2.0 * REFERENCE_ROWS * REFERENCE_WIDTH**2, 2.0 * 4 * REFERENCE_ROWS * REFERENCE_WIDTH
    return flops / product_s, moved / copy_s


def _exchange_s(sent: Floats, machine: Machine) -> float:
    """Return the largest sum of a rank's latencies + seconds of the busiest rank (inside hosts) or host (between)."""
    P = len(sent)
    latency, rate = np.zeros((P, P)), np.full((P, P), np.inf)
    for i, j in zip(*np.nonzero(sent), strict=True):
        price = machine.message(int(i), int(j), REFERENCE_BYTES)
        latency[i, j], rate[i, j] = price.latency_s, price.rate_bytes_per_s
    seconds = sent / rate
    hosts = np.asarray(machine.hosts)
    same = np.equal.outer(hosts, hosts)
    inside = (seconds * same).sum(axis=1).max(initial=0.0)
    of_rank = (seconds * ~same).sum(axis=1)
    return float(latency.sum(axis=1).max() + max(inside, np.bincount(hosts, of_rank).max()))


def _hop_s(nbytes: float, machine: Machine) -> float:
    """Return the seconds of a message between neighbours in a ring of all ranks: longest latency, lowest rate."""
    P = machine.ranks
    hops = [machine.message(i, (i + 1) % P, REFERENCE_BYTES) for i in range(P)]
    return max(hop.latency_s for hop in hops) + nbytes / min(hop.rate_bytes_per_s for hop in hops)
