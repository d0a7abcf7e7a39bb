"""Programs in chunks are run by ranks over Gloo: rows as NumPy computes them on the whole graph, and every op sends
what the simulator counts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor.rank.interpreter import Interpreter
from programs import chunked_epoch, hongtu_batch
from programs.chunked_graph import ChunkedGraph
from programs.test_simulated import machine_for
from simgnn.program.program import Program
from simgnn.program.validate import validate
from simgnn.sim.simulate import simulate
from tests.executor.harness import Notes, acting, run_ranks, world_context
from tests.executor.schedules import SeededRandom

RATE = 0.01


def lists_of(graph: ChunkedGraph, rank: int, names: Any) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(graph.named(rank, name).rows) for name in names}


def edges_of(graph: ChunkedGraph, rank: int, batch: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights of a chunk's edges [n, N], and the slots of their sources in the merged buffer."""
    needed = graph.needed(rank, batch)
    weights = torch.from_numpy(graph.weights[np.ix_(list(graph.chunk(rank, batch)), needed)]).to(dtype)
    return weights, torch.tensor(graph.placed(rank, batch, needed))


def run_program(
    program: Program, rank: int, constants: dict[str, torch.Tensor], policy: Any, epochs: int, seed: int | None
) -> tuple[dict[str, Any], list[list[int]]]:
    """What buffers hold after a run, and what each op sent: epoch, step, op id, bytes, collective bytes, messages."""
    context = world_context(program, rank, constants, policies={"layer": policy})
    notes = Notes()
    interpreter = Interpreter(program, context, notes, schedule=None if seed is None else SeededRandom(seed))
    interpreter.train(range(epochs))
    interpreter.close()
    sent = [
        [now.epoch, now.step, op_id, sent.bytes_sent, sent.collective_bytes, sent.messages]
        for now, op_id, _, _, sent in notes.rows
    ]
    return {name: context.store.values[context.store.slot(name)] for name in program.buffers}, sorted(sent)


def check_sent(program: Program, epochs: int, results: list[dict[str, Any]]) -> None:
    """The executor sent in each op of each step what the simulator says."""
    columns = simulate(program, machine_for(program), epochs=epochs).columns
    names = ("epoch", "step", "op_id", "bytes_sent", "collective_bytes", "messages")
    for rank, found in enumerate(results):
        mine = columns["rank"] == rank
        expected = np.stack([columns[name][mine].astype(np.int64) for name in names], axis=1)
        assert found["sent"] == sorted(expected.tolist())


def features_of(graph: ChunkedGraph, width: int) -> np.ndarray:
    return np.random.default_rng(1).integers(-8, 9, (graph.vertices, width)).astype(np.float64)


def run_batches(rank: int, ranks: int, seed: int | None) -> dict[str, Any]:
    """One layer forward, in chunks."""
    program, graph = validate(hongtu_batch.build(ranks)), hongtu_batch.graph_of(ranks)

    def aggregate(context: Any, merged: torch.Tensor) -> tuple[torch.Tensor]:
        weights, slots = edges_of(graph, rank, context.step, torch.float32)
        return (weights @ merged[slots],)

    policy = acting(aggregate=aggregate, transform=lambda _, rows: (2 * rows,))
    rows = torch.from_numpy(features_of(graph, hongtu_batch.WIDTH)[list(graph.own(rank))]).float()
    constants = {"store": rows, **lists_of(graph, rank, hongtu_batch.LISTS)}
    held, sent = run_program(program, rank, constants, policy, 2, seed)
    return {"kept": held["aggregate_store"], "out": held["out_store"], "sent": sent}


@pytest.mark.parametrize(("ranks", "seed"), [(2, None), (3, None), (3, 5)])
def test_batches_of_chunks_are_the_whole_layer(ranks: int, seed: int | None, tmp_path: Path) -> None:
    graph = hongtu_batch.graph_of(ranks)
    whole = graph.weights @ features_of(graph, hongtu_batch.WIDTH)  # eighths of small whole numbers: no rounding
    results = run_ranks(ranks, run_batches, tmp_path, seed)
    for rank, found in enumerate(results):
        own = list(graph.own(rank))
        np.testing.assert_array_equal(found["kept"].numpy(), whole[own])
        np.testing.assert_array_equal(found["out"].numpy(), 2 * whole[own])
    check_sent(hongtu_batch.build(ranks), 2, results)


def weights_of() -> list[np.ndarray]:
    random = np.random.default_rng(2)
    widths = chunked_epoch.WIDTHS
    return [random.standard_normal((widths[layer - 1], widths[layer])) / 4 for layer in (1, 2)]


def layers_of(graph: ChunkedGraph, rank: int, batches: list[int]) -> Any:
    """A policy with an action for each op that computes."""

    def aggregate(context: Any, merged: torch.Tensor) -> tuple[torch.Tensor]:
        weights, slots = edges_of(graph, rank, batches[context.step], torch.float64)
        return (weights @ merged[slots],)

    def spread(context: Any, up: torch.Tensor, merged: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch = batches[context.step]
        needed, own = graph.needed(rank, batch), set(graph.own(rank))
        weights, _ = edges_of(graph, rank, batch, torch.float64)
        rows = weights.T @ up
        mine = torch.tensor([vertex in own for vertex in needed])
        most = max(len(graph.remote(rank, other)) for other in range(graph.chunks))
        remote = rows.new_zeros((most, rows.shape[1]))
        remote[: int((~mine).sum())] = rows[~mine]
        merged[torch.tensor(graph.placed(rank, batch, graph.loaded(rank, batch)), dtype=torch.int64)] = 0
        return rows[mine], remote, merged

    def backward1(_: Any, up: torch.Tensor, kept: torch.Tensor, weight: torch.Tensor, total: torch.Tensor) -> Any:
        masked = up * (kept @ weight > 0)
        return masked @ weight.T, total + kept.T @ masked

    def step(_: Any, d1: torch.Tensor, d2: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> Any:
        return torch.zeros_like(d1), torch.zeros_like(d2), w1 - RATE * d1, w2 - RATE * d2

    own = len(graph.own(rank))
    return acting(
        aggregate1=aggregate,
        aggregate2=aggregate,
        transform1=lambda _, rows, weight: ((rows @ weight).relu(),),
        transform2=lambda _, rows, weight: (rows @ weight,),
        join=lambda _: (),
        loss=lambda _, rows, targets: (rows - targets,),
        clear2=lambda _: (torch.zeros(own, chunked_epoch.WIDTHS[1], dtype=torch.float64),),
        backward2=lambda _, up, kept, weight, total: (up @ weight.T, total + kept.T @ up),
        backward1=backward1,
        spread2=spread,
        step=step,
    )


def run_epochs(rank: int, ranks: int, chunks: int, epochs: int, seed: int | None) -> dict[str, Any]:
    """Whole epochs of two layers in chunks."""
    program, graph = validate(chunked_epoch.build(ranks, chunks, "float64")), chunked_epoch.graph_of(ranks, chunks)
    own, widths = list(graph.own(rank)), chunked_epoch.WIDTHS
    constants = {
        "h0": torch.from_numpy(features_of(graph, widths[0])[own]),
        "targets": torch.from_numpy(features_of(graph, widths[2])[own]),
        "gmerged2": torch.zeros(int(graph.merged_rows[rank]), widths[1], dtype=torch.float64),
        **{f"W{layer}": torch.from_numpy(weight) for layer, weight in enumerate(weights_of(), start=1)},
        **{f"dW{layer}": torch.zeros(weight.shape).double() for layer, weight in enumerate(weights_of(), start=1)},
        **lists_of(graph, rank, chunked_epoch.LISTS),
    }
    policy = layers_of(graph, rank, chunked_epoch.batches_of(2, chunks))
    held, sent = run_program(program, rank, constants, policy, epochs, seed)
    return {**{name: held[name] for name in ("W1", "W2", "g1", "kept2")}, "sent": sent}


def train_whole(graph: ChunkedGraph, epochs: int) -> dict[str, np.ndarray]:
    """The same on the whole graph at once."""
    h0, targets = (features_of(graph, chunked_epoch.WIDTHS[place]) for place in (0, 2))
    (w1, w2), found = weights_of(), {}
    for _ in range(epochs):
        a1 = graph.weights @ h0
        z1 = a1 @ w1
        a2 = graph.weights @ np.maximum(z1, 0)
        g2 = a2 @ w2 - targets
        g1 = graph.weights.T @ (g2 @ w2.T)
        found = {"g1": g1, "kept2": a2}
        w1, w2 = w1 - RATE * a1.T @ (g1 * (z1 > 0)), w2 - RATE * a2.T @ g2
    return {**found, "W1": w1, "W2": w2}


@pytest.mark.parametrize(("ranks", "chunks", "seed"), [(2, 3, None), (2, 3, 3), (3, 4, None)])
def test_epochs_of_unlike_steps_train_the_whole_graph(
    ranks: int, chunks: int, seed: int | None, tmp_path: Path
) -> None:
    graph, epochs = chunked_epoch.graph_of(ranks, chunks), 3
    whole = train_whole(graph, epochs)
    results = run_ranks(ranks, run_epochs, tmp_path, chunks, epochs, seed)
    for rank, found in enumerate(results):
        own = list(graph.own(rank))
        for name in ("W1", "W2"):
            np.testing.assert_allclose(found[name].numpy(), whole[name], rtol=1e-12, atol=1e-12)
        for name in ("g1", "kept2"):
            np.testing.assert_allclose(found[name].numpy(), whole[name][own], rtol=1e-12, atol=1e-10)
    check_sent(chunked_epoch.build(ranks, chunks, "float64"), epochs, results)
