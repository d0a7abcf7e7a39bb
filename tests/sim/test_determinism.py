"""Equal inputs give equal bits, whatever seeds Python's hashes."""

import os
import subprocess
import sys

from sim.planned import shipped, spread, statistics, vanilla
from simgnn.sim.simulate import simulate

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from sim.test_determinism import digest
print(digest())
assert not {{"torch", "dgl"}} & set(sys.modules), "the simulator loads no torch"
"""


def digest() -> str:
    """Of an epoch that uses streams, exchanges and collectives on two hosts."""
    hosts = spread(6, 2)
    stats = statistics(hosts)
    return simulate(vanilla(stats), shipped("cpu-100gbe-8", hosts), stats=stats, epochs=3).digest


def test_bit_identical_under_any_hash_seed() -> None:
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = {digest()}
    for seed in ("0", "4711"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SCRIPT.format(tests=tests)]
        found.add(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip())
    assert len(found) == 1
