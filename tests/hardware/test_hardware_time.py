"""``simgnn hardware time``: the simulator's own prices, one op at a time."""

import json
import math
from collections.abc import Sequence
from math import hypot
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.cli.main import invoke
from simgnn.errors import HardwareError
from simgnn.hardware.price.host_copies import host_route
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.operations import FORMS, option, read_question, spread_ranks
from simgnn.hardware.primitives import PRIMITIVES
from simgnn.hardware.profile.error_model import error_model
from simgnn.hardware.profile.profile import Profile, load_profile, parse_profile
from simgnn.sim.one_op import time_op
from tests.hardware.conftest import work_seconds

STAND_INS = {name for name, row in PRIMITIVES.items() if row.stand_in is not None}
DATA = Path(__file__).parent / "data"
SERVER = str(DATA / "invented-server.toml")


def ask(profile: Profile, op: str, per_host: int | None = None, **options: Any) -> Any:
    """The time of an op; sizes as text."""
    extra = {name: options.pop(name) for name in ("ranks", "matrix") if name in options}
    question = read_question(op, {key.strip("_"): str(value) for key, value in options.items()}, **extra)
    return time_op(question, Machine.place(profile, spread_ranks(profile, question.ranks, per_host)))


def test_a_message_takes_latency_floor_and_bytes_by_rate(server: Profile) -> None:
    found = ask(server, "send", bytes="8 MB", from_=0, to=4)
    # pcie, pcie, infiniband, infiniband, pcie, pcie: 2 + 2 + 5 + 5 + 2 + 2 us, a floor of 4 us, 8 GB/s for one message
    assert found.seconds == pytest.approx(18e-6 + 4e-6 + 8e6 / 8e9, rel=1e-9)
    assert not found.extrapolated
    assert {told.key for told in found.numbers} >= {"links.infiniband.bandwidth", "backends.nccl.message.floor"}
    assert not any("nvlink" in told.key for told in found.numbers)


def test_a_message_goes_over_the_library_that_was_asked_for() -> None:
    profile = load_profile("a100-nvlink-4")
    machine = Machine.place(profile, (0, 0))
    taken = {}
    for backend in ("default", "nccl", "gloo"):
        question = read_question("send", {"bytes": "1 B", "from": "0", "to": "1"}, backend=backend)
        taken[backend] = time_op(question, machine).seconds
    assert taken["default"] == taken["nccl"] < taken["gloo"]


def test_messages_of_an_exchange_share_the_link_between_hosts(server: Profile) -> None:
    alone = np.zeros((8, 8), dtype=int)
    alone[0, 4] = 80_000_000
    both = alone.copy()
    both[1, 5] = 80_000_000
    one = ask(server, "exchange", matrix=alone.tolist()).seconds
    two = ask(server, "exchange", matrix=both.tolist()).seconds
    fixed = 10e-6 + 7 * 2e-6 + 18e-6 + 4e-6
    assert one == pytest.approx(fixed + 0.08 / 8, rel=1e-9)
    assert two == pytest.approx(fixed + 0.16 / 10, rel=1e-9)


def test_work_and_collectives_cost_what_the_machine_says(server: Profile, cluster: Profile) -> None:
    machine = Machine.place(server, (0, 0, 0, 0))
    price = machine.collective("allreduce", "default", float(1 << 20), range(4))
    assert ask(server, "allreduce", bytes="1 MiB", ranks=4).seconds == pytest.approx(price.seconds_alone, rel=1e-9)
    sizes = {"edges": 1e6, "rows": 1e5, "width": 256, "sources": 1e5, "item_bytes": 4}
    on = Machine.place(cluster, [0] * 8)
    expected = work_seconds(on, 0, "spmm", sizes)
    found = ask(cluster, "aggregate", per_host=8, ranks=8, edges="1e6", rows="1e5", width=256)
    assert found.seconds == pytest.approx(expected.seconds, rel=1e-9)
    assert found.spread == expected.spread == 0.04
    assert found.interval_s[0] * found.interval_s[1] == pytest.approx(found.seconds**2)
    assert math.log(found.interval_s[1] / found.seconds) == pytest.approx(1.645 * 0.04, rel=1e-3)


def test_an_interval_is_that_of_the_size_where_the_profile_tells_it_by_size(table: dict[str, Any]) -> None:
    entry = next(one for one in table["backends"]["nccl"]["collectives"] if one["kind"] == "allreduce")
    entry["bus_bandwidth"]["spread"] = entry["floor"]["spread"] = "50 %"
    entry["own_spread"] = [{"size": "1 kB", "share": "20 %"}, {"size": "1 MB", "share": "2 %"}]
    profile = parse_profile(table)
    found = [ask(profile, "allreduce", bytes=size, ranks=2) for size in ("1 kB", "999 kB", "1 MB", "8 MB")]
    assert [one.spread for one in found] == [0.2, 0.2, 0.02, 0.02]
    below = error_model().of("collectives by size").beyond(1.0)
    assert ask(profile, "allreduce", bytes="10 B", ranks=2).spread == pytest.approx(hypot(0.2, below))
    machine = Machine.place(profile, (0, 0))
    assert machine.collective("allreduce", "default", 8e6, range(2)).spread == 0.02
    assert machine.collective("allreduce", "default", 0, range(2)).spread == 0.2, "nor is a call of nothing surer"
    entry.pop("own_spread")
    assert ask(parse_profile(table), "allreduce", bytes="8 MB", ranks=2).spread == pytest.approx(0.5, rel=1e-3)


def test_what_lies_outside_the_measured_range_is_flagged(server: Profile) -> None:
    assert not ask(server, "matmul", rows=1000, inner=100, outer=100).extrapolated
    assert ask(server, "matmul", rows=1000, inner=8192, outer=100).extrapolated
    assert ask(server, "matmul", rows="1e6", inner=4096, outer=4096).extrapolated
    assert not ask(server, "send", bytes="1 MB", from_=0, to=4).extrapolated
    assert ask(server, "send", bytes="2 GB", from_=0, to=4).extrapolated
    assert ask(server, "send", bytes="1 B", from_=0, to=4).extrapolated
    assert not ask(server, "allreduce", bytes="1 MB", ranks=2).extrapolated
    assert ask(server, "allreduce", bytes="2 GB", ranks=2).extrapolated
    assert ask(server, "allreduce", bytes="1 MB", ranks=3).extrapolated
    assert ask(server, "exchange", bytes="2 GB", ranks=4).extrapolated
    assert not ask(server, "exchange", bytes="1 MB", ranks=4).extrapolated


def test_what_lies_outside_the_range_of_a_links_messages_is_flagged_too() -> None:
    profile = load_profile("dgx-a100")  # a bandwidth of a datasheet, messages measured from 2 KiB to 64 MiB
    for op in ("send", "exchange"):
        found = [ask(profile, op, bytes=size, ranks=2).extrapolated for size in ("1 B", "1 kB", "1 MB", "1 GB")]
        assert found == [True, True, False, True], op
    assert [ask(profile, "allreduce", bytes=size, ranks=2).extrapolated for size in ("0 B", "2 KiB")] == [True, False]


def test_devices_without_peer_access_copy_through_host_memory() -> None:
    profile = load_profile("mixed-pcie3-8")
    machine = Machine.place(profile, spread_ranks(profile, 2))
    price = machine.message(0, 1, 1e6)
    found = ask(profile, "send", bytes="1 MB", from_=0, to=1)
    copies = [host_route(machine, rank, to_device) for rank, to_device in ((0, False), (1, True))]
    copied = sum(path.latency_s + 1e6 / path.message_rate(1e6) for path in copies if path is not None)
    assert found.seconds == pytest.approx(copied + price.latency_s + 1e6 / price.rate_bytes_per_s, rel=1e-6)
    assert any(told.key.startswith("links.") for told in found.numbers)


def test_copies_cross_the_links_to_host_memory_only(server: Profile) -> None:
    found = ask(server, "h2d", bytes="20 MB", ranks=1)
    assert {told.key.split(".")[1] for told in found.numbers} == {"pcie"}
    assert found.seconds == pytest.approx(2e-6 + 1e-3, rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.integers(1000, 10**9), min_size=2, max_size=2),
    op=st.sampled_from(["send", "exchange", "broadcast", "allgather", "allreduce"]),
    ranks=st.integers(2, 16),
)
def test_more_bytes_never_take_less_time(sizes: Sequence[int], op: str, ranks: int) -> None:
    profile = load_profile("a800-pcie-ib-2x8")
    less, more = (ask(profile, op, ranks=ranks, bytes=f"{size} B") for size in sorted(sizes))
    assert 0 < less.seconds <= more.seconds


@settings(max_examples=10, deadline=None)
@given(order=st.permutations(range(4)), seed=st.integers(0, 99))
def test_ranks_that_are_alike_may_be_renamed(order: Sequence[int], seed: int) -> None:
    profile = load_profile("a800-pcie-ib-2x8")
    matrix = np.random.default_rng(seed).integers(0, 10**7, (4, 4))
    renamed = matrix[np.ix_(order, order)]
    first, second = (ask(profile, "exchange", matrix=table.tolist()).seconds for table in (matrix, renamed))
    assert second == pytest.approx(first, rel=1e-6)


def test_hosts_fill_in_order(server: Profile, cluster: Profile) -> None:
    assert spread_ranks(server, 5) == (0, 0, 0, 0, 1)
    assert spread_ranks(server, 0) == (0, 0, 0, 0, 1, 1, 1, 1)
    assert spread_ranks(server, 2, per_host=1) == (0, 1)
    assert spread_ranks(cluster, 16) == tuple(rank // 2 for rank in range(16))
    with pytest.raises(HardwareError, match="room for 8 ranks"):
        spread_ranks(server, 9)


def test_a_matrix_reads_the_same_from_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = [[0, 1 << 20], [2048, 0]]
    np.save(tmp_path / "m.npy", np.array(matrix))
    (tmp_path / "m.json").write_text(json.dumps(matrix))
    (tmp_path / "m.csv").write_text("# from rank 0, then 1\n0 B, 1 MiB\n2048, 0\n")
    times = set()
    for name in ("m.npy", "m.json", "m.csv"):
        assert invoke(["hardware", "time", SERVER, "exchange", "--matrix", str(tmp_path / name), "--json"]) == 0
        times.add(json.loads(capsys.readouterr().out)["seconds"])
    assert len(times) == 1


def test_screen_and_json_tell_source_interval_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["hardware", "time", SERVER, "matmul", "--rows", "1e3", "--inner", "9000", "--outer", "9000"]
    assert invoke([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["source"] == "measured"
    assert told["extrapolated"] is True
    assert told["assumed"] is False
    assert told["spread"] > 0.1, "3.6 doublings of the flops beyond what was measured"
    assert told["interval_s"][0] < told["seconds"] < told["interval_s"][1]
    assert len(told["per_rank_s"]) == told["ranks"] == 8
    assert invoke(words) == 0
    shown = capsys.readouterr()
    assert "90 % interval" in shown.out
    assert "extrapolated" in shown.err
    assert invoke(["hardware", "time", SERVER, "allreduce", "--bytes", "64MiB", "--ranks", "4"]) == 0
    shown = capsys.readouterr()
    assert "90 % interval" in shown.out
    assert "assumed: backends.nccl.allreduce.floor" in shown.err


@pytest.mark.parametrize("op", sorted(FORMS))
def test_every_op_has_a_time_on_a_shipped_profile(op: str) -> None:
    profile = load_profile("a800-pcie-ib-2x8")
    given_sizes = {
        name: "1000 B" if name in ("bytes", "row_bytes") else "100"
        for name, size in FORMS[op].sizes.items()
        if not size
    }
    given_sizes = {k: v for k, v in given_sizes.items() if k not in ("from", "to", "root", "crossed")}
    question = read_question(op, {**given_sizes, **({"bytes": "1 kB"} if op == "exchange" else {})}, ranks=4)
    assert time_op(question, Machine.place(profile, spread_ranks(profile, question.ranks))).seconds > 0


@pytest.mark.parametrize("op", sorted(STAND_INS))
def test_attention_that_nobody_measured_is_priced_as_a_simulation_prices_it_and_says_assumed(
    op: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {name: "100" for name, size in FORMS[op].sizes.items() if size is None}
    arguments = [text for name, size in options.items() for text in (f"--{name}", size)]
    command = ["hardware", "time", "a800-pcie-ib-2x8", op, "--ranks", "2", *arguments]
    assert invoke([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    machine = Machine.place(load_profile("a800-pcie-ib-2x8"), (0, 0))
    sizes = {name: float(size) for name, size in read_question(op, options).sizes.items()}
    assert found["seconds"] == pytest.approx(work_seconds(machine, 0, op, sizes).seconds, rel=1e-6)
    assert found["assumed"]
    assert found["extrapolated"]
    assert (found["source"], found["spread"]) == ("assumed", error_model().of_work("gpu", op).spread)
    assert found["interval_s"][0] < found["seconds"] < found["interval_s"][1]
    (told,) = found["numbers"]
    assert told["key"].startswith(f"devices.a800.curves.{op} (none: as ")
    assert invoke(command) == 0
    assert "assumed: " in capsys.readouterr().err


def test_every_size_of_every_op_has_its_option() -> None:
    import typer

    from simgnn.cli.commands.hardware import app

    command: Any = typer.main.get_command(app)
    known = {name for parameter in command.commands["time"].params for name in parameter.opts}
    assert {option(name) for form in FORMS.values() for name in form.sizes} <= known


def test_work_of_many_ranks_takes_no_memory_by_pairs_of_them(cluster: Profile) -> None:
    import tracemalloc

    tracemalloc.start()
    try:
        ask(cluster, "optimizer", ranks=3000, elements="1e6")
        # bytes and messages of all pairs would be 144 MB
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_the_largest_spreads_that_are_read_give_an_interval(table: dict[str, Any]) -> None:
    entry = next(found for found in table["devices"]["fast"]["curves"] if found["primitive"] == "matmul")
    entry |= dict.fromkeys(("spread", "jitter", "drift"), "1000 %")
    question = read_question("matmul", {"rows": "10", "inner": "16", "outer": "10"}, ranks=1)
    told = time_op(question, Machine.place(parse_profile(table), [0]))
    assert told.interval_s is not None
    assert 0 < told.interval_s[0] < told.seconds < told.interval_s[1] < float("inf")
