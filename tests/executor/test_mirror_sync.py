"""Masters and mirrors on real ranks: local sums are parts of the whole, and a sync leaves the same bits everywhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor.layers import LocalAdjacency, aggregate
from executor.policies.accelerated import accelerated
from executor.rank.interpreter import Interpreter
from executor.state.routes import local_routes
from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.sync import Stage, Sync, emit_encoded, emit_plainly
from simgnn.errors import BackendError
from simgnn.graph.graph import Graph
from simgnn.partition.local.vertex_cut import ReplicaGraph, build_replica_graphs
from simgnn.partition.partition import Partition, partitioned
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.statistics.count import partition_stats
from simgnn.policies.codec.linear import Linear
from simgnn.program.calendar import Calendar
from simgnn.program.program import Program
from tests.executor.harness import Notes, run_ranks, world_context
from tests.executor.runs import small_graph

WIDTH = 5


def divided(ranks: int) -> tuple[Graph, Partition, list[ReplicaGraph]]:
    graph = small_graph()
    partition = partitioned(Ebv(), graph, np.zeros(ranks, dtype=np.int64), seed=0)
    return graph, partition, list(build_replica_graphs(graph, partition))


@pytest.mark.parametrize("kernel", ["numba", "torch"])
@pytest.mark.parametrize("scaling", ["gcn", "mean", "sum"])
def test_parts_add_up_to_the_weights_of_the_whole_graph(scaling: str, kernel: str) -> None:
    graph, _, replicas = divided(3)
    options: dict[str, Any] = {"kernel": kernel, "dtype": torch.float64, "threads": 1}
    eye = torch.eye(graph.vertices, dtype=torch.float64)
    whole = aggregate(LocalAdjacency(graph.csr, graph.csr.degrees(), **options), eye, None, scaling)
    total = torch.zeros_like(whole)
    for one in replicas:
        rows = torch.from_numpy(one.vertices)
        total[rows] += aggregate(LocalAdjacency.from_local_graph(one, **options), eye[rows], None, scaling)
    assert float((total - whole).abs().max()) < 1e-14


def linear(bits: int) -> Linear:
    return Linear.model_validate({"bits": bits})


def sync_program(ranks: int, graph: Graph, partition: Partition, bits: int | None = None) -> Program:
    """Gather and scatter of a buffer, in place, as they are or in codes of so many bits."""
    stats = partition_stats(graph, partition, np.zeros(ranks, dtype=np.int64))
    builder = ProgramBuilder("sync", [0] * ranks, "float32")
    builder.route("mirrors", stats.halo)
    mirrors = builder.column("mirrors", stats.halo_rows())
    mirrored = builder.column("mirrored", np.bincount(stats.halo.source, stats.halo.rows, minlength=ranks))
    builder.buffer("rows", builder.column("held", stats.rows + stats.halo_rows()), WIDTH, persistent=True)
    stages = (
        Stage("fold", "mirrors/reverse", "rows", "rows", mirrors, mirrored, "out/g", "add",
              picked="mirrors/reverse", arrived="in/g", landed="mirrors/reverse", name="gather"),
        Stage("publish", "mirrors", "rows", "rows", mirrored, mirrors, "out/s", "put",
              picked="mirrors", arrived="in/s", landed="mirrors", name="scatter"),
    )  # fmt: skip
    sync = Sync(("steady",), 1, "forward", WIDTH, stages)
    if bits is None:
        emit_plainly(builder, sync)
    else:
        emit_encoded(builder, sync, linear(bits))
    return builder.build(Calendar("steady"))


def _sync(rank: int, ranks: int, bits: int | None) -> dict[str, Any]:
    graph, partition, replicas = divided(ranks)
    program, local = sync_program(ranks, graph, partition, bits), replicas[rank]
    drawn = torch.randn(len(local.vertices), WIDTH, generator=torch.Generator().manual_seed(rank))
    routes = local_routes(program, local, torch.device("cpu"))
    rows = drawn.clone()
    policies = {} if bits is None else {"codec": accelerated(linear(bits))}
    context = world_context(program, rank, {"rows": rows}, routes, policies)
    Interpreter(program, context, Notes()).train(range(1))
    return {"drawn": drawn, "rows": rows, "vertices": torch.from_numpy(local.vertices)}


def test_a_sync_leaves_the_same_bits_on_every_copy(tmp_path: Path) -> None:
    ranks = 3
    graph, partition, replicas = divided(ranks)
    assert max(len(one.mirrored) for one in replicas) == 2, "no vertex is shared by all"
    found = run_ranks(ranks, _sync, tmp_path, None)
    parts: dict[int, list[tuple[bool, torch.Tensor]]] = {}
    for rank, one in enumerate(found):
        for vertex, row in zip(one["vertices"].tolist(), one["drawn"], strict=True):
            parts.setdefault(vertex, []).append((rank != partition.owner[vertex], row))
    # at the master: its own part first, then those of mirrors, ranks ascending
    sums = {vertex: _ordered_sum([row for _, row in sorted(held, key=lambda part: part[0])])
            for vertex, held in parts.items()}  # fmt: skip
    assert len(sums) == graph.vertices
    for one in found:
        for vertex, row in zip(one["vertices"].tolist(), one["rows"], strict=True):
            assert torch.equal(row, sums[vertex]), f"vertex {vertex}"


def _ordered_sum(rows: list[torch.Tensor]) -> torch.Tensor:
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


@pytest.mark.parametrize("bits", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_codes_leave_the_same_bits_on_every_copy(bits: int, tmp_path: Path) -> None:
    """Masters go on with what mirrors decode, and no element is further off than its parts' codes and its own."""
    found = run_ranks(3, _sync, tmp_path, bits)
    exact: dict[int, Any] = {}
    allowed: dict[int, Any] = {}
    copies: dict[int, list[torch.Tensor]] = {}
    levels = 2 * (2**bits - 1)
    _, partition, _ = divided(3)
    for rank, one in enumerate(found):
        for vertex, part, row in zip(one["vertices"].tolist(), one["drawn"], one["rows"], strict=True):
            exact[vertex] = exact.get(vertex, 0) + part
            error = (part.max() - part.min()) / levels if rank != partition.owner[vertex] else torch.zeros(())
            allowed[vertex] = allowed.get(vertex, 0) + error
            copies.setdefault(vertex, []).append(row)
    shared = {vertex: rows for vertex, rows in copies.items() if len(rows) > 1}
    assert shared
    for vertex, rows in copies.items():
        assert all(torch.equal(row, rows[0]) for row in rows), f"vertex {vertex}"
        off = float((rows[0] - exact[vertex]).abs().max())
        if vertex not in shared:
            assert off == 0, "a row without copies does not travel"
            continue
        # the sum that is coded is itself off by what its parts' codes are, which widens its range
        spread = exact[vertex].max() - exact[vertex].min() + 2 * allowed[vertex]
        assert off <= float(allowed[vertex] + spread / levels) + 1e-5
    assert any(float((rows[0] - exact[vertex]).abs().max()) > 1e-4 for vertex, rows in shared.items())


def test_routes_of_another_partition_are_refused() -> None:
    graph, partition, _ = divided(3)
    other = partitioned(Ebv(master="first"), graph, np.zeros(3, dtype=np.int64), seed=0)
    strangers = list(build_replica_graphs(graph, other))
    program = sync_program(3, graph, partition)
    with pytest.raises(BackendError, match=r"route 'mirrors'.*different partitions"):
        local_routes(program, strangers[0], torch.device("cpu"))
