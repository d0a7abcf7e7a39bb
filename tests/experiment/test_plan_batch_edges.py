"""Mini-batch programs: what a run goes on from, a run of one epoch, which library moves ids and rows."""

from dataclasses import replace

import numpy as np
import pytest

from simgnn.program.program import Program, carried, remembered
from tests.sim.mini_batches import made_sizes, parted_sizes, planned

HOSTS = [0, 0, 1, 1]


def _program(system: str, epochs: int = 2, *settings: str) -> Program:
    sizes = made_sizes(HOSTS, epochs, hot_rows=30 if system == "rapidgnn" else 0)
    if system == "distdgl":
        sizes = replace(sizes, parted=parted_sizes(HOSTS, sizes))
    return planned(system, HOSTS, sizes, *settings).program


@pytest.mark.parametrize(("system", "kept"), [("rapidgnn", {"hot"}), ("distdgl", set())])
def test_a_run_goes_on_from_its_cache_and_from_no_staged_batch(system: str, kept: set[str]) -> None:
    """When the turns of an epoch have ended, every batch that was staged has been trained."""
    program = _program(system, 2, "schedule.window=3")
    rings = {name for name, buffer in program.buffers.items() if buffer.depth > 1}
    persistent = {name for name, buffer in program.buffers.items() if buffer.persistent}
    assert "vertices" in rings
    assert remembered(program) - persistent == kept
    assert carried(program) == remembered(program) | rings


def test_a_run_of_one_epoch_fills_one_cache() -> None:
    """Before it begins; nothing follows, and the bound stays (docs/systems/rapidgnn.md)."""
    program = _program("rapidgnn", 1)
    assert program.buffers["hot"].depth == 2
    assert program.calendar.template(0, 0) == "first"
    routes = program.sizes.routes
    assert routes["hot/setup"].rows.any()
    assert not routes["hot"].rows.any()
    assert not np.any(program.sizes.columns["hot/kept"])


@pytest.mark.parametrize("system", ["rapidgnn", "distdgl"])
def test_ids_and_rows_travel_over_gloo_whatever_gradients_do(system: str) -> None:
    """They lie in the memory of hosts; each group belongs to one stream (docs/systems/mini-batches.md)."""
    program = _program(system)
    backends = {name: group.backend for name, group in program.groups.items()}
    assert backends.pop("world") == "default"
    assert set(backends) == {"fetch"} | ({"requests"} if system == "distdgl" else set())
    assert set(backends.values()) == {"gloo"}
    users = [stream.group for stream in program.streams.values() if stream.group is not None]
    assert sorted(users) == sorted(program.groups)


@pytest.mark.parametrize(("window", "across", "depth"), [(3, False, 3), (9, False, 7), (9, True, 9)])
@pytest.mark.parametrize("hot_rows", [0, 30])
def test_no_more_batches_are_staged_than_an_epoch_has(window: int, across: bool, depth: int, hot_rows: int) -> None:
    """Unless those of the next epoch may be (docs/systems/rapidgnn.md). The validator proves that slots suffice."""
    options = [f"schedule.window={window}", f"schedule.across_epochs={str(across).lower()}"]
    program = planned("rapidgnn", HOSTS, made_sizes(HOSTS, hot_rows=hot_rows), *options).program
    assert program.calendar.steps == 7
    assert {program.buffers[name].depth for name in ("inputs", "seeds", "blocks/1")} == {depth}
    assert program.buffers["vertices"].depth == window


@pytest.mark.parametrize(("lanes", "threads"), [(2, 2), (9, 3)])
def test_no_more_threads_draw_than_batches_are_held(lanes: int, threads: int) -> None:
    options = ["schedule.window=3", f"schedule.lanes={lanes}"]
    program = planned("rapidgnn", HOSTS, made_sizes(HOSTS), *options).program
    assert program.streams["sampling"].servers == threads
