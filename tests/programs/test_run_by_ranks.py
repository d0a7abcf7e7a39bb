"""Programs in chunks are run by ranks over Gloo: rows as NumPy computes them on the whole graph, and every op sends
what the simulator counts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor.rank.interpreter import Interpreter
from executor.recording.metrics import History, observers
from executor.state.buffers import BufferStore
from executor.state.task import SPLITS, Task
from executor.store.mapped import mapped_buffers
from programs import chunked_epoch, hongtu_batch
from programs.chunked_graph import ChunkedGraph
from programs.test_simulated import machine_for
from simgnn.program.program import Program
from simgnn.program.validate import validate
from simgnn.sim.simulate import simulate
from tests.executor.harness import Notes, acting, run_ranks, world_context
from tests.executor.schedules import SeededRandom

RATE = 0.5


def lists_of(graph: ChunkedGraph, rank: int, names: Any) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(graph.named(rank, name).rows) for name in names}


def edges_of(graph: ChunkedGraph, rank: int, batch: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights of a chunk's edges [n, N], and the slots of their sources in the merged buffer."""
    needed = graph.needed(rank, batch)
    weights = torch.from_numpy(graph.weights[np.ix_(list(graph.chunk(rank, batch)), needed)]).to(dtype)
    return weights, torch.tensor(graph.placed(rank, batch, needed))


def run_program(
    program: Program, rank: int, constants: dict[str, torch.Tensor], policy: Any, epochs: int, seed: int | None,
    task: Task | None = None,
) -> tuple[dict[str, Any], list[list[int]], History]:  # fmt: skip
    """What buffers hold after a run with an evaluation after every epoch, what each op sent (epoch, step, op id, bytes,
    collective bytes, control bytes, messages), and the metrics."""
    context = world_context(program, rank, constants, policies={"layer": policy}, task=task)
    memory = mapped_buffers(program, rank, constants.keys())
    context.store = BufferStore(program, rank, context.device, constants, memory)
    notes, history = Notes(), History()
    observed = observers(program, history.observe, history.observe_evaluation)
    picks = None if seed is None else SeededRandom(seed)
    interpreter = Interpreter(program, context, notes, observed.by_buffer, schedule=picks)
    for epoch in range(epochs):
        interpreter.train([epoch])
        assert interpreter.evaluate(epoch) is bool(program.sweep)
    interpreter.close()
    sent = [
        [now.epoch, now.step, op_id, sent.bytes_sent, sent.collective_bytes, sent.control_bytes, sent.messages]
        for now, op_id, _, _, sent in notes.rows
    ]
    held = {name: context.store.values[context.store.slot(name)] for name in program.buffers}
    for name, (rows, *_) in memory.items():
        assert held[name] is None or held[name].untyped_storage().data_ptr() == rows.untyped_storage().data_ptr(), (
            "still in its mapping"
        )
    return held, sorted(sent), history


def check_sent(program: Program, epochs: int, results: list[dict[str, Any]]) -> None:
    """The executor sent in each op of each step what the simulator says."""
    columns = simulate(program, machine_for(program), epochs=epochs, evaluate_every=1).columns
    names = ("epoch", "step", "op_id", "bytes_sent", "collective_bytes", "control_bytes", "messages")
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
    held, sent, _ = run_program(program, rank, constants, policy, 2, seed)
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

    def step(_: Any, d1: torch.Tensor, d2: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, __: torch.Tensor) -> Any:
        return torch.zeros_like(d1), torch.zeros_like(d2), w1 - RATE * d1, w2 - RATE * d2

    own = len(graph.own(rank))
    return acting(
        aggregate1=aggregate,
        aggregate2=aggregate,
        transform1=lambda _, rows, weight: ((rows @ weight).relu(),),
        transform2=lambda _, rows, weight: (rows @ weight,),
        join=lambda _: (),
        clear2=lambda _: (torch.zeros(own, chunked_epoch.WIDTHS[1], dtype=torch.float64),),
        backward2=lambda _, up, kept, weight, total: (up @ weight.T, total + kept.T @ up),
        backward1=backward1,
        spread2=spread,
        step=step,
    )


def targets_of(graph: ChunkedGraph, multilabel: bool) -> tuple[np.ndarray, np.ndarray]:
    """Labels [V], or [V, classes] of 0 and 1 where vertices have several; and the split of each vertex, 3: none."""
    random, classes = np.random.default_rng(3), chunked_epoch.WIDTHS[2]
    shape = (graph.vertices, classes) if multilabel else (graph.vertices,)
    return random.integers(0, 2 if multilabel else classes, shape), random.integers(0, 4, graph.vertices)


def task_of(graph: ChunkedGraph, rank: int, multilabel: bool) -> Task:
    labels, split = targets_of(graph, multilabel)
    own = list(graph.own(rank))
    train, validation, test = (torch.from_numpy(np.flatnonzero(split[own] == place)) for place in range(len(SPLITS)))
    return Task(
        features=torch.zeros(0),
        labels=torch.from_numpy(labels[own]).to(torch.float64 if multilabel else torch.int64),
        rows=(train, validation, test),
        train_total=int((split == 0).sum()),
        classes=chunked_epoch.WIDTHS[2],
        multilabel=multilabel,
    )


def run_epochs(rank: int, ranks: int, chunks: int, epochs: int, seed: int | None, multilabel: bool) -> dict[str, Any]:
    """Whole epochs of two layers in chunks, each with an evaluation."""
    program, graph = chunked_epoch.build(ranks, chunks, "float64"), chunked_epoch.graph_of(ranks, chunks)
    program = validate(chunked_epoch.mapped(program) if multilabel else program)
    own, widths, task = list(graph.own(rank)), chunked_epoch.WIDTHS, task_of(graph, rank, multilabel)
    constants = {
        "h0": torch.from_numpy(features_of(graph, widths[0])[own]),
        "labels": task.labels,
        "gmerged2": torch.zeros(int(graph.merged_rows[rank]), widths[1], dtype=torch.float64),
        **{f"W{layer}": torch.from_numpy(weight) for layer, weight in enumerate(weights_of(), start=1)},
        **{f"dW{layer}": torch.zeros(weight.shape).double() for layer, weight in enumerate(weights_of(), start=1)},
        **lists_of(graph, rank, chunked_epoch.LISTS),
    }
    policy = layers_of(graph, rank, chunked_epoch.batches_of(2, chunks))
    held, sent, history = run_program(program, rank, constants, policy, epochs, seed, task)
    kept = {name: held[name] for name in ("W1", "W2", "g1", "kept2")}
    scores = [[each.train, each.validation, each.test] for each in history.accuracy()]
    assert [each.epoch for each in history.accuracy()] == list(range(1, epochs + 1))
    return {**kept, "sent": sent, "losses": list(history.losses.values()), "scores": scores}


def losses_of(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The loss of each row, summed over its classes where it has several labels."""
    if labels.ndim > 1:
        return (np.logaddexp(0, scores) - labels * scores).sum(axis=1)
    return np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels]


def score_of(scores: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy, or micro-averaged F1."""
    if labels.ndim == 1:
        return float(np.mean(scores.argmax(axis=1) == labels))
    chosen, true = scores > 0, labels > 0
    return float(2 * (chosen & true).sum() / (chosen.sum() + true.sum()))


def train_whole(graph: ChunkedGraph, epochs: int, multilabel: bool) -> dict[str, Any]:
    """The same on the whole graph at once."""
    h0, classes = features_of(graph, chunked_epoch.WIDTHS[0]), chunked_epoch.WIDTHS[2]
    labels, split = targets_of(graph, multilabel)
    train, true = (split == 0)[:, None], labels if multilabel else np.eye(classes)[labels]
    divisor = train.sum() * (classes if multilabel else 1)
    (w1, w2), found = weights_of(), {}
    losses, scores = list[float](), list[list[float]]()
    for _ in range(epochs):
        a1 = graph.weights @ h0
        z1 = a1 @ w1
        a2 = graph.weights @ np.maximum(z1, 0)
        out = a2 @ w2
        chances = 1 / (1 + np.exp(-out)) if multilabel else np.exp(out) / np.exp(out).sum(axis=1, keepdims=True)
        g2 = np.where(train, chances - true, 0) / divisor
        g1 = graph.weights.T @ (g2 @ w2.T)
        found = {"g1": g1, "kept2": a2}
        losses.append(float(losses_of(out, labels)[split == 0].sum() / divisor))
        w1, w2 = w1 - RATE * a1.T @ (g1 * (z1 > 0)), w2 - RATE * a2.T @ g2
        after = graph.weights @ np.maximum(a1 @ w1, 0) @ w2
        scores.append([score_of(after[split == place], labels[split == place]) for place in range(len(SPLITS))])
    return {**found, "W1": w1, "W2": w2, "losses": losses, "scores": scores}


@pytest.mark.parametrize(
    ("ranks", "chunks", "seed", "multilabel"),
    [(2, 3, None, False), (2, 3, 3, True), (3, 4, None, True), (1, 3, 5, False), (2, 1, None, True)],
)
def test_epochs_of_unlike_steps_train_the_whole_graph(
    ranks: int, chunks: int, seed: int | None, multilabel: bool, tmp_path: Path
) -> None:
    """Weights, losses of all epochs and scores of all evaluations."""
    graph, epochs = chunked_epoch.graph_of(ranks, chunks), 3
    whole = train_whole(graph, epochs, multilabel)
    results = run_ranks(ranks, run_epochs, tmp_path, chunks, epochs, seed, multilabel)
    for rank, found in enumerate(results):
        np.testing.assert_allclose(found["losses"], whole["losses"], rtol=1e-12)
        np.testing.assert_allclose(found["scores"], whole["scores"], rtol=1e-12)
        own = list(graph.own(rank))
        for name in ("W1", "W2"):
            np.testing.assert_allclose(found[name].numpy(), whole[name], rtol=1e-12, atol=1e-12)
        for name in ("g1", "kept2"):
            np.testing.assert_allclose(found[name].numpy(), whole[name][own], rtol=1e-12, atol=1e-10)
    check_sent(chunked_epoch.build(ranks, chunks, "float64"), epochs, results)
