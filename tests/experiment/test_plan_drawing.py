"""Programs whose hosts draw batches for one another: valid, ordered, with the bytes of the requests and no others."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.errors import ConfigError, ProgramError
from simgnn.experiment.load import load_experiment
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Dependency, Op
from simgnn.program.program import Program, Template
from simgnn.program.validate import validate
from simgnn.sampling.batches.sizes import BatchSizes
from tests.equality.counting import pair_bytes, turns_of
from tests.sampling.parted_sampling import payload_bytes
from tests.sim.mini_batches import made_sizes, parted_sizes, planned

EPOCHS = 2


def sizes_of(hosts: list[int], **options: int) -> BatchSizes:
    sizes = made_sizes(hosts, EPOCHS, **options)
    return replace(sizes, parted=parted_sizes(hosts, sizes))


def drawing(program: Program) -> list[Op]:
    return [op for op in program.templates["step"].ops if op.name.startswith(("draw/", "batch/draw"))]


@settings(max_examples=25, deadline=None)
@given(
    hops=st.integers(1, 3),
    hosts=st.sampled_from([[0, 1], [0, 0, 1, 1], [0, 1, 1], [0, 1, 2]]),
    schedule=st.sampled_from(["bsp", "prefetch"]),
    window=st.integers(1, 4),
    staged=st.sampled_from(["rows", "blocks"]),
    across=st.booleans(),
    steps=st.integers(3, 8),
)
def test_every_plan_is_valid(hops, hosts, schedule, window, staged, across, steps) -> None:
    options = [f"schedule.kind={schedule}"]
    if schedule == "prefetch":
        across = across and staged == "rows"
        told = {"window": window, "staged": staged, "across_epochs": str(across).lower()}
        options += [f"schedule.{key}={value}" for key, value in told.items()]
    program = planned("distdgl", hosts, sizes_of(hosts, steps=steps, hops=hops), *options).program
    names = [op.name for op in drawing(program)]
    parts = ("ask", "request", "here", "serve", "return", "stitch")
    chain = [f"draw/{hop}/{part}" for hop in range(1, hops + 1) for part in parts]
    assert names == [*chain[:-1], "batch/draw"]


def test_what_is_sent_are_requests_and_replies() -> None:
    hosts = [0, 0, 1, 1, 2]
    sizes = sizes_of(hosts, hops=3)
    assert sizes.parted is not None
    program = planned("distdgl", hosts, sizes).program
    expected = payload_bytes(sizes.parted.requests)
    assert expected.any()
    for turn in turns_of(program, EPOCHS, []):
        total = np.zeros((5, 5), np.int64)
        for op in drawing(program):
            if op.route is not None:
                assert op.stream == "requests"
                total += pair_bytes(program, op, turn)
            if op.kind is OpKind.FETCH:
                assert op.route is not None
                total += 8 * program.sizes.routes[op.route].matrix(5, turn.epoch, turn.step).T
        np.testing.assert_array_equal(total, expected[:, :, turn.epoch, turn.step])


def test_every_draw_has_its_price() -> None:
    """Vertices and edges that are drawn, at home or for others, are those of the batches."""
    hosts = [0, 1, 1]
    sizes = sizes_of(hosts)
    program = planned("distdgl", hosts, sizes).program
    for turn in turns_of(program, EPOCHS, []):
        for hop in (1, 2):
            work = [op.work[0] for op in drawing(program) if op.name in (f"draw/{hop}/here", f"draw/{hop}/serve")]
            for size, whole in (("vertices", sizes.rows[hop - 1]), ("edges", sizes.edges[hop - 1])):
                found = [program.sizes.per_rank(one.sizes[size], turn.epoch, turn.step).sum() for one in work]
                assert sum(found) == whole[:, turn.epoch, turn.step].sum()


def test_batches_are_drawn_one_after_the_other() -> None:
    """Without the order between two batches the program is refused: their hops use the same memory."""
    program = planned("distdgl", [0, 1], sizes_of([0, 1])).program
    validate(program)
    before = Dependency("batch/draw", steps_back=1)
    changed = [
        replace(op, after=tuple(d for d in op.after if d != before)) if op.name == "draw/1/ask" else op
        for op in program.templates["step"].ops
    ]
    with pytest.raises(ProgramError, match=r"buffer 'asked/1' .*nothing orders them"):
        validate(replace(program, templates={"step": Template("step", tuple(changed))}))


def test_a_host_keeps_its_structure_once() -> None:
    program = planned("distdgl", [0, 0, 1], sizes_of([0, 0, 1])).program
    for name, nbytes in (("structure", 5000), ("degrees", 4 * 2010)):
        buffer = program.buffers[name]
        assert (buffer.space, buffer.persistent) == ("host-shared", True)
        assert program.sizes.per_rank(buffer.rows, 0, 0)[0] * buffer.row_bytes == nbytes


def test_several_threads_draw_alone_only() -> None:
    with pytest.raises(ConfigError, match=r"schedule\.lanes: got 2 with batching\.kind = 'sampled'"):
        load_experiment("distdgl", ["schedule.lanes=2"])
    alone = load_experiment("distdgl", ["schedule.lanes=2", "batching.structure=replicated"])
    assert not alone.batching.asks_hosts
    with pytest.raises(ConfigError, match=r"batching\.structure"):
        load_experiment("rapidgnn", ["batching.structure=partitioned"])
