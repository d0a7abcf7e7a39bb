"""Profiles as files: saved and loaded they are the same, and the shipped ones say where their numbers come from."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.check import price_problems
from simgnn.hardware.profile.devices import Curve
from simgnn.hardware.profile.library import calibration_path, known_profiles, shipped_folder
from simgnn.hardware.profile.profile import Profile, load_profile, parse_profile, save_profile
from simgnn.hardware.profile.quantities import Bandwidth, Duration, Points, Size

SHIPPED = sorted(path.stem for path in shipped_folder().glob("*.toml"))


@pytest.mark.parametrize("name", [*SHIPPED, "invented-8x8", "invented-server"])
def test_saving_and_loading_changes_nothing(name: str, tmp_path: Path) -> None:
    data = Path(__file__).parent / "data" / f"{name}.toml"
    profile = load_profile(data if data.is_file() else name)
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    save_profile(profile, first)
    again = load_profile(first)
    assert again == profile
    save_profile(again, second)
    assert second.read_bytes() == first.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.toml", "second.toml"]


@given(
    st.floats(1e-3, 1e15),
    st.floats(0, 1e3),
    st.floats(1e-18, 1e-3),
    st.floats(0, 1),
    st.floats(0, 1e12),
    st.lists(st.floats(1, 1e12), min_size=1, max_size=4, unique=True),
)
def test_numbers_given_as_numbers_are_kept_exactly(
    rate: float, seconds: float, cost: float, spread: float, size: float, sizes: list[float]
) -> None:
    assert Bandwidth.of(rate, "measured", spread=spread).value == rate
    assert Bandwidth.of(rate, "measured", spread=spread).spread == spread
    assert Duration.of(seconds, "assumed").value == seconds
    curve = Curve.of(
        "spmm",
        {"gathered_bytes": cost, "missed_rows/L2": cost, "edges": cost},
        "measured",
        concurrency=4,
        spread=spread,
        samples=3,
        range={"edges": (0.0, size), "gathered_bytes": (0.0, size)},
    )
    assert curve.costs == {"gathered_bytes": cost, "missed_rows/L2": cost, "edges": cost}
    assert curve.range == {"edges": (0.0, size), "gathered_bytes": (0.0, size)}
    assert Curve.model_validate(curve.model_dump()) == curve
    points = Points.of(sorted(sizes), [1.0 + spread] * len(sizes), "measured")
    assert [point.size for point in points.points] == sorted(sizes)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_hold_all_prices_and_name_their_sources(name: str) -> None:
    profile = load_profile(name)
    assert profile.meta.name == name
    assert price_problems(profile) == []
    sources = {curve.source for device in profile.devices.values() for curve in device.curves}
    if profile.meta.calibrated_ranks:  # written by `simgnn calibrate`: nothing in it is derived
        assert profile.calibrated
        assert sources == {"measured"}
        return
    assert profile.meta.sources
    assert not profile.calibrated
    counts = profile.source_counts()
    assert counts["published"] + counts["measured"] > 0
    assert sources <= {"assumed", "published"}


def test_a800_bandwidths_are_the_published_ones() -> None:
    profile = load_profile("a800-pcie-ib-2x8")
    machine = Machine.place(profile, [0] * 8 + [1] * 8)
    large = 1e9
    assert machine.message(0, 1, large).rate_bytes_per_s == 22.70e9
    assert machine.message(0, 8, large).rate_bytes_per_s == 8.27e9
    inside = machine.collective("broadcast", "nccl", large, range(8))
    across = machine.collective("broadcast", "nccl", large, range(16))
    assert large / (inside.seconds_alone - inside.latency_s) == pytest.approx(19.47e9)
    assert large / (across.seconds_alone - across.latency_s) == pytest.approx(11.98e9)


def test_profiles_are_found_in_the_users_folders_first(
    cluster: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = cluster.to_table()
    table["meta"]["description"] = "mine"
    save_profile(parse_profile(table), tmp_path / f"{SHIPPED[0]}.toml")
    monkeypatch.setenv("SIMGNN_HWPROFILES", str(tmp_path))
    assert load_profile(SHIPPED[0]).meta.description == "mine"
    assert known_profiles()[SHIPPED[0]].parent == tmp_path
    assert set(SHIPPED) <= set(known_profiles())


def test_the_last_calibration_is_kept_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMGNN_CACHE", str(tmp_path))
    assert calibration_path() == tmp_path / "hardware.toml"


def test_sizes_keep_their_binary_units() -> None:
    assert Size.of(80 * 2**30, "datasheet").model_dump()["value"] == "80 GiB"
    assert Size.of(80e9, "datasheet").model_dump()["value"] == "80 GB"
    assert Size.of(35.75 * 2**20, "datasheet").model_dump()["value"] == "35.75 MiB"
