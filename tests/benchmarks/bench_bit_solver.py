"""CPU seconds that choosing the bits of 100,000 messages of 8 ranks takes, on one core.

Run: python tests/benchmarks/bench_bit_solver.py [group size ..]
"""

import sys
from time import process_time

import numpy as np

from simgnn.emit.bit_widths.solver import Groups, Links, choose_bits

RANKS, MESSAGES, WIDTH, HEADER = 8, 100_000, 256, 8


def groups_of(size: int, seed: int = 0) -> Groups:
    """Groups of the messages of one exchange, sorted by beta, of pairs of ranks with unequal numbers of messages."""
    draw = np.random.default_rng(seed)
    pairs = RANKS * (RANKS - 1)
    counts = draw.multinomial(MESSAGES, draw.dirichlet(np.full(pairs, 4.0)))
    beta, rows, link = [], [], []
    for pair, count in enumerate(counts):
        each = np.sort(draw.lognormal(0, 1.5, count))
        starts = np.arange(0, count, size)
        beta.append(np.add.reduceat(each, starts))
        rows.append(np.diff(np.append(starts, count)))
        link.append(np.full(len(starts), pair))
    links = Links(draw.choice([1e-10, 1e-9], pairs), np.full(pairs, 2e-5))
    joined = (np.concatenate(part) for part in (beta, rows, link))
    return Groups(*joined, links, (2, 4, 8), [HEADER + WIDTH * bits // 8 for bits in (2, 4, 8)])


def main() -> None:
    choose_bits(groups_of(1000), 0.5)  # compiles
    for size in [int(word) for word in sys.argv[1:]] or [100, 1]:
        groups = groups_of(size)
        began = process_time()
        bits = choose_bits(groups, 0.5)
        spent = process_time() - began
        shares = ", ".join(f"{b} bits {np.mean(bits == b):.0%}" for b in (2, 4, 8))
        print(f"group size {size}: {len(groups.beta)} groups, {spent:.3f} s CPU ({shares})")


if __name__ == "__main__":
    main()
