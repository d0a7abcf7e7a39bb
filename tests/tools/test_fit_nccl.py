"""Collectives from tables of NCCL times: known laws are found again, held-out rows predicted, bad files told."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from simgnn.analysis.nccl.law import ROUND_BYTES, choice_of, fit_choice, fit_law, taken
from simgnn.analysis.nccl.measured_tables import COLUMNS, Table, read_tables
from simgnn.analysis.nccl.profile_entries import Fitted, fit_scope, interpolation, left_out, predict, switches
from simgnn.errors import HardwareError
from simgnn.hardware.price.collectives import FIRST_ROUND, choose_collective, joined
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import Profile, load_profile
from tools.fit_nccl import fit_machine, main

SIZES = np.unique(np.concatenate([np.arange(8192, 2**20, 16384), np.arange(2**20, 2**26 + 1, 2**18)])).astype(float)
HOP, CHUNK, FLOOR, BUS, RAIL, LINK = 3e-6, 3.0 * 2**20, 20e-6, 150e9, 6e9, 200e9


@pytest.fixture(scope="module")
def dgx() -> Profile:
    return load_profile("dgx-a100-2")


def table(ranks: int, each: int, seconds: np.ndarray, collective: str = "all_reduce") -> Table:
    return Table(f"made {ranks}/{each}", "made", collective, ranks, each, SIZES, seconds, np.zeros(len(SIZES)))


def ring(ranks: int, hop: float = HOP, fill: float = 0.0, bus: float = BUS) -> Table:
    """An invented host in closed form: rounds of a chunk of each rank's share, each with its hops."""
    count = 2 * (ranks - 1)
    rounds = np.ceil(SIZES / ranks / CHUNK) + FIRST_ROUND
    hops = np.where(SIZES >= ROUND_BYTES, (count + 1) * rounds * hop, 0.0)
    return table(ranks, ranks, FLOOR + hops + (count + fill) / ranks * SIZES / bus)


def crossing(ranks: int, each: int, tree_over_ring: float = 0.9) -> Table:
    """An invented cluster in closed form: two ranks share a rail, and trees are taken where NCCL would take them."""
    rails = -(-each // 2)
    moved = np.where(
        taken(table(ranks, each, SIZES), choice_of(tree_over_ring, "cluster"), "tree"),
        SIZES / 1.2,
        2 * (ranks - 1) / ranks * SIZES,
    )
    return table(ranks, each, FLOOR + moved / (rails * RAIL))


def test_rounds_of_a_ring_are_found_in_one_table() -> None:
    law = fit_law([ring(4)], "host")
    assert (law.hop_s, law.chunk) == (pytest.approx(HOP), CHUNK)
    smooth = fit_law([ring(4, hop=0.0)], "host")
    assert (smooth.hop_s, smooth.chunk) == (0.0, None)


def test_the_fill_is_what_a_ring_takes_beyond_its_link() -> None:
    messages = table(2, 2, FLOOR + SIZES / LINK, "send_recv")
    law = fit_law([ring(4, hop=0.0, fill=0.4, bus=LINK), messages], "host")
    assert law.fill == pytest.approx(0.4, abs=0.01)
    assert fit_law([ring(4, hop=0.0, fill=0.4, bus=LINK)], "host").fill == 0.0  # no link's rate, no fill
    assert fit_law([ring(4, hop=0.0, bus=2 * LINK), messages], "host").fill == 0.0  # a ring faster than its link: none


def test_held_out_sizes_and_rank_counts_of_a_lawful_machine_are_predicted(dgx: Profile) -> None:
    tables = [ring(2), ring(4), ring(8)]
    assert max(score.mean for score in interpolation(dgx, tables)) < 0.02
    # the invented small sizes follow no law but their floor
    assert max(score.mean_from(ROUND_BYTES, 2.0**30) for score in left_out({"made": dgx}, tables)) < 0.01


def test_where_times_jump_the_algorithm_changed() -> None:
    tables = [crossing(2, 1), crossing(4, 2), crossing(8, 4)]
    choice = fit_choice(tables, "cluster")
    assert choice is not None
    for ranks, expected in ((4, [23, 24, 26]), (8, [22])):
        ways = [choice.algorithm(ranks, 2.0**power) for power in range(18, 27)]
        assert [power for power in range(19, 27) if ways[power - 18] != ways[power - 19]] == expected
    assert {choice.algorithm(2, size) for size in SIZES} == {"ring"}
    assert fit_choice(tables, "host") is None


def test_the_rows_of_a_table_are_told_apart_as_single_sizes_are() -> None:
    for ranks, each in ((2, 1), (4, 2), (8, 4)):
        choice = choice_of(0.9, "cluster")
        for algorithm in ("ring", "tree"):
            alone = [choice.algorithm(ranks, size) == algorithm for size in SIZES]
            assert taken(table(ranks, each, SIZES), choice, algorithm).tolist() == alone


@pytest.mark.parametrize("out", [2, 4, 8])
def test_rails_and_trees_carry_over_to_other_groups(dgx: Profile, out: int) -> None:
    tables = [crossing(2, 1), crossing(4, 2), crossing(8, 4)]
    law = fit_law([one for one in tables if one.ranks != out], "cluster")
    assert law.ranks_per_rail == 2
    (score,) = [one for one in left_out({"made": dgx}, tables) if one.table.startswith(f"made {out}/")]
    assert score.mean < 0.05


def test_a_rail_for_every_rank_is_told_by_the_tables() -> None:
    alone = [
        table(2 * each, each, FLOOR + 2 * (2 * each - 1) / (2 * each) * SIZES / (each * RAIL)) for each in (1, 2, 4)
    ]
    assert fit_law(alone, "cluster").ranks_per_rail == 1


def test_noise_does_not_move_the_fit_and_is_its_spread(dgx: Profile) -> None:
    exact = ring(4)
    noisy = exact.seconds * np.exp(np.random.default_rng(1).normal(0.0, 0.05, len(SIZES)))
    fitted = fit_machine([table(4, 4, noisy)], "made", across_hosts=False)
    assert np.mean(np.abs(predict(dgx, fitted, exact) / exact.seconds - 1.0)) < 0.03
    large = fitted.entries[-1].bus_bandwidth
    assert large is not None
    assert large.spread == pytest.approx(0.05, rel=0.3)
    assert [entry.protocol for entry in fitted.entries] == ["ll", "ll128", "simple"]


def test_a_group_that_was_measured_goes_by_its_own_table(dgx: Profile) -> None:
    tables = [ring(2), ring(4), ring(8, bus=BUS / 3)]
    fitted = fit_machine(tables, "made", across_hosts=False)
    assert {entry.ranks for entry in fitted.entries} == {(2,), (4,), (8,), (2, 4, 8)}
    for one in (one.where(one.nbytes >= ROUND_BYTES) for one in tables):
        assert predict(dgx, fitted, one) == pytest.approx(one.seconds, rel=0.1)


def bursts(seed: int) -> np.ndarray:
    """Times of which runs of neighbouring sizes are three times as long as the bytes take, by chance."""
    runs = np.random.default_rng(seed).random(len(SIZES) // 8 + 1) < 0.4
    return (FLOOR + SIZES / BUS) * np.where(np.repeat(runs, 8)[: len(SIZES)] & (SIZES < 2**21), 3.0, 1.0)


def test_waits_by_chance_do_not_make_a_curve_fall(dgx: Profile) -> None:
    tables = [table(2, 2, bursts(1)), table(4, 4, 2.0 * bursts(2))]
    fitted = fit_machine(tables, "made", across_hosts=False)
    machine = Machine.place(with_entries(dgx, fitted), [0] * 8)
    for ranks in (2, 4, 3, 8):
        sizes = 2.0 ** np.arange(8.0, 27.0, 0.1)
        times = [machine.collective("allreduce", "nccl", size, range(ranks)).seconds_alone for size in sizes]
        assert np.all(np.diff(times) > -0.01 * np.array(times[:-1])), ranks
    # a group of another size lies between the tables, which differ by a factor of two
    at = [machine.collective("allreduce", "nccl", 20000.0, range(ranks)).seconds_alone for ranks in (2, 3, 4)]
    assert at[0] * 1.2 < at[1] < at[2] / 1.1


def test_a_protocol_that_changes_across_hosts_is_kept_and_inside_a_host_is_none() -> None:
    seconds = (40e-6 + SIZES / 2e9) * np.where(SIZES < 400e3, 1.6, 0.9)
    (at,) = switches(table(2, 1, seconds))
    assert at == SIZES[SIZES >= 400e3][0]
    entries = fit_scope([table(2, 1, seconds)], fit_law([table(2, 1, seconds)], "cluster")).entries
    assert [entry.protocol for entry in entries] == ["ll", "simple"]
    assert switches(table(2, 1, 40e-6 + SIZES / 2e9)) == ()
    assert switches(table(2, 2, seconds)) == ()


def test_what_is_carried_over_is_as_wide_as_rank_counts_left_out_are_missed() -> None:
    fitted = fit_machine([ring(2, hop=0.0), ring(4, hop=0.0)], "made", across_hosts=False)
    far = fit_machine([ring(2, hop=0.0), ring(4, hop=0.0, bus=BUS / 1.5)], "made", across_hosts=False)
    several = [[entry for entry in made.entries if entry.ranks == (2, 4)] for made in (fitted, far)]
    assert [len(found) for found in several] == [3, 3]
    assert all(entry.spread_at(2.0**25, exact=False) < 0.01 for entry in several[0])
    assert several[1][-1].spread_at(2.0**25, exact=False) == pytest.approx(np.log(1.5) / 1.645, rel=0.15)
    assert [step.size for step in several[1][-1].carried_spread or ()] == [2.0**22, 2.0**24]
    assert all(entry.carried_spread is None for entry in fitted.entries if entry.ranks != (2, 4))


def with_entries(profile: Profile, fitted: Fitted) -> Profile:
    backend = profile.backends["nccl"].model_copy(update={"collectives": fitted.entries, "choices": fitted.choices})
    return profile.model_copy(update={"backends": {**profile.backends, "nccl": backend}})


def write(folder: Path, rows: Sequence[Sequence[object]], columns: Sequence[str] = COLUMNS) -> Path:
    text = "\n".join(",".join(map(str, row)) for row in [columns, *rows])
    (folder / "table.csv").write_text(text + "\n")
    return folder


GOOD = ("x", "all_reduce", 4, 2, 1024, 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("rows", "columns", "told"),
    [
        ([GOOD[:-1]], COLUMNS[:-1], "no column std_s"),
        ([GOOD, ("y", *GOOD[1:])], COLUMNS, "2 different values of gpu"),
        ([(*GOOD[:2], "four", *GOOD[3:])], COLUMNS, "four"),
        ([(*GOOD[:5], 0.0, 0.0)], COLUMNS, "above zero"),
        ([(*GOOD[:5], "nan", 0.0)], COLUMNS, "above zero"),
        ([(*GOOD[:3], 3, *GOOD[4:])], COLUMNS, "got 4 ranks, 3 per host"),
        ([], COLUMNS, "0 different values"),
    ],
)
def test_bad_tables_are_told(
    rows: Sequence[Sequence[object]], columns: Sequence[str], told: str, tmp_path: Path
) -> None:
    with pytest.raises(HardwareError, match=told):
        read_tables(write(tmp_path, rows, columns))


def test_the_command_tells_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["a100", "--tables", str(tmp_path / "absent")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert main(["a100", "--tables", str(tmp_path)]) == 2
    assert "no *.csv" in capsys.readouterr().err
    write(tmp_path, [(*GOOD[:4], size, size * 1e-9, 0.0) for size in (1024, 2048, 4096, 8192)])
    assert main(["z", "--tables", str(tmp_path)]) == 2
    assert "there are tables of: x" in capsys.readouterr().err
    assert main(["x", "--tables", str(tmp_path), "--across-hosts"]) == 0
    assert 'kind = "allreduce"' in capsys.readouterr().out


def test_a_regime_goes_over_into_the_next_where_its_rank_count_was_not_measured(dgx: Profile) -> None:
    made = with_entries(dgx, fit_machine([ring(2), ring(4)], "made", across_hosts=False))
    backend = made.backends["nccl"]
    for ranks, exact in ((2, True), (3, False), (8, False)):
        chosen, found = choose_collective(backend, "nccl", "allreduce", ranks, False, 0.75 * ROUND_BYTES)
        assert found == exact
        parts = joined(backend, chosen, exact, 0.75 * ROUND_BYTES)
        assert [share for _, share in parts] == ([1.0] if exact else [0.5, 0.5])
        assert joined(backend, chosen, exact, 0.5 * ROUND_BYTES) == ((chosen, 1.0),)
        last, _ = choose_collective(backend, "nccl", "allreduce", ranks, False, ROUND_BYTES)
        assert joined(backend, last, exact, ROUND_BYTES) == ((last, 1.0),)
