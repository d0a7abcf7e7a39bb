"""CPU quotas: both versions of cgroups are found and written, on a fake root folder."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.testbed.cgroups import LEAST_QUOTA_US, MOST_PERIOD_US, Controller, find_controller, limits, members
from simgnn.errors import BackendError, ConfigError

V1 = "31 28 0:26 {inside} /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{options}\n"
V2 = "42 28 0:35 / /sys/fs/cgroup{sub} rw,relatime - cgroup2 cgroup2 rw\n"
OTHER = "20 1 0:19 / /proc rw - proc proc rw\n"


def fake(root: Path, mounts: str, own: str = "1:cpu:/\n0::/\n") -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(OTHER + mounts)
    (root / "proc/self/cgroup").write_text(own)
    for line in mounts.splitlines():
        (root / line.split()[4].lstrip("/")).mkdir(parents=True, exist_ok=True)
    return root


def test_version_1_is_found_by_its_option_whatever_the_folder_is_called(tmp_path: Path) -> None:
    for number, (name, options) in enumerate((("cpu", "cpu"), ("cpu,cpuacct", "cpu,cpuacct"))):
        root = fake(
            tmp_path / str(number),
            V1.format(inside="/", name="cpuset", options="cpuset") + V1.format(inside="/", name=name, options=options),
        )
        assert find_controller(root) == Controller(1, root / "sys/fs/cgroup" / name)


def test_version_1_stays_below_the_own_group(tmp_path: Path) -> None:
    mount = V1.format(inside="/", name="cpu", options="cpu")
    root = fake(tmp_path / "a", mount, "1:cpu:/system.slice/x\n")
    assert find_controller(root).base == root / "sys/fs/cgroup/cpu", "a group that is not seen here"
    (root / "sys/fs/cgroup/cpu/system.slice/x").mkdir(parents=True)
    assert find_controller(root).base == root / "sys/fs/cgroup/cpu/system.slice/x"
    # a container sees its own group as the root of the mount
    inside = V1.format(inside="/docker/1", name="cpu", options="cpu")
    root = fake(tmp_path / "b", inside, "1:cpu:/docker/1\n")
    assert find_controller(root).base == root / "sys/fs/cgroup/cpu"


def test_version_2_is_taken_only_where_it_has_the_cpu(tmp_path: Path) -> None:
    both = V1.format(inside="/", name="cpu", options="cpu") + V2.format(sub="/unified")
    root = fake(tmp_path / "hybrid", both)
    controllers = root / "sys/fs/cgroup/unified/cgroup.controllers"
    controllers.write_text("hugetlb\n")
    assert find_controller(root).version == 1
    controllers.write_text("cpu memory\n")
    assert find_controller(root) == Controller(2, root / "sys/fs/cgroup/unified")


def test_without_a_controller_the_message_says_so(tmp_path: Path) -> None:
    root = fake(tmp_path / "a", V1.format(inside="/", name="memory", options="memory") + V2.format(sub="/unified"))
    (root / "sys/fs/cgroup/unified/cgroup.controllers").write_text("memory\n")
    for where in (root, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match="no CPU controller of cgroups"):
            find_controller(where)


def test_a_group_of_version_1(tmp_path: Path) -> None:
    controller = Controller(1, tmp_path)
    assert not controller.lacks_switch()
    controller.make("simgnn-x/rank3", 0.5)
    assert (tmp_path / "simgnn-x/rank3/cpu.cfs_period_us").read_text() == "10000"
    assert (tmp_path / "simgnn-x/rank3/cpu.cfs_quota_us").read_text() == "5000"


def test_a_group_of_version_2_gets_the_controller_on_its_way(tmp_path: Path) -> None:
    switch = tmp_path / "cgroup.subtree_control"
    switch.write_text("memory\n")
    controller = Controller(2, tmp_path)
    assert controller.lacks_switch()
    controller.make("simgnn-x/rank3", 1.5)
    assert switch.read_text() == "+cpu"
    assert (tmp_path / "simgnn-x/cgroup.subtree_control").read_text() == "+cpu"
    assert (tmp_path / "simgnn-x/rank3/cpu.max").read_text() == "15000 10000"
    switch.write_text("cpu memory\n")
    assert not controller.lacks_switch()
    controller.make("simgnn-x/rank1", 0.5)
    assert switch.read_text() == "cpu memory\n"


def test_a_group_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "simgnn-x").write_text("a file")
    with pytest.raises(BackendError, match=r"the quota of cgroup .* cannot be set"):
        Controller(1, tmp_path).make("simgnn-x/rank3", 0.5)


@settings(deadline=None)
@given(cores=st.floats(0.002, 256))
def test_limits_are_what_the_kernel_takes(cores: float) -> None:
    period, quota = limits(cores)
    assert 1000 <= period <= MOST_PERIOD_US
    assert quota >= LEAST_QUOTA_US
    assert math.isclose(quota / period, cores, rel_tol=2e-3)


def test_members_of_groups(tmp_path: Path) -> None:
    for name, text in (("a", "1\n22\n"), ("b", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text(text)
    assert members([tmp_path / name for name in ("a", "b", "gone")]) == {1, 22}
