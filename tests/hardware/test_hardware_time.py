"""``simgnn hardware time``: the simulator's own prices, one op at a time."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.cli.hardware_time import read_matrix
from simgnn.cli.main import invoke
from simgnn.errors import ConfigError, HardwareError
from simgnn.hardware.machine import Machine
from simgnn.hardware.operations import FORMS, option, read_question, spread_ranks
from simgnn.hardware.profile import Profile, load_profile, parse_profile
from simgnn.hardware.stand_ins import STAND_INS
from simgnn.sim.hostpath import host_path
from simgnn.sim.one_op import time_op
from simgnn.tomlfile import write_toml

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
    expected = on.work_seconds(0, "spmm", sizes)
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
    found = [ask(profile, "allreduce", bytes=size, ranks=2) for size in ("10 B", "999 kB", "1 MB", "8 MB")]
    assert [one.spread for one in found] == [0.2, 0.2, 0.02, 0.02]
    machine = Machine.place(profile, (0, 0))
    assert machine.collective("allreduce", "default", 8e6, range(2)).spread == 0.02
    assert machine.collective("allreduce", "default", 0, range(2)).spread == 0.2, "nor is a call of nothing surer"
    entry.pop("own_spread")
    assert ask(parse_profile(table), "allreduce", bytes="8 MB", ranks=2).spread == 0.5


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
    copies = [host_path(machine, rank, to_device, 1e6) for rank, to_device in ((0, False), (1, True))]
    copied = sum(path.latency_s + 1e6 / path.rate_bytes_per_s for path in copies if path is not None)
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


MALFORMED = [
    (["alreduce", "--bytes", "1MiB"], "did you mean 'allreduce'"),
    (["allreduce"], "--bytes: missing"),
    (["allreduce", "--bytes", "64"], "--bytes: got '64' without a unit"),
    (["allreduce", "--bytes", "64 Mb"], "--bytes"),
    (["allreduce", "--bytes", "-1 MB"], "--bytes"),
    (["allreduce", "--bytes", "1 MB", "--width", "3"], "--width: 'allreduce' has no such size"),
    (["allreduce", "--bytes", "1 MB", "--ranks", "0"], "--ranks: got 0"),
    (["allreduce", "--bytes", "1 MB", "--ranks", "9"], "--ranks: got 9"),
    (["allreduce", "--bytes", "1 MB", "--backend", "mpi"], "backends.mpi"),
    (["allreduce", "--bytes", "1 MB", "--ranks-per-host", "0"], "--ranks-per-host"),
    (["allreduce", "--bytes", "1 MB", "--threads", "0"], "--threads"),
    (["broadcast", "--bytes", "1 MB", "--root", "8"], "--root: got rank 8"),
    (["send", "--bytes", "1 MB", "--from", "1", "--to", "1"], "--to: got rank 1"),
    (["send", "--bytes", "1 MB", "--from", "x"], "--from: got 'x'"),
    (["send", "--bytes", "1 MB", "--to", "3", "--ranks", "2"], "--ranks: got 2"),
    (["exchange"], "--matrix: missing"),
    (["exchange", "--bytes", "1 B", "--matrix", "MATRIX"], "--matrix or --bytes"),
    (["exchange", "--matrix", "nowhere.csv"], "--matrix: nowhere.csv cannot be read"),
    (["allreduce", "--bytes", "1 MB", "--matrix", "MATRIX"], "--matrix: 'allreduce' takes none"),
    (["aggregate", "--edges", "1.5", "--rows", "many", "--width", "0"], "3 problems"),
    (["aggregate", "--edges", "1e300", "--rows", "1", "--width", "1"], "--edges: got '1e300'"),
    (["aggregate", "--edges", "nan", "--rows", "1", "--width", "1"], "--edges"),
    (["gather", "--rows", "1", "--width", "1"], "no curve of 'gather'"),
]


@pytest.mark.parametrize(("words", "told"), MALFORMED)
def test_bad_input_ends_with_2_and_its_key(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    matrix = tmp_path / "m.csv"
    matrix.write_text("0, 1\n1, 0\n")
    assert invoke(["hardware", "time", SERVER, *(str(matrix) if word == "MATRIX" else word for word in words)]) == 2
    shown = capsys.readouterr()
    assert told in shown.err
    assert "Traceback" not in shown.err
    assert not shown.out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ragged.csv", "0, 1\n1\n"),
        ("words.csv", "0, a\n1, 0\n"),
        ("negative.csv", "0, -1\n1, 0\n"),
        ("fraction.csv", "0, 1.5\n1, 0\n"),
        ("empty.csv", ""),
        ("object.json", '{"a": 1}'),
        ("broken.json", "[[0,"),
        ("flags.json", "[[true]]"),
        ("fake.npy", "no array"),
        ("huge.csv", "0, 1e400\n1, 0"),
    ],
)
def test_malformed_matrices_are_refused(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert invoke(["hardware", "time", SERVER, "exchange", "--matrix", str(path)]) == 2
    assert "--matrix" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("m.npy", np.array([[0.0, np.inf], [1.0, 0.0]]), "row 0, column 1: got inf, expected a whole number of bytes"),
        ("m.npy", np.array([[0.0, 1.0], [np.nan, 0.0]]), "row 1, column 0: got nan, expected a whole number of bytes"),
        ("m.json", "[[0, NaN], [1, 0]]", "row 0, column 1: got nan"),
        ("m.csv", "0,-5\n1,0\n", "row 0, column 1: got -5, expected a whole number of bytes, none negative"),
        ("m.csv", "0,1e300\n1,0\n", "got 1e+300, expected whole numbers of bytes, 0 to"),
        *((name, "", f"{name} is empty, expected P rows of P numbers") for name in ("m.npy", "m.csv", "m.json")),
        ("m.csv", "# only a comment\n", "m.csv is empty"),
    ],
)
def test_what_is_wrong_with_a_matrix_is_said(
    name: str, content: Any, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    else:
        np.save(path, content)
    assert invoke(["hardware", "time", SERVER, "exchange", "--matrix", str(path)]) == 2
    assert told in capsys.readouterr().err


def test_bytes_of_a_matrix_may_have_an_exponent(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("0, 1e9\n2.5e3, 64 KiB\n")
    assert read_matrix(path) == [[0, 10**9], [2500, 65536]]


def test_a_price_beyond_the_clock_is_bad_input(
    table: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table["backends"]["nccl"]["collectives"][0]["hop"]["value"] = "1e20 s"
    table["links"]["infiniband"]["bandwidth"]["value"] = "1e-20 B/s"
    path = tmp_path / "slow.toml"
    write_toml(path, table)
    for op, told in (
        (["allreduce"], "was priced at"),
        (["send", "--from", "0", "--to", "4"], "would get 1e-20 bytes/s"),
    ):
        assert invoke(["hardware", "time", str(path), *op, "--bytes", "1 MB"]) == 2
        assert told in capsys.readouterr().err


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
    assert told["spread"] == 0.02
    assert told["interval_s"][0] < told["seconds"] < told["interval_s"][1]
    assert len(told["per_rank_s"]) == told["ranks"] == 8
    assert invoke(words) == 0
    shown = capsys.readouterr()
    assert "90 % interval" in shown.out
    assert "extrapolated" in shown.err
    assert invoke(["hardware", "time", SERVER, "allreduce", "--bytes", "64MiB", "--ranks", "4"]) == 0
    shown = capsys.readouterr()
    assert "no spread was measured" in shown.out
    assert "assumed: backends.nccl.allreduce.floor" in shown.err


@pytest.mark.parametrize("op", sorted(FORMS))
def test_every_op_has_a_time_on_a_shipped_profile(op: str) -> None:
    if op == "sample":
        pytest.skip("no shipped profile has a curve of 'sample': full-graph training samples nothing")
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
    assert found["seconds"] == pytest.approx(machine.work_seconds(0, op, sizes).seconds, rel=1e-6)
    assert found["assumed"]
    assert found["extrapolated"]
    assert (found["source"], found["spread"], found["interval_s"]) == ("assumed", None, None)
    (told,) = found["numbers"]
    assert told["key"].startswith(f"devices.a800.curves.{op} (none: as ")
    assert invoke(command) == 0
    assert "assumed: " in capsys.readouterr().err


def test_every_size_of_every_op_has_its_option() -> None:
    import typer

    from simgnn.cli.hardware import app

    command: Any = typer.main.get_command(app)
    known = {name for parameter in command.commands["time"].params for name in parameter.opts}
    assert {option(name) for form in FORMS.values() for name in form.sizes} <= known


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["optimizer", "--elements", "1e6", "--ranks", "100000"], "--ranks: got 100,000, expected 1 to 65,536"),
        (["send", "--bytes", "1kB", "--to", "99999"], "--to: got '99999', expected a rank, numbered from 0 to 65,535"),
        (["barrier", "--ranks-per-host", "100000"], "--ranks-per-host: got 100,000, expected 1 to 65,536"),
        (["barrier", "--ranks-per-host", "60000"], "would take 480,000 with these on each host, expected 1 to 65,536"),
        (["send", "--bytes", "1kB", "--ranks", "8193"], "but 'send' is told by pairs of ranks; expected at most 8,192"),
        (["exchange", "--bytes", "1kB", "--ranks", "9000"], "--ranks: got 9,000, but 'exchange' is told by pairs"),
        (["send", "--bytes", "1e30B"], "--bytes: got '1e30B', expected a whole number from 0 to 2^62 (4.6e+18)"),
        (["copy", "--rows", "1e19", "--width", "1"], "expected a whole number from 1 to 2^62 (4.6e+18)"),
    ],
)
def test_more_than_can_be_asked_for_is_refused_with_the_most_that_can(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["hardware", "time", "cpu-100gbe-8", *arguments]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_work_of_many_ranks_takes_no_memory_by_pairs_of_them(cluster: Profile) -> None:
    import tracemalloc

    tracemalloc.start()
    try:
        ask(cluster, "optimizer", ranks=3000, elements="1e6")
        # bytes and messages of all pairs would be 144 MB
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_every_fault_of_a_question_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read_question("matmul", {"rows": "0", "widht": "3"}, ranks=-1)
    assert len(caught.value.problems) == 5


def test_the_largest_spreads_that_are_read_give_an_interval(table: dict[str, Any]) -> None:
    entry = next(found for found in table["devices"]["fast"]["curves"] if found["primitive"] == "matmul")
    entry |= dict.fromkeys(("spread", "jitter", "drift"), "1000 %")
    question = read_question("matmul", {"rows": "10", "inner": "16", "outer": "10"}, ranks=1)
    told = time_op(question, Machine.place(parse_profile(table), [0]))
    assert told.interval_s is not None
    assert 0 < told.interval_s[0] < told.seconds < told.interval_s[1] < float("inf")
