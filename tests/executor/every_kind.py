"""One program that holds every kind of op, for any number of ranks and either backend, with results in closed form."""

from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from executor.rank.interpreter import Interpreter
from executor.state.buffers import Value
from executor.state.context import GroupHandle, LocalRoute
from executor.state.task import Task
from simgnn.program.kinds import OpKind, Segment
from simgnn.program.ops import Buffer, Op, Transfer
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Decision, Route
from tests.executor.harness import Notes, acting, reads, tiny_program, world_context
from tests.executor.schedules import SeededRandom

ROWS, WIDTH = 4, 8


POLICY = acting(
    select=lambda _, rows: (torch.ones(len(rows), dtype=torch.bool, device=rows.device), rows),
    encode=lambda _, rows: (rows.half(),),
    decode=lambda _, rows: (rows.float(),),
    locate=lambda _, ids: (ids // ROWS, ids % ROWS),  # ids count the ranks' rows through
    sample=lambda _, seeds: (seeds * 10,),
)
"""A policy with an action of every kind: keeps all rows, halves their precision, finds ids, draws a neighbour."""


class Linear:
    """A network of one layer whose segments are products with one weight."""

    def __init__(self, device: torch.device) -> None:
        self.weight = torch.nn.Parameter(torch.eye(WIDTH, device=device) * 2)

    def segment(self, layer: int, segment: Segment, kept: bool = False) -> Any:
        """rows @ W, whichever segment it is."""
        return lambda rows: rows @ self.weight

    def on_tape(self, layer: int) -> bool:
        """It is reversed by autograd."""
        return False


class Step:
    """Stands in for the optimizer."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        """Count."""
        self.steps += 1


def every_kind(ranks: int) -> Program:
    """Each rank sends its first two rows to the next rank (to nobody when alone)."""
    matrix = np.zeros((ranks, ranks), dtype=np.int64)
    for rank in range(ranks):
        if ranks > 1:
            matrix[rank, (rank + 1) % ranks] = 2
    ops = [
        Op("transform", OpKind.TRANSFORM, "compute", reads("rows"), reads("hidden"), segment=Segment.UPDATE, layer=1),
        Op("aggregate", OpKind.AGGREGATE, "compute", reads("hidden"), reads("summed"), segment=Segment.AGGREGATE,
           layer=1),
        Op("loss", OpKind.LOSS, "compute", reads("summed"), reads("d/summed", "metrics")),
        Op("aggregate/backward", OpKind.AGGREGATE, "compute", reads("d/summed"), reads("d/hidden"),
           reverses="aggregate", gradients={"d/summed": "summed", "d/hidden": "hidden"}),
        Op("transform/backward", OpKind.TRANSFORM, "compute", reads("d/hidden"), (), reverses="transform",
           gradients={"d/hidden": "hidden"}),
        Op("optimize", OpKind.OPTIMIZE, "compute", reads("metrics"), reads("parameters")),
        Op("pack", OpKind.COPY, "compute", reads("rows"), reads("send"), route="halo"),
        Op("exchange", OpKind.EXCHANGE, "comm", reads("send"), reads("halo"), route="halo"),
        Op("peer", OpKind.PEER_READ, "comm", reads("rows"), reads("peer"), route="halo"),
        Op("back", OpKind.EXCHANGE, "comm", reads("halo"), reads("returned"), route="halo/reverse"),
        Op("add", OpKind.ADD, "compute", reads("returned", "sum"), reads("sum"), route="halo"),
        Op("elementwise", OpKind.ELEMENTWISE, "compute", reads("rows"), reads("doubled"), layer=1,
           segment=Segment.PREPARE),
        Op("select", OpKind.SELECT, "compute", reads("rows"), reads("mask", "message"), module="policy",
           action="select"),
        Op("encode", OpKind.ENCODE, "compute", reads("message"), reads("packed"), module="policy", action="encode"),
        Op("decided", OpKind.EXCHANGE, "comm", reads("packed", "counts"), reads("arrived"),
           transfer=Transfer(2 * WIDTH, decision=Decision("selected", ROWS))),
        Op("decode", OpKind.DECODE, "compute", reads("arrived"), reads("decoded"), module="policy", action="decode"),
        Op("broadcast", OpKind.BROADCAST, "comm", reads("rows"), reads("shared"), root=ranks - 1,
           transfer=Transfer(4 * WIDTH, rows=Column("rows"))),
        Op("allreduce", OpKind.ALLREDUCE, "comm", reads("a"), reads("a"), transfer=Transfer(64)),
        Op("allgather", OpKind.ALLGATHER, "comm", reads("own"), reads("every"),
           transfer=Transfer(4 * WIDTH, rows=Column("uneven"))),
        Op("sample", OpKind.SAMPLE, "compute", reads("ids"), reads("block"), module="policy", action="sample"),
        Op("fetch", OpKind.FETCH, "comm", reads("ids", "rows"), reads("fetched"), module="policy",
           action="locate", options={"round_rows": 3}),
        Op("d2h", OpKind.D2H, "compute", reads("rows"), reads("host")),
        Op("h2d", OpKind.H2D, "compute", reads("host"), reads("again")),
        Op("barrier", OpKind.BARRIER, "comm"),
    ]  # fmt: skip
    names = {access.buffer for op in ops for access in op.reads + op.writes}
    return tiny_program(
        ranks,
        {"steady": ops},
        [
            Buffer(
                name,
                Column("rows"),
                WIDTH,
                space="host" if name == "host" else "device",
                persistent=True,
                inner=name == "parameters",
            )
            for name in sorted(names)
        ],
        routes={"halo": Route.from_matrix(matrix), "halo/reverse": Route.from_matrix(matrix.T)},
        columns={"rows": np.full(ranks, ROWS), "uneven": 1 + np.arange(ranks)},
    )


def rows_of(rank: int) -> torch.Tensor:
    """A rank's rows."""
    return torch.arange(float(ROWS * WIDTH)).view(ROWS, WIDTH) - 10 + 100 * rank


def run_every_kind(rank: int, ranks: int, backend: str, seed: int | None) -> dict[str, Any]:
    """Two epochs of the program on this rank; checks every result, returns what was sent by op name."""
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    program = every_kind(ranks)
    route = program.sizes.routes["halo"].matrix(ranks)
    picked = torch.arange(2 if ranks > 1 else 0, device=device)
    halo = LocalRoute(picked, None, tuple(route[rank].tolist()), tuple(route[:, rank].tolist()), ranks == 1)
    rows = rows_of(rank).to(device)
    constants: dict[str, Value] = {
        "rows": rows,
        "sum": torch.zeros(ROWS, WIDTH, device=device),
        "a": torch.full((2, WIDTH), float(rank + 1), device=device),
        "own": rows[: rank + 1] if rank < ROWS else rows,
        "counts": torch.tensor([ROWS if other == (rank + 1) % ranks else 0 for other in range(ranks)]),
        "ids": torch.arange(ranks * ROWS, device=device).flip(0),
    }
    task = Task(
        rows, torch.arange(ROWS, device=device),
        (torch.arange(2, device=device), torch.arange(2, 3, device=device), torch.arange(3, 4, device=device)),
        2 * ranks, WIDTH, False,
    )  # fmt: skip
    network, step = Linear(device), Step()
    context = world_context(
        program, rank, constants, {"halo": halo, "halo/reverse": halo.reversed()}, {"policy": POLICY}, device,
        task=task, network=network, optimizer=step,
    )  # fmt: skip
    group = dist.new_group(list(range(ranks)), backend=backend, timeout=timedelta(seconds=60))
    context.groups = {"world": GroupHandle(group, tuple(range(ranks)), device)}
    notes = Notes()
    interpreter = Interpreter(program, context, notes, schedule=None if seed is None else SeededRandom(seed))
    interpreter.train(range(2))
    interpreter.close()
    if device.type == "cuda":
        torch.cuda.synchronize()
    _check(rank, ranks, {n: context.store.values[context.store.slot(n)] for n in program.buffers}, network, step)
    assert all(e.query() if device.type == "cuda" else e >= i for _, _, i, e, _ in notes.rows)
    return {program.ops[op_id][1].name: list(sent) for now, op_id, _, _, sent in notes.rows if now.epoch == 1}


def _check(rank: int, ranks: int, found: dict[str, Any], network: Linear, step: Step) -> None:
    mine, before = rows_of(rank), rows_of((rank - 1) % ranks)
    halo = before[:2] if ranks > 1 else before[:0]
    returned = torch.zeros(ROWS, WIDTH)
    if ranks > 1:
        returned[:2] = 2 * mine[:2]  # two epochs
    expected = {
        "hidden": 2 * mine, "summed": 4 * mine, "send": mine[: len(halo)], "halo": halo, "peer": halo, "sum": returned,
        "doubled": 2 * mine, "decoded": before.half().float(), "shared": rows_of(ranks - 1),
        # each of the two epochs sums over all ranks
        "a": torch.full((2, WIDTH), float(sum(range(1, ranks + 1)) * ranks)),
        "every": torch.cat([rows_of(other)[: other + 1] for other in range(ranks)]),
        "block": 10 * torch.arange(ranks * ROWS).flip(0),
        "fetched": torch.cat([rows_of(other) for other in range(ranks)]).flip(0), "host": mine, "again": mine,
    }  # fmt: skip
    for name, value in expected.items():
        assert torch.equal(found[name].cpu(), value), (name, found[name], value)
    assert found["host"].device.type == "cpu"
    scores = (4 * mine[:2]).requires_grad_()
    loss = torch.nn.functional.cross_entropy(scores, torch.arange(2), reduction="sum") / (2 * ranks)
    loss.backward()
    assert torch.allclose(found["d/summed"][:2].cpu(), scores.grad, atol=1e-6)
    assert torch.allclose(found["metrics"].cpu()[0], loss.detach().double())
    assert step.steps == 2
    gradient = network.weight.grad
    assert gradient is not None
    # d(x W W)/dW, twice
    weight, up = 2 * torch.eye(WIDTH), found["d/summed"].cpu()
    once = (mine @ weight).T @ up + mine.T @ (up @ weight.T)
    assert torch.allclose(gradient.cpu(), 2 * once, rtol=1e-4, atol=1e-3)
