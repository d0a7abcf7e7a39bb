"""What devices hold of staged batches and caches: rows in programs, and what is told of devices that are too small."""

import numpy as np
import pytest

from simgnn.emit.batches.names import EVALUATING
from simgnn.errors import ConfigError
from tests.sim.mini_batches import WIDTH, made_sizes, planned

TWO = [0, 1]


def test_device_rows_are_two_caches_and_a_window_of_the_largest_batch() -> None:
    sizes = made_sizes(TWO, hot_rows=30)
    program = planned("rapidgnn", TWO, sizes, "schedule.window=3").program
    held = {name: program.buffers[name] for name in ("inputs", "hot")}
    rows = sum(program.sizes.per_rank(buffer.rows, 0, 0) * buffer.depth for buffer in held.values())
    assert np.array_equal(rows, 2 * 30 + 3 * sizes.rows[-1].max(axis=(1, 2)))
    assert {buffer.row_bytes for buffer in held.values()} == {4 * WIDTH}
    assert {buffer.space for buffer in held.values()} == {"device"}


def test_no_more_batches_are_held_than_can_be_staged() -> None:
    """An epoch of fewer steps than the window, beyond which nothing is staged (docs/systems/rapidgnn.md)."""
    sizes = made_sizes(TWO, steps=4, hot_rows=30)
    for options, held in (
        (["schedule.window=9"], 4),
        (["schedule.window=3"], 3),
        (["schedule.window=9", "schedule.across_epochs=true"], 8),
        (["schedule.window=9", "schedule.staged=blocks"], 1),
    ):
        program = planned("rapidgnn", TWO, sizes, *options).program
        assert program.buffers["inputs"].depth == held, options
        assert program.buffers["drawn/1"].depth == min(int(options[0].rpartition("=")[2]), 2 * 4)  # of two epochs


def test_rows_sent_ahead_lie_in_buffers_that_are_made_once() -> None:
    """Else it is a matter of chance whether they are there when training needs most."""
    plain, cached = made_sizes(TWO), made_sizes(TWO, hot_rows=30)
    rows = {"inputs", "rows/pulled", "rows/served"}
    for system, option, sizes, held in (
        ("rapidgnn", "schedule.window=3", plain, rows),
        ("rapidgnn", "schedule.window=3", cached, {*rows, "hot"}),
        ("rapidgnn", "schedule.window=1", plain, {"inputs"}),  # nothing is staged while a batch trains
        ("rapidgnn", "placement.hot_scope=run", cached, {*rows, "hot"}),
        ("distdgl", "schedule.window=3", plain, {"inputs"}),
    ):
        buffers = planned(system, TWO, sizes, option).program.buffers.values()
        assert {buffer.name for buffer in buffers if buffer.lasting} == held, (system, option)


def test_a_device_too_small_is_told_with_what_fits() -> None:
    """Two caches and the window of the fullest rank, in bytes (docs/systems/rapidgnn.md)."""
    sizes = made_sizes(TWO, hot_rows=30)
    largest = int(sizes.rows[-1].max())
    bound = 4 * WIDTH * (2 * 30 + 3 * largest)
    planned("rapidgnn", TWO, sizes, "schedule.window=3", f"placement.device_bytes={bound}")
    with pytest.raises(ConfigError, match=rf"placement\.device_bytes: got {bound - 1}, .*at most 29 hot rows"):
        planned("rapidgnn", TWO, sizes, "schedule.window=3", f"placement.device_bytes={bound - 1}")


@pytest.mark.parametrize("rows_over", [0, 11, 60])
def test_a_device_too_small_for_a_window_is_told_with_one_that_fits(rows_over: int) -> None:
    """A window of two, and the hot rows that fit beside it; what is told is taken, one more of either is not."""
    sizes = made_sizes(TWO, hot_rows=30)
    largest = int(sizes.rows[-1].max())
    assert rows_over < largest
    room = f"placement.device_bytes={4 * WIDTH * (2 * largest + rows_over)}"
    hot = rows_over // 2
    told = r"a window of at most 2 \(schedule\.window\)"
    told += rf" with at most {hot} hot rows \(placement\.hot_rows\)$" if hot < 30 else "$"
    with pytest.raises(ConfigError, match=told):
        planned("rapidgnn", TWO, sizes, "schedule.window=4", room)
    held = made_sizes(TWO, hot_rows=hot)
    planned("rapidgnn", TWO, held, "schedule.window=2", room)
    with pytest.raises(ConfigError, match=r"at most 2 \(schedule\.window\)"):
        planned("rapidgnn", TWO, held, "schedule.window=3", room)
    if hot < 30:
        with pytest.raises(ConfigError, match=rf"or at most {hot} hot rows"):
            planned("rapidgnn", TWO, made_sizes(TWO, hot_rows=max(hot + 1, 2)), "schedule.window=2", room)


@pytest.mark.parametrize("options", [["schedule.window=3"], ["schedule.window=1"], ["schedule.kind=bsp"]])
def test_a_device_too_small_for_one_batch_asks_for_smaller_ones(options: list[str]) -> None:
    sizes = made_sizes(TWO, hot_rows=30)
    largest = int(sizes.rows[-1].max())
    room = f"placement.device_bytes={4 * WIDTH * largest - 1}"
    told = rf"or smaller batches \(batching\.batch_size, batching\.fanouts\): one takes up to {largest} rows"
    with pytest.raises(ConfigError, match=told):
        planned("rapidgnn", TWO, sizes, *options, room)


def test_what_vertices_are_found_by_is_held_by_every_rank() -> None:
    sizes = made_sizes(TWO, hot_rows=30)
    program = planned("rapidgnn", TWO, sizes).program
    lookups, rows = program.buffers["lookups"], program.sizes.columns[f"{EVALUATING}rows"]
    assert (lookups.space, lookups.persistent, lookups.inner) == ("host", True, True)
    expected = 8 * rows.sum() + 8 * sizes.training + 16 * rows
    assert np.array_equal(program.sizes.per_rank(lookups.rows, 0, 0), expected)
    sizes = made_sizes(TWO)
    requested = planned("distdgl", TWO, sizes, "batching.structure=replicated", "batching.evaluation=none").program
    found = requested.sizes.per_rank(requested.buffers["lookups"].rows, 0, 0)
    hops = len(sizes.edges)
    vertices = int(rows.sum())
    inputs = sizes.rows[-1].max(axis=(1, 2))
    assert np.array_equal(found, 12 * vertices + (hops + 1) * vertices // 4 + 8 * sizes.training + 8 * inputs)
