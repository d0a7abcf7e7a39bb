"""Quantities: what is written is read back exactly; what has no unit, or the wrong one, is refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgnn.units import COUNTS, cost_of, format_quantity, parse, share_of_bytes, units

DIMENSIONS = ("bytes", "bytes/s", "s", "W", "flop/s", "Hz", "ratio", "s/B", "s/flop", "s/edge", *COUNTS)


@given(st.floats(0, 1e300, allow_nan=False, allow_infinity=False), st.sampled_from(DIMENSIONS))
def test_written_and_read_back_is_the_same_number(value: float, dimension: str) -> None:
    assert parse(format_quantity(value, dimension), dimension) == value


@given(st.integers(1, 1023), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_whole_binary_sizes_stay_readable(count: int, unit: str) -> None:
    text = f"{count} {unit}"
    assert format_quantity(parse(text, "bytes"), "bytes") == text


@given(st.floats(1e-6, 1e6), st.sampled_from(DIMENSIONS))
def test_every_unit_scales_by_its_size(value: float, dimension: str) -> None:
    for unit, scale in units(dimension).items():
        assert parse(f"{value!r} {unit}", dimension) == pytest.approx(value * float(scale), rel=1e-15)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("22.7 GB/s", "bytes/s", 22.7e9),
        ("400 Gbit/s", "bytes/s", 50e9),
        ("80 GiB", "bytes", 80 * 2**30),
        ("1.5us", "s", 1.5e-6),
        ("2 µs", "s", 2e-6),
        ("3 %", "ratio", 0.03),
        ("2 cores", "cores", 2.0),
        ("1 core", "cores", 1.0),
        ("20 GB/s", "s/B", 5e-11),
        ("4 Tflop/s", "s/flop", 2.5e-13),
        ("7 ns/edge", "s/edge", 7e-9),
        ("1e3 B", "bytes", 1000.0),
    ],
)
def test_units_mean_what_they_say(text: str, dimension: str, value: float) -> None:
    assert parse(text, dimension) == value


@pytest.mark.parametrize(
    ("given_value", "dimension", "told"),
    [
        (400, "bytes/s", "bare number 400"),
        (2.5, "s", "bare number 2.5"),
        ("400", "bytes", "without a unit"),
        ("400 Gbps", "bytes/s", "did you mean 'Gbit/s'"),
        ("22 Gb/s", "bytes/s", "did you mean 'Gbit/s'"),
        ("5 uss", "s", "did you mean 'us'"),
        ("1 GB", "bytes/s", "did you mean 'GB/s'"),
        ("-1 B", "bytes", "not negative"),
        ("nan s", "s", "expected a time"),
        ("inf s", "s", "expected a time"),
        ("1e999 s", "s", "too large"),
        ("0 GB/s", "s/B", "rate above zero"),
        (True, "s", "got True"),
        (None, "s", "got None"),
        ({}, "s", "a table"),
        ("", "s", "expected a time"),
        ("GB", "bytes", "expected a size"),
    ],
)
def test_anything_else_is_refused(given_value: object, dimension: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        parse(given_value, dimension)


def test_a_cost_is_named_after_one_thing() -> None:
    assert [cost_of(unit) for unit in ("B", "flop", "edges", "vertices")] == ["s/B", "s/flop", "s/edge", "s/vertex"]


@pytest.mark.parametrize(
    ("value", "whole", "text"),
    [
        (66.4 * 2**30, 80 * 2**30, "66.4 of 80 GiB (83 %)"),
        (96 * 2**20, 80 * 2**30, "96 MiB of 80 GiB (0.12 %)"),
        (1006 * 2**20, 23.5 * 2**30, "1,006 MiB of 23.5 GiB (4 %)"),
    ],
)
def test_a_part_of_a_memory_is_read_as_plain_numbers(value: float, whole: float, text: str) -> None:
    assert share_of_bytes(value, whole) == text
