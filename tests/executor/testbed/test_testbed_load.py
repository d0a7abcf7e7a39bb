"""What a link does while messages fill it, measured for real: namespaces as hosts."""

import subprocess
from pathlib import Path

import pytest

from executor.testbed import lifecycle
from executor.testbed.profile import WIRE
from simgnn.hardware.profile.profile import load_profile, save_profile
from tests.executor.testbed.beds import LIMIT_S, WHY_NOT, bed, clean, command, on_file
from tests.executor.testbed.test_testbed_profile import base

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"no testbed here: {WHY_NOT}")
__all__ = ["clean"]


@pytest.mark.slow
@pytest.mark.parametrize(("queue", "each", "levels"), [("fifo", 1, [1]), ("fifo", 2, [1, 2, 4]), ("fair", 1, [1])])
def test_small_messages_wait_behind_large_ones_and_bytes_take_processor_time(
    queue: str, each: int, levels: list[int], tmp_path: Path
) -> None:
    declared = bed(ranks_per_host=each, queue=queue)
    save_profile(base(), tmp_path / "base.toml")
    words = ["profile", on_file(declared, tmp_path), "--base", tmp_path / "base.toml", "--out", tmp_path / "out.toml"]
    done = subprocess.run(command(*words, "--measure-load"), capture_output=True, text=True, timeout=2 * LIMIT_S)
    if "other work kept" in done.stderr:
        assert done.returncode == 1
        assert not (tmp_path / "out.toml").exists()
        pytest.skip("the machine is not quiet")
    assert done.returncode == 0, done.stderr
    assert "load of the link: round 5 of 5" in done.stderr
    load = load_profile(tmp_path / "out.toml").links[WIRE].load
    assert load is not None
    assert [queue.messages for queue in load.queues] == levels
    if queue == "fifo":
        assert all(each.size > 30_000 for each in load.queues), "a TCP connection keeps more than a few packets queued"
        assert load.queues[-1].size >= load.queues[0].size
    else:
        assert all(each.size < 30_000 for each in load.queues), "connections take turns"
    assert load.processor
    assert load.source == "measured"
    assert not lifecycle.status(declared.name)["up"], "it was not up before"
