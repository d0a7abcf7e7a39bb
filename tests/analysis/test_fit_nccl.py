"""Collectives from tables of NCCL times: known laws are found again, held-out rows predicted, bad files told."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from simgnn.analysis.fit_nccl import Law, fit_law, fit_machine, fit_messages, regimes
from simgnn.analysis.fit_nccl_command import main
from simgnn.analysis.fit_nccl_score import interpolation, left_out, predict
from simgnn.analysis.fit_nccl_tables import COLUMNS, Table, find_tables, read_tables
from simgnn.errors import HardwareError
from simgnn.hardware.links import Collective
from simgnn.hardware.profile import Profile, load_profile

SIZES = np.unique(np.concatenate([np.arange(8192, 2**20, 8192), np.arange(2**20, 2**26 + 1, 2**18)])).astype(float)
HOP, FILL, FLOOR, BUS, RAIL = 2e-6, 0.4, 20e-6, 150e9, 6e9


@pytest.fixture(scope="module")
def dgx() -> Profile:
    return load_profile("dgx-a100-2")


def made(ranks: int, each: int, jump: float = 1.0) -> Table:
    """Times of an invented machine in closed form; from 8 MiB on its rate is ``jump`` times higher."""
    count = 2 * (ranks - 1)
    passed = (count + FILL) / ranks * SIZES
    flowing = passed / BUS if each == ranks else passed / (each * RAIL)
    flowing = np.where(SIZES >= 2**23, flowing / jump, flowing)
    seconds = FLOOR + count * HOP + flowing
    return Table(f"made {ranks}/{each}", "made", "all_reduce", ranks, each, SIZES, seconds, np.zeros(len(SIZES)))


def test_the_law_of_the_rank_count_is_found_again() -> None:
    assert fit_law([made(2, 2), made(4, 4), made(8, 8)], "host") == Law(HOP, FILL)
    assert fit_law([made(4, 4)], "host") == Law()  # one rank count tells nothing of another


def test_held_out_sizes_and_rank_counts_of_a_lawful_machine_are_predicted(dgx: Profile) -> None:
    tables = [made(2, 2), made(4, 4), made(8, 8)]
    assert max(score.mean for score in interpolation(dgx, tables)) < 0.005
    assert max(score.mean for score in left_out({"made": dgx}, tables)) < 0.01


def test_rails_carry_over_to_more_ranks_a_host(dgx: Profile) -> None:
    tables = [made(2, 1), made(4, 2), made(8, 4)]
    scores = left_out({"made": dgx}, tables)
    assert max(score.mean for score in scores) < 0.01
    entries = [entry for entry in fit_machine(tables, "made", across_hosts=True) if entry.ranks != (8,)]
    eight = tables[2].where(tables[2].nbytes >= 2**20)
    assert predict(dgx, entries, eight) == pytest.approx(eight.seconds, rel=0.03)


def test_a_jump_begins_a_regime_and_is_no_matter_of_the_rank_count(dgx: Profile) -> None:
    jumping = made(4, 4, jump=4.0)
    assert regimes(made(4, 4)) == [(0.0, float("inf"))]
    assert regimes(jumping) == [(0.0, 2.0**23), (2.0**23, float("inf"))]
    entries = fit_machine([jumping], "made", across_hosts=False)
    assert [entry.protocol for entry in entries] == ["ll", "simple", "simple"]
    assert predict(dgx, entries, jumping) == pytest.approx(jumping.seconds, rel=0.02)
    tables = [made(2, 2), jumping, made(6, 6), made(8, 8)]
    assert fit_law(tables, "host") == Law(HOP, FILL)
    steady = {score.table: score for score in left_out({"made": dgx}, tables)}
    assert steady["made 2/2"].mean < 0.01
    assert not steady["made 4/4"].steady


def test_noise_does_not_move_the_fit_and_is_its_spread(dgx: Profile) -> None:
    table = made(4, 4)
    noisy = table.seconds * np.exp(np.random.default_rng(1).normal(0.0, 0.05, len(table.seconds)))
    seen = Table(table.name, table.gpu, table.collective, 4, 4, table.nbytes, noisy, np.full(len(noisy), 0.05))
    entries = fit_machine([seen], "made", across_hosts=False)
    assert np.mean(np.abs(predict(dgx, entries, table) / table.seconds - 1.0)) < 0.02
    large = entries[-1].bus_bandwidth
    assert large is not None
    assert large.spread == pytest.approx(0.05, rel=0.3)
    assert large.range == (2.0**18, 2.0**26)


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
        ([(*GOOD[:3], 3, *GOOD[4:])], COLUMNS, "got 4 ranks, 3 a host"),
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


@pytest.fixture(scope="module")
def measured() -> tuple[Table, ...]:
    folder = find_tables(None) or find_tables(Path(__file__).resolve().parents[3] / "shared" / "measured" / "nccl")
    if folder is None:
        pytest.skip("measured NCCL tables not found: set SIMGNN_DATA to a folder beside which measured/nccl lies")
    return read_tables(folder)


def reduces(tables: Sequence[Table]) -> list[Table]:
    return [table for table in tables if table.collective == "all_reduce"]


@pytest.mark.realdata
def test_measured_sizes_are_interpolated_within_the_bar(measured: tuple[Table, ...], dgx: Profile) -> None:
    scores = interpolation(dgx, reduces(measured))
    assert np.mean(np.concatenate([score.errors for score in scores])) <= 0.06
    assert sum(score.mean > 0.06 for score in scores) <= 1  # two H100: half the rows up to 4 MiB are 10 us, half 43 us


@pytest.mark.realdata
def test_measured_rank_counts_left_out(measured: tuple[Table, ...], dgx: Profile) -> None:
    """The bar of 10 % holds inside an A100 host, where the measurement itself is known to 10 %. Elsewhere it does not;
    the bounds keep what was reached from getting worse."""
    scores = {score.table: score for score in left_out({"a100": dgx, "h100": dgx}, reduces(measured))}
    for ranks in (2, 4):
        assert scores[f"a100_all_reduce_{ranks}ranks_{ranks}perhost"].mean_known_to(0.1) <= 0.10
    for name, bound in {
        "a100_all_reduce_2ranks_2perhost": 0.14,
        "a100_all_reduce_4ranks_4perhost": 0.15,
        "a100_all_reduce_2ranks_1perhost": 0.17,
        "a100_all_reduce_8ranks_4perhost": 0.16,
        "h100_all_reduce_2ranks_2perhost": 0.16,
        "h100_all_reduce_4ranks_4perhost": 0.15,
        "a100_all_reduce_4ranks_2perhost": 0.30,  # one rail or two, by the session it was measured in
    }.items():
        assert scores[name].mean <= bound, name


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "gpu", "across"), [("dgx-a100", "a100", False), ("dgx-a100-2", "a100", True), ("dgx-h100", "h100", False)]
)
def test_shipped_profiles_hold_what_the_tables_give(
    measured: tuple[Table, ...], name: str, gpu: str, across: bool
) -> None:
    profile = load_profile(name)
    fitted = fit_machine(measured, gpu, across)
    shipped = [entry for entry in profile.backends["nccl"].collectives if entry.kind == "allreduce"]
    assert len(shipped) == len(fitted)
    for ours, theirs in zip(shipped, fitted, strict=True):
        assert (ours.scope, ours.ranks, ours.protocol) == (theirs.scope, theirs.ranks, theirs.protocol)
        assert numbers(ours) == pytest.approx(numbers(theirs), rel=1e-3)
    (sends,) = (one for one in measured if (one.gpu, one.collective, one.scope) == (gpu, "send_recv", "host"))
    floor, bandwidth, _ = fit_messages(sends)
    link = profile.links["nvlink"]
    assert profile.backends["nccl"].message.floor.value == pytest.approx(floor.value, rel=1e-3)
    assert link.message_bandwidth is not None
    assert link.message_bandwidth.value == pytest.approx(bandwidth.value, rel=1e-3)


def numbers(entry: Collective) -> list[float]:
    assert entry.bus_bandwidth is not None
    assert entry.residual is not None
    assert entry.hop is not None
    shares = [point.share for point in entry.residual.points]
    return [entry.floor.value, entry.hop.value, entry.bus_bandwidth.value, *shares]
