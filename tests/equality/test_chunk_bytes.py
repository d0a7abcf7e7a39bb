"""What chunks move: closed forms of HongTu's volumes, the program, the simulation and the executor's counts agree."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.state.plan import RunPlan
from simgnn.partition.chunks.store import ChunkArtifact
from simgnn.program.kinds import OpKind
from simgnn.program.program import Program
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.sim.simulate import simulate
from tests.equality.chunk_runs import summed, train_counting
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph
from tests.programs.test_simulated import machine_for

HIDDEN, FEATURES, CLASSES, VERTICES, ITEM = 8, 12, 5, 90, 8
WIDTHS = (FEATURES, HIDDEN, HIDDEN, CLASSES)
MODES = [
    ("gcn", "p2p+reuse", "hybrid"), ("sage", "p2p+reuse", "hybrid"), ("gcn", "p2p+reuse", "recompute"),
    ("gin", "p2p", "hybrid"), ("gat", "p2p", "recompute"),
]  # fmt: skip


def by_link(program: Program, moved: dict[tuple[int, str], int]) -> dict[tuple[str, int, str], int]:
    """Bytes of an epoch by link, layer and the half of the epoch in which they move."""
    found: dict[tuple[str, int, str], int] = {}
    for (step, name), nbytes in moved.items():
        template = program.calendar.template(0, step)
        op = next(op for op in program.templates[template].ops if op.name == name)
        key = op.kind.value, op.layer, template.split("/")[0]
        found[key] = found.get(key, 0) + nbytes
    return {key: nbytes for key, nbytes in found.items() if nbytes}


def planned(program: Program) -> dict[tuple[int, str], int]:
    """Bytes of all ranks by step and op, of copies between host and device and of reads from peers."""
    found = {}
    for turn in program.calendar.turns(1):
        for op in program.templates[turn.template].ops:
            if op.kind not in (OpKind.H2D, OpKind.D2H, OpKind.PEER_READ):
                continue
            assert op.transfer is not None
            if op.route is None:
                rows = program.sizes.per_rank(op.transfer.rows, 0, turn.step).sum()
            else:
                rows = program.sizes.routes[op.route].at(0, turn.step).sum()
            found[turn.step, op.name] = int(rows) * op.transfer.row_bytes
    return found


def closed_forms(volumes: Any, model: str, dedup: str, recomputes: bool) -> dict[tuple[str, int, str], int]:
    """Bytes of an epoch by section 8 of HongTu's description."""
    loaded = volumes.v_ru if dedup == "p2p+reuse" else volumes.v_p2p
    read = volumes.v_ddr if dedup == "p2p+reuse" else volumes.v_dd
    top, found = len(WIDTHS) - 1, dict[tuple[str, int, str], int]()
    for layer in range(1, top + 1):
        row, up = WIDTHS[layer - 1] * ITEM, WIDTHS[layer] * ITEM
        found["h2d", layer, "forward"] = loaded * row
        found["peer_read", layer, "forward"] = read * row
        # the output, or in the last layer the gradient of the loss; kept sums
        found["d2h", layer, "forward"] = VERTICES * (up + (0 if recomputes else row))
        found["h2d", layer, "backward"] = VERTICES * up
        if recomputes:
            found["h2d", layer, "backward"] += loaded * row
            found["peer_read", layer, "backward"] = read * row
        else:
            found["h2d", layer, "backward"] += VERTICES * row * (1 + (model in ("sage", "gin")))
        if layer > 1:
            found["d2h", layer, "backward"] = loaded * row
            found["peer_read", layer, "backward"] = found.get(("peer_read", layer, "backward"), 0) + volumes.v_dd * row
    return {key: nbytes for key, nbytes in found.items() if nbytes}


@pytest.mark.parametrize(("model", "dedup", "intermediates"), MODES)
@pytest.mark.parametrize(("ranks", "chunks"), [(3, 4), (1, 3)])
def test_bytes_are_those_of_closed_forms_everywhere(
    model: str, dedup: str, intermediates: str, ranks: int, chunks: int, tmp_path: Path
) -> None:
    folder = prepared_run(
        small_graph(VERTICES, width=FEATURES), tmp_path / "run", ranks, f"model.kind={model}", "model.layers=3",
        f"model.hidden={HIDDEN}", f"partition.chunks={chunks}", 'partition.candidates=["initial"]', "train.epochs=2",
        f"communication.dedup={dedup}", f"placement.intermediates={intermediates}", "train.eval_every=0",
        "hardware.threads_per_rank=1", system="hongtu",
    )  # fmt: skip
    plan = RunPlan.open(folder)
    assert plan.chunks is not None
    program, volumes = plan.program, ChunkArtifact.open(plan.chunks).volumes
    expected = closed_forms(volumes, model, dedup, intermediates == "recompute")
    assert by_link(program, planned(program)) == expected

    results = run_ranks(ranks, train_counting, tmp_path / "ranks", str(folder), joined=False)
    copied = summed(results, epoch=1)
    trace = read_table(RunDirectory(folder).trace).to_pandas()
    simulated = simulate(program, machine_for(program), epochs=2).columns
    names = {number: key for key, number in program.op_ids.items()}
    reads = {number for number, (_, op) in enumerate(program.ops) if op.kind is OpKind.PEER_READ}

    def sent(columns: Any) -> dict[tuple[int, str], int]:
        found: dict[tuple[int, str], int] = {}
        fields = (np.asarray(columns[name]) for name in ("epoch", "step", "op_id", "bytes_sent"))
        for epoch, step, op_id, nbytes in zip(*fields, strict=True):
            if epoch == 1 and step >= 0 and op_id in reads:
                key = int(step), names[int(op_id)][1]
                found[key] = found.get(key, 0) + int(nbytes)
        return found

    for columns in (trace, simulated):
        assert by_link(program, {**copied, **sent(columns)}) == expected
