"""Times of the five operations by which devices are compared: the paper's on its server, copies on a CPU, faults."""

import pytest

from simgnn.errors import HardwareError
from simgnn.hardware.price.device_times import MATRIX_BYTES, SIDE, STORED, device_times
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile, parse_profile

PUBLISHED = {
    "rtx3090": (0.1383, 0.1063, 0.1197, 0.1213, 0.0014),
    "a40": (0.1421, 0.1198, 0.1187, 0.1189, 0.0021),
    "rtx3060": (0.3439, 0.1962, 0.1220, 0.1236, 0.0038),
    "gtx1660ti": (0.9938, 0.3409, 0.1238, 0.1244, 0.0057),
}
"""Mean seconds of dense product, sparse product, copy to the device, to the host and inside (CaPGNN, Table 1)."""


def test_the_paper_s_server_has_the_paper_s_times() -> None:
    machine = Machine.place(load_profile("mixed-pcie3-8"), [0] * 8)
    found = device_times(machine)
    assert [one.device for one in found] == [name for name in PUBLISHED for _ in range(2)]
    for one in found:
        published = PUBLISHED[one.device]
        times = (one.matmul_s, one.spmm_s, one.h2d_s, one.d2h_s, one.copy_s)
        for place, (mine, theirs) in enumerate(zip(times, published, strict=True)):
            # one rate stands for the copies of all four to and from the host
            assert mine == pytest.approx(theirs, rel=0.05 if place in (2, 3) else 0.03), (one.device, place)
        assert one.memory_bytes == {"rtx3090": 24, "a40": 48, "rtx3060": 12, "gtx1660ti": 6}[one.device] << 30
    rates = found[0]
    assert rates.matmul_flops == pytest.approx(2 * SIDE**3 / rates.matmul_s)
    assert rates.spmm_flops == pytest.approx(2 * STORED * SIDE / rates.spmm_s)
    assert rates.copied_bytes_per_s[2] == pytest.approx(2 * MATRIX_BYTES / rates.copy_s)
    assert (STORED, MATRIX_BYTES) == (536_849, 536_848_900)


def test_a_cpu_copies_alike_and_shares_its_memory() -> None:
    profile = load_profile("vm-epyc-2")
    one, other = device_times(Machine.place(profile, [0, 0]))
    assert one == other
    assert one.h2d_s == one.d2h_s == one.copy_s > 0
    (alone,) = device_times(Machine.place(profile, [0]))
    assert alone.memory_bytes == pytest.approx(2 * one.memory_bytes, abs=2)
    assert alone.matmul_s <= one.matmul_s


@pytest.mark.parametrize("primitive", ["matmul", "spmm", "copy"])
@pytest.mark.parametrize("name", ["mixed-pcie3-8", "vm-epyc-2"])
def test_a_missing_operation_is_refused_by_its_key(name: str, primitive: str) -> None:
    table = load_profile(name).to_table()
    kind = next(key for key in table["devices"] if table["devices"][key].get("curves"))
    curves = table["devices"][kind]["curves"]
    table["devices"][kind]["curves"] = [curve for curve in curves if curve["primitive"] != primitive]
    machine = Machine.place(parse_profile(table), [0, 0])
    with pytest.raises(HardwareError, match=rf"devices\.{kind}\.curves: the device has no curve of '{primitive}'"):
        device_times(machine)


def test_a_gpu_without_a_way_to_its_host_is_refused() -> None:
    table = load_profile("mixed-pcie3-8").to_table()
    host = table["topology"]["hosts"]["server"]
    host["edges"] = [edge for edge in host["edges"] if "r90" not in edge["between"]]
    with pytest.raises(HardwareError, match="topology"):
        device_times(Machine.place(parse_profile(table), [0]))
