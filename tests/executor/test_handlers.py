"""Every kind of op, carried out by two real ranks over Gloo, with bytes counted from what was sent."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor.handlers import FORM_HANDLERS, HANDLERS
from executor.policies.accelerated import accelerated
from executor.rank.interpreter import Interpreter
from executor.state.context import LocalRoute
from simgnn.errors import BackendError
from simgnn.policies.codec.linear import Linear
from simgnn.program.kinds import KIND_OF_FORM, Form, OpKind
from simgnn.program.ops import Buffer, Op, Transfer
from simgnn.program.sizes import Column, Decision, Route
from tests.executor.harness import Notes, acting, local_route, reads, run_ranks, tiny_program, world_context

MATRIX = np.array([[0, 2], [3, 0]])


def test_every_kind_has_a_handler() -> None:
    assert set(HANDLERS) == set(OpKind)
    assert set(FORM_HANDLERS) == set(KIND_OF_FORM) == set(Form)


def _sent(notes: Notes) -> list[list[int]]:
    return [list(row[4]) for row in sorted(notes.rows, key=lambda row: row[1])]


def _exchange(rank: int, ranks: int) -> dict[str, Any]:
    program = tiny_program(
        ranks,
        {
            "steady": [
                Op("pack", OpKind.COPY, "compute", reads("rows"), reads("send"), route="halo"),
                Op("exchange", OpKind.EXCHANGE, "comm", reads("send"), reads("halo"), route="halo"),
                Op("back", OpKind.EXCHANGE, "comm", reads("halo"), reads("returned"), route="halo/reverse"),
                Op("add", OpKind.ADD, "compute", reads("returned", "sum"), reads("sum"), route="halo"),
                Op("read", OpKind.PEER_READ, "comm", reads("rows"), reads("peer"), route="halo"),
                Op("total", OpKind.ALLREDUCE, "comm", reads("a", "b"), reads("a", "b"), transfer=Transfer(24)),
                Op("meet", OpKind.BARRIER, "comm"),
            ]
        },
        [Buffer(name, 0, 4, persistent=True) for name in ("rows", "send", "halo", "returned", "sum", "peer", "a", "b")],
        routes={"halo": Route.from_matrix(MATRIX), "halo/reverse": Route.from_matrix(MATRIX.T)},
    )
    rows = torch.arange(16.0).view(4, 4) + 100 * rank
    flat = torch.arange(6.0)
    constants = {"rows": rows, "sum": torch.zeros(4, 4), "a": flat[:2], "b": flat[2:].view(2, 2)}
    picked = torch.tensor([1, 3]) if rank == 0 else torch.tensor([0, 1, 3])
    halo = local_route(program, "halo", rank, picked)
    context = world_context(program, rank, constants, {"halo": halo, "halo/reverse": halo.reversed()})
    notes = Notes()
    Interpreter(program, context, notes).train(range(1))
    values = {name: context.store.values[context.store.slot(name)] for name in ("halo", "sum", "peer", "a", "b")}
    pairs = [[*key, *value] for key, value in sorted(context.pairs.items())]
    return {**values, "sent": _sent(notes), "pairs": pairs, "rows": rows}


def test_rows_travel_along_a_route_and_back(tmp_path: Path) -> None:
    first, second = run_ranks(2, _exchange, tmp_path)
    assert torch.equal(first["halo"], second["rows"][[0, 1, 3]])
    assert torch.equal(second["halo"], first["rows"][[1, 3]])
    assert torch.equal(first["peer"], first["halo"])
    assert torch.equal(second["peer"], second["halo"])
    expected = torch.zeros(4, 4)
    expected[[1, 3]] = first["rows"][[1, 3]]
    assert torch.equal(first["sum"], expected)
    assert torch.equal(first["a"], 2 * torch.arange(2.0))
    assert torch.equal(first["b"], 2 * torch.arange(2.0, 6.0).view(2, 2))
    # pack, exchange, back, add, read, total, meet: bytes_sent, collective, control, messages
    assert first["sent"] == [[0] * 4, [32, 0, 0, 1], [48, 0, 0, 1], [0] * 4, [32, 0, 0, 1], [0, 24, 0, 0], [0] * 4]
    assert second["sent"][1] == [48, 0, 0, 1]
    assert first["pairs"] == [[1, 1, 1, 32], [2, 1, 1, 48], [4, 1, 1, 32]]


def _sparse(rank: int, ranks: int) -> dict[str, Any]:
    values = torch.tensor([[0, 1.5, 0], [2, 0, 3], [0, 0, 0]]) * (rank + 1)
    matrix = values.to_sparse_csr()
    kept = torch.tensor([1, 2]) if rank == 0 else torch.tensor([0, 1, 2])
    lengths = [2 * 4 + 2 * 8, 3 * 4 + 3 * 8]
    halo = LocalRoute(kept, None, *[(0, 2), (0, 3)] if rank == 0 else [(3, 0), (2, 0)])
    nbytes = np.array([[0, lengths[0]], [lengths[1], 0]])
    packing = {"route": "halo", "form": Form.SPARSE_ROWS}
    program = tiny_program(
        ranks,
        {
            "steady": [
                Op("pack", OpKind.COPY, "compute", reads("features"), reads("send"), **packing),
                Op("exchange", OpKind.EXCHANGE, "comm", reads("send"), reads("receive"), route="bytes"),
                Op("unpack", OpKind.COPY, "compute", reads("receive"), reads("halo"), **packing),
            ]
        },
        [Buffer(name, 0, 1, "uint8", persistent=True) for name in ("features", "send", "receive", "halo")],
        routes={"bytes": Route.from_matrix(nbytes), "halo": Route.from_matrix(MATRIX)},
    )
    from executor.state.task import Task

    none = torch.empty(0, dtype=torch.int64)
    task = Task(matrix, none, (none, none, none), 0, 2, False)
    routes = {"halo": halo, "bytes": local_route(program, "bytes", rank)}
    context = world_context(program, rank, {"features": matrix}, routes, task=task)
    notes = Notes()
    Interpreter(program, context, notes).train(range(1))
    got = context.store.values[context.store.slot("halo")]
    return {"halo": got.to_dense(), "rows": values, "sent": _sent(notes)}


def test_sparse_rows_travel_as_bytes(tmp_path: Path) -> None:
    first, second = run_ranks(2, _sparse, tmp_path)
    assert torch.equal(first["halo"], second["rows"])
    assert torch.equal(second["halo"], first["rows"][[1, 2]])
    assert first["sent"][1] == [24, 0, 0, 1]
    assert second["sent"][1] == [36, 0, 0, 1]


def _large_rows(context: Any, rows: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows that have changed by more than a bound."""
    mask = (rows - state).sum(1) > 20
    state[mask] = rows[mask]
    return mask, rows[mask], state


def _decided(rank: int, ranks: int) -> dict[str, Any]:
    program = tiny_program(
        ranks,
        {
            "steady": [
                Op("select", OpKind.SELECT, "compute", reads("rows", "last"), reads("mask", "message", "last"),
                   module="large", action="select"),
                Op("counts", OpKind.COPY, "compute", reads("peer_counts"), reads("counts")),
                Op("encode", OpKind.ENCODE, "compute", reads("message"), reads("packed"), module="large",
                   action="encode"),
                Op("exchange", OpKind.EXCHANGE, "comm", reads("packed", "counts"), reads("arrived"),
                   transfer=Transfer(8, decision=Decision("rows", 4))),
                Op("decode", OpKind.DECODE, "compute", reads("arrived"), reads("decoded"), module="large",
                   action="decode"),
                Op("agree", OpKind.ALLGATHER, "comm", reads("mask_rows"), reads("every"),
                   transfer=Transfer(1, rows=Column("rows"), control=True)),
                Op("root", OpKind.BROADCAST, "comm", reads("own"), reads("shared"), root=1,
                   transfer=Transfer(16, rows=Column("rows"))),
                Op("fetch", OpKind.FETCH, "comm", reads("ids", "rows"), reads("fetched"), module="large",
                   action="locate", options={"round_rows": 2}),
                Op("sample", OpKind.SAMPLE, "compute", reads("ids"), reads("block"), module="large", action="sample"),
                Op("up", OpKind.H2D, "compute", reads("rows"), reads("device")),
                Op("down", OpKind.D2H, "compute", reads("device"), reads("host")),
            ]
        },
        [
            Buffer(name, {"last": 3, "shared": 1}.get(name, 0), 4, persistent=True)
            for name in ("rows", "mask", "message", "packed", "arrived", "decoded", "last", "mask_rows", "every",
                         "own", "shared", "ids", "fetched", "block", "device", "host", "counts", "peer_counts")
        ],
        columns={"rows": np.array([3, 1])},
    )  # fmt: skip
    rows = torch.arange(12.0).view(3, 4) + 12 * rank
    chosen = int((rows.sum(1) > 20).sum())
    constants = {
        "rows": rows,
        "peer_counts": torch.tensor([0, chosen] if rank == 0 else [chosen, 0]),
        "mask_rows": torch.ones(3, 1) if rank == 0 else torch.zeros(1, 1),
        "own": torch.full((1, 4), 7.0) if rank == 1 else torch.zeros(0, 4),
        "ids": torch.tensor([12, 0, 11, 2, 10]) if rank == 0 else torch.tensor([1]),
    }
    told: list[tuple[int, str, int, int]] = []
    large = acting(
        select=_large_rows,
        encode=lambda _, rows: (rows.half(),),
        decode=lambda _, packed: (packed.float(),),
        locate=lambda _, ids: (ids // 10, ids % 10),
        sample=lambda context, seeds: (seeds * 10 + context.epoch,),
    )
    context = world_context(
        program, rank, constants, policies={"large": large},
        note=lambda now, name, peer, value: told.append((now.epoch, name, peer, value)),
    )  # fmt: skip
    notes = Notes()
    Interpreter(program, context, notes).train(range(1))
    names = ("arrived", "decoded", "last", "every", "shared", "fetched", "block", "device", "host")
    values = {name: context.store.values[context.store.slot(name)] for name in names}
    return {**values, "sent": _sent(notes), "told": told, "rows": rows}


def test_policies_decide_encode_and_fetch(tmp_path: Path) -> None:
    first, second = run_ranks(2, _decided, tmp_path)
    assert torch.equal(first["decoded"], second["rows"])  # all three rows of rank 1 are large
    assert torch.equal(second["decoded"], first["rows"][1:])
    assert first["arrived"].dtype == torch.float16
    # state reads as zeros before it is written, and is written where rows were sent
    assert torch.equal(first["last"][1:], first["rows"][1:])
    assert not first["last"][0].any()
    assert first["told"] == [(0, "rows", 1, 2)]
    assert second["told"] == [(0, "rows", 0, 3)]
    for result in (first, second):
        assert result["every"].tolist() == [[1.0], [1.0], [1.0], [0.0]]
        assert result["shared"].tolist() == [[7.0] * 4]
        assert torch.equal(result["device"], result["rows"])
        assert torch.equal(result["host"], result["rows"])
    everything = torch.cat((first["rows"], second["rows"]))
    assert torch.equal(first["fetched"], everything[[5, 0, 4, 2, 3]])
    assert torch.equal(second["fetched"], everything[[1]])
    assert first["block"].tolist() == [120, 0, 110, 20, 100]
    sent = first["sent"]
    assert sent[3] == [2 * 8, 0, 8, 1]  # two half rows, one count ahead
    assert sent[5] == [0, 0, 12, 0]  # three flags
    assert second["sent"][6] == [0, 16, 0, 0]  # only the root's rows count
    assert first["sent"][6] == [0, 0, 0, 0]
    # three rounds of at most two ids: three ids leave for rank 1 (8 bytes each), and one row of 16 goes there
    assert sent[7] == [3 * 8 + 16, 0, 8 + 3 * 8, 4]


def test_an_unknown_policy_is_named() -> None:
    program = tiny_program(
        1,
        {"steady": [Op("pick", OpKind.SELECT, "compute", reads("rows"), reads("mask"), module="adaptive-vertex")]},
        [Buffer("rows", 1, 1), Buffer("mask", 1, 1)],
    )
    with pytest.raises(BackendError, match=r"'pick'.*'adaptive-vertex'.*it has: none"):
        Interpreter(program, world_context(program, 0), Notes())


def test_rows_that_a_codec_refuses_are_told_with_their_op() -> None:
    op = Op(
        "forward/1/encode", OpKind.ENCODE, "compute", reads("rows"), reads("coded"), module="codec", action="EncodeRows"
    )
    buffers = [Buffer("rows", 2, 3, persistent=True), Buffer("coded", 2, 11, "uint8")]
    program = tiny_program(1, {"steady": [op]}, buffers)
    rows = torch.tensor([[1.0, 2.0, 3.0], [1.0, float("nan"), 3.0]])
    context = world_context(program, 0, {"rows": rows}, policies={"codec": accelerated(Linear())})
    told = r"^rank 0, epoch 4, op 'forward/1/encode': rank 0, layer 0: a row \(values\) has no code: row 1 of 2 to"
    with pytest.raises(BackendError, match=told):
        Interpreter(program, context, Notes()).train(range(3, 4))


def test_a_copy_is_apart_from_what_it_is_of() -> None:
    steady = [
        Op("copy", OpKind.COPY, "compute", reads("b"), reads("copied")),
        Op("add", OpKind.ADD, "compute", reads("a", "copied"), reads("copied")),
        Op("first", OpKind.ADD, "compute", reads("part", "copied"), reads("copied"), form=Form.FIRST_ROWS),
    ]
    buffers = [Buffer(name, 2, 2, persistent=True) for name in ("a", "b", "part", "copied")]
    values = {"a": [[1.0, -2.0], [0.0, 1.0]], "b": [[10.0, 20.0], [30.0, 40.0]], "part": [[100.0, 100.0]]}
    program = tiny_program(1, {"steady": steady}, buffers)
    context = world_context(program, 0, {name: torch.tensor(rows) for name, rows in values.items()})
    Interpreter(program, context, Notes()).train(range(1))
    found = {buffer.name: context.store.values[context.store.slot(buffer.name)].tolist() for buffer in buffers}
    assert found == {**values, "copied": [[111.0, 118.0], [30.0, 41.0]]}
