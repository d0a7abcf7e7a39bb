"""Caches of halo rows that take as much memory as the program leaves, on devices and on hosts."""

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from simgnn.cli.main import invoke
from simgnn.emit.halo_cache.routes import IN_MEMORY, arriving
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import Profile, load_profile, parse_profile
from simgnn.planner.memory.program_memory import program_bytes, shared_bytes
from simgnn.planner.prepare import Prepared, prepare
from simgnn.program.program import Program
from simgnn.program.storage import program_digest
from simgnn.sim.simulate import simulate
from simgnn.tomlfile import load_toml
from tests.sim.worlds import machine

RANKS, WIDTH = 4, 700
SETTINGS = (
    "freshness.kind=refresh-interval", "freshness.refresh_interval=3", "partition.kind=random", "graph.vertices=600",
    "graph.edges=4000", "graph.feature_width=8", "graph.classes=3", f"model.hidden={WIDTH}", "model.layers=3",
    "model.order=aggregate-first", "communication.rows=input", "train.epochs=5",
)  # fmt: skip


def prepared(profile: Profile | None, *more: str, hosts: int = 1) -> Prepared:
    cluster = (f"cluster.hosts={hosts}", f"cluster.ranks_per_host={RANKS // hosts}")
    return prepare(load_experiment("vanilla", [*SETTINGS, *cluster, *more]), profile=profile)


def small_machine(kind: str, nbytes: int, hosts: int = 1, host_bytes: int | None = None) -> Profile:
    table = machine(
        [rank * hosts // RANKS for rank in range(RANKS)], kind=kind, memory=f"{nbytes} B"
    ).profile.to_table()
    if host_bytes is not None:
        table["topology"]["hosts"]["node"]["memory"] = {"value": f"{host_bytes} B", "source": "assumed"}
    return parse_profile(table)


def rows_of(found: Prepared, option: str) -> list[int]:
    return [int(rows) for rows in found.planned.resolved[f"placement.{option}"]]


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_devices_take_what_the_program_leaves(kind: str, mode: str) -> None:
    """Of 90 % of what a full cache needs, 5 % stay free; the rest is filled, and a tenth more would not fit."""
    cpu, given = np.full(RANKS, kind == "cpu"), f"freshness.mode={mode}"
    without, whole = (
        program_bytes(prepared(None, given, f"placement.device_rows={share}").planned.program, cpu)
        for share in (0.0, 1.0)
    )
    budget = int(np.max(without + 0.6 * (whole - without)) / 0.95)
    profile = small_machine(kind, budget * (RANKS if kind == "cpu" else 1))
    found = prepared(profile, given, "placement.device_rows=adaptive")
    rows, halo = np.array(rows_of(found, "device_rows")), found.stats.halo_rows()
    assert np.all((rows > 0) & (rows < halo)), (rows, halo)
    program = found.planned.program
    np.testing.assert_array_equal(program.sizes.columns[arriving("halo/cached").name], rows)
    needed = program_bytes(program, cpu)
    assert np.all(needed <= 0.95 * budget)
    more = ", ".join(str(int(each * 1.1) + 1) for each in rows)
    beyond = program_bytes(prepared(None, given, f"placement.device_rows=[{more}]").planned.program, cpu)
    assert np.all(beyond > 0.95 * budget)
    if kind == "cpu":  # blocks of a GPU's allocator are as large as this whole memory
        assert simulate(program, Machine.place(profile, program.hosts), epochs=5).status == "ok"
    # the numbers, stated, are the same program
    again = prepared(None, given, f"placement.device_rows=[{', '.join(map(str, rows))}]")
    assert program_digest(again.planned.program) == program_digest(program)


def test_few_rows_that_may_be_cached_are_no_more_than_fit() -> None:
    """Of each owner a rank may cache 20 rows: a device with room for 60 % of these caches 60 % of them."""
    cpu, few = np.zeros(RANKS, np.bool_), "freshness.top_k=20"
    without, whole = (
        program_bytes(prepared(None, few, f"placement.device_rows={share}").planned.program, cpu)
        for share in (0.0, 1.0)
    )
    budget = int(np.max(without + 0.6 * (whole - without)))
    adaptive = (few, "placement.device_rows=adaptive")
    found = prepared(small_machine("gpu", 2**33), *adaptive, f"placement.device_bytes={budget}")
    rows = np.array(rows_of(found, "device_rows"))
    assert np.all((rows > 0) & (rows <= 20 * (RANKS - 1)))
    needed = program_bytes(found.planned.program, cpu)
    assert np.all(needed <= budget)
    roomy = prepared(small_machine("gpu", 2**33), *adaptive)
    assert rows_of(roomy, "device_rows") == [20 * (RANKS - 1)] * RANKS, "clamped to the rows that may be cached"
    assert np.any(rows < 20 * (RANKS - 1))


@pytest.mark.parametrize(("mode", "copies"), [("sync", 1), ("async", 2)])
def test_the_memory_of_each_host_is_filled_once_for_its_ranks(mode: str, copies: int) -> None:
    """Two hosts of two GPUs each, whose memory holds about half of the rows; with "async" two copies of each."""
    given = f"freshness.mode={mode}"
    full = prepared(None, given, "placement.host_rows=1.0", hosts=2).planned.program
    once = prepared(None, "placement.host_rows=1.0", hosts=2).planned.program
    assert shared_bytes(full).tolist() == (copies * shared_bytes(once)).tolist()
    of_row = shared_bytes(full)[0] / full.sizes.columns[IN_MEMORY.name][0]
    half = int(full.sizes.columns[IN_MEMORY.name].max() // 2)
    profile = small_machine("gpu", 2**33, 2, host_bytes=math.ceil(half * of_row / 0.9) + 100_000)
    found = prepared(profile, given, "placement.host_rows=adaptive", hosts=2)
    (first, second) = rows_of(found, "host_rows")
    assert first == pytest.approx(half, rel=0.1)
    assert second == pytest.approx(half, rel=0.1)
    np.testing.assert_array_equal(found.planned.program.sizes.columns[IN_MEMORY.name], [first, first, second, second])
    assert shared_bytes(found.planned.program).max() <= 0.9 * (half * of_row / 0.9 + 100_001)
    assert simulate(found.planned.program, Machine.place(profile, (0, 0, 1, 1)), epochs=3).status == "ok"


def test_on_a_cpu_both_caches_fit_into_one_memory() -> None:
    cpu = np.ones(RANKS, np.bool_)
    without = program_bytes(prepared(None).planned.program, cpu).sum()
    both = prepared(None, "placement.device_rows=1.0", "placement.host_rows=1.0").planned.program
    cached = program_bytes(both, cpu).sum() - without + shared_bytes(both)[0]
    memory = int((without + 0.9 * cached) / 0.9)
    profile = small_machine("cpu", memory)
    found = prepared(profile, "placement.device_rows=adaptive", "placement.host_rows=adaptive")
    program = found.planned.program
    shared = shared_bytes(program)
    assert shared[0] > 0
    assert rows_of(found, "device_rows") == found.stats.halo_rows().tolist(), "devices come first, and hold all"
    assert program_bytes(program, cpu).sum() + shared[0] <= 0.9 * memory
    assert simulate(program, Machine.place(profile, program.hosts), epochs=3).status == "ok"


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
@pytest.mark.parametrize("levels", [("device_rows",), ("device_rows", "host_rows")], ids="-".join)
def test_devices_take_no_more_than_their_budget(kind: str, levels: tuple[str, ...]) -> None:
    """Devices and hosts have gigabytes; ``placement.device_bytes`` is what devices are filled up to."""
    cpu, caches = np.full(RANKS, kind == "cpu"), [f"placement.{level}=adaptive" for level in levels]
    least = [f"placement.{level}=1.0" for level in levels if level == "host_rows"]
    without = program_bytes(prepared(None, *least).planned.program, cpu)
    whole = program_bytes(prepared(None, *least, "placement.device_rows=1.0").planned.program, cpu)
    shared = shared_bytes(prepared(None, *least).planned.program).max() / RANKS if kind == "cpu" else 0
    budget = int(np.max(without + 0.6 * (whole - without)) + shared)
    profile = small_machine(kind, 2**33, host_bytes=2**34)
    found = prepared(profile, *caches, f"placement.device_bytes={budget}")
    assert np.all(np.array(rows_of(found, "device_rows")) > 0)
    needed = program_bytes(found.planned.program, cpu)
    assert np.all(needed <= budget)
    assert needed.max() + shared > 0.9 * budget
    if "host_rows" in levels:
        assert found.planned.program.sizes.columns[IN_MEMORY.name].max() > 0


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
@pytest.mark.parametrize("schedule", ["bsp", "pipelined"])
def test_rows_in_the_memory_of_hosts_leave_devices_within_their_budget(kind: str, schedule: str) -> None:
    """A rank reads shared rows into memory of its device, which has room for some of them."""
    cpu, common = np.full(RANKS, kind == "cpu"), (f"schedule.kind={schedule}", "freshness.mode=async")

    def needed(program: Program) -> NDArray[np.float64]:
        # of a CPU, with an equal part of what ranks share
        return program_bytes(program, cpu) + cpu * shared_bytes(program) / RANKS

    one, all_rows = (prepared(None, *common, f"placement.host_rows={rows}").planned.program for rows in (1, 1.0))
    most = int(all_rows.sizes.columns[IN_MEMORY.name].max())
    profile = small_machine(kind, 2**33, host_bytes=2**34)
    caches = ("placement.host_rows=adaptive", "placement.device_rows=adaptive")
    for share in (0.1, 0.5, 0.9):
        budget = math.ceil(np.max(needed(one) + share * (needed(all_rows) - needed(one))))
        found = prepared(profile, *common, *caches, f"placement.device_bytes={budget}")
        assert np.all(needed(found.planned.program) <= budget), share
        assert 0 < rows_of(found, "host_rows")[0] < most
    tight = prepared(profile, *common, *caches, f"placement.device_bytes={int(np.max(needed(one))) - 1}")
    assert rows_of(tight, "host_rows") == [0]


def test_equal_capacities_are_the_least_of_all() -> None:
    profile = load_profile("mixed-pcie3-8")
    options = [f"placement.{option}=" for option in ("device_rows", "host_rows")]
    apart = prepared(profile, *(f"{option}adaptive" for option in options))
    equal = prepared(profile, *(f"{option}adaptive-equal" for option in options))
    least = min(*rows_of(apart, "device_rows"), *rows_of(apart, "host_rows"))
    assert rows_of(equal, "device_rows") == [least] * RANKS
    assert rows_of(equal, "host_rows") == [least]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["placement.device_rows=adaptive"], r"placement\.device_rows: got 'adaptive' without a hardware profile"),
        (["placement.host_rows=adaptive-equal"], r"placement\.host_rows: got 'adaptive-equal' without a hardware"),
        (["placement.device_rows=[3, 4]"], r"placement\.device_rows: got 2 numbers, expected 4, one for each rank"),
        (["placement.host_rows=[3, 4]"], r"placement\.host_rows: got 2 numbers, expected 1, one for each host"),
        (["placement.device_rows=all"], r"placement\.device_rows: got 'all'"),
        (["placement.reserved_device_share=0.1"], r"placement\.reserved_device_share"),
        (["freshness.bypass_below=1.5"], r"freshness\.bypass_below"),
    ],
)
def test_what_cannot_be_is_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepared(None, *settings)


def test_a_profile_that_does_not_state_the_memory_of_hosts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"topology\.hosts\.memory"):
        prepared(small_machine("gpu", 2**33), "placement.host_rows=adaptive")


def test_the_numbers_are_shown_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for one in (*SETTINGS, "placement.device_rows=adaptive") for word in ("--set", one)]
    command = ["simulate", "vanilla", "--hardware", "mixed-pcie3-8", "--ranks", "2", *words]
    assert invoke([*command, "--out", str(tmp_path / "o")]) == 0
    shown = capsys.readouterr()
    found = load_toml(tmp_path / "o" / "plan" / "resolved.toml")["placement.device_rows"]
    assert len(found) == 2
    assert f"{min(found):,}" in shown.err
    assert "placement.device_rows" in shown.err


def test_a_rank_with_few_hits_uses_no_cache() -> None:
    """Of four ranks whose devices hold 60, 50, 40 and 30 % of their halo rows, those below 45 % send all rows."""
    halo = prepared(None).stats.halo_rows()
    rows = [int(share * each) for share, each in zip((0.6, 0.5, 0.4, 0.3), halo, strict=True)]
    given = f"placement.device_rows=[{', '.join(map(str, rows))}]"
    columns = prepared(None, given, "freshness.bypass_below=0.45").planned.program.sizes.columns
    assert columns[arriving("halo/cached").name].tolist() == [*rows[:2], 0, 0]
    assert columns[arriving("halo/missed").name].tolist() == [*(halo[:2] - rows[:2]).tolist(), *halo[2:].tolist()]
    unused, none = prepared(None, given, "freshness.bypass_below=0.7"), prepared(None)
    assert program_digest(unused.planned.program) == program_digest(none.planned.program)
