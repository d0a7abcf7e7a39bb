"""A single-process reference for rows of unequal bits: plain PyTorch on dense matrices, which holds for each rank the
rows that it would decode. It shares random numbers, the solver and the dense sums of the reference for late rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from executor.kernels.dropout import factors
from executor.state.plan import RunPlan
from simgnn.emit.arrays import draws, signed, units
from simgnn.emit.bit_widths.solver import Groups, Links, choose_bits
from simgnn.graph.graph import Graph
from simgnn.graph.hashing import stream_key
from simgnn.model.spec import LayerSpec
from simgnn.sampling.draw.seeds import dropout_seed, layer_key
from tests.late_reference import _Edges, _output, _prepare

Pair = tuple[int, int]
BITS = (2, 4, 8)


@dataclass(frozen=True)
class Assigning:
    """How bits are assigned. A message takes ``byte_s`` [P, P] seconds a byte from rank to rank, and ``message_s``."""

    period: int
    group_size: int
    lam: float
    byte_s: NDArray[np.float64]
    message_s: float = 0.0


@dataclass
class Wire:
    """What travels. ``vertices``: of each pair (owner, receiver), the owner's rows in wire order; ``names``: what tells
    them apart in a direction; ``weights``: of each receiver, [V], of a layer's sums. ``bits``: by layer, direction and
    pair (sender, receiver), once assigned; ``bytes_sent``: by epoch, layer, direction and pair."""

    vertices: dict[Pair, NDArray[np.int64]]
    names: dict[str, dict[Pair, NDArray[np.int64]]]
    weights: Sequence[NDArray[np.float64]]
    seed: int
    assigning: Assigning
    epoch: int = 0
    bits: dict[tuple[int, str], dict[Pair, NDArray[np.int64]]] = field(default_factory=dict)
    bytes_sent: dict[tuple[int, int, str], dict[Pair, int]] = field(default_factory=dict)

    def carried(self, layer: int, phase: str, sent: Mapping[Pair, torch.Tensor]) -> dict[Pair, torch.Tensor]:
        """What arrives of rows by (sender, receiver); assigns the bits of later epochs at the end of a period."""
        found, beta, sizes = {}, {}, {}
        for pair, rows in sent.items():
            given = self.bits.get((layer, phase), {}).get(pair, np.full(len(rows), 8))
            found[pair] = self._coded(layer, phase, pair, rows, given)
            sizes[pair] = int(sum(16 + -(-rows.shape[1] * int(bits) // 8) for bits in given))
            spread = (rows.amax(1) - rows.amin(1)).numpy()
            weight = self.weights[pair[1]][self.vertices[pair]] if phase == "forward" else 1.0
            beta[pair] = rows.shape[1] / 6 * spread**2 * weight
        self.bytes_sent[self.epoch, layer, phase] = sizes
        if (self.epoch + 1) % self.assigning.period == 0:
            self._assign(layer, phase, beta, next(iter(sent.values())).shape[1])
        return found

    def _coded(self, layer: int, phase: str, pair: Pair, rows: torch.Tensor, given: NDArray[np.int64]) -> torch.Tensor:
        key = signed(int(stream_key(self.seed, f"codec/{self.epoch}/0/{layer}/{phase}/{pair[0]}")))
        drawn = units(draws(key, torch.from_numpy(self.names[phase][pair])), rows.shape[1])
        most = torch.from_numpy(2.0**given - 1)[:, None]
        low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
        step = (high - low) / most
        codes = torch.floor((rows - low) / torch.where(step > 0, step, 1) + drawn).clamp(min=0).minimum(most)
        return low + step * torch.where(rows == high, most, codes)

    def _assign(self, layer: int, phase: str, beta: Mapping[Pair, NDArray[np.float64]], width: int) -> None:
        size, ranks = self.assigning.group_size, len(self.weights)
        orders = {pair: np.argsort(values, kind="stable") for pair, values in sorted(beta.items())}
        parts = [(pair, order[at : at + size]) for pair, order in orders.items() for at in range(0, len(order), size)]
        groups = Groups(
            np.array([beta[pair][rows].sum() for pair, rows in parts]), np.array([len(rows) for _, rows in parts]),
            np.array([pair[0] * ranks + pair[1] for pair, _ in parts]),
            Links(self.assigning.byte_s.ravel(), np.full(ranks**2, self.assigning.message_s)), BITS,
            [16 + -(-width * bits // 8) for bits in BITS],
        )  # fmt: skip
        found = {pair: np.zeros(len(values), dtype=np.int64) for pair, values in beta.items()}
        for (pair, rows), bits in zip(parts, choose_bits(groups, self.assigning.lam), strict=True):
            found[pair][rows] = bits
        self.bits[layer, phase] = found


class _Exchange(torch.autograd.Function):
    """Rows of all vertices -> for each rank those of its halo as it decodes them; gradients go back the same way."""

    @staticmethod
    def forward(ctx: Any, wire: Wire, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.wire, ctx.layer = wire, layer
        found = [torch.zeros_like(rows) for _ in wire.weights]
        sent = {pair: rows[vertices] for pair, vertices in wire.vertices.items()}
        for (owner, receiver), part in wire.carried(layer, "forward", sent).items():
            found[receiver][wire.vertices[owner, receiver]] = part
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        wire: Wire = ctx.wire
        total = torch.zeros_like(gradients[0])
        sent = {(there, owner): gradients[there][rows] for (owner, there), rows in wire.vertices.items()}
        for (there, owner), part in sorted(wire.carried(ctx.layer, "backward", sent).items()):
            total[wire.vertices[owner, there]] += part
        return None, None, total


def wire_of(plan: RunPlan, graph: Graph, kind: str, assigning: Assigning) -> Wire:
    """What travels between the ranks of a prepared run."""
    owner = np.empty(graph.vertices, dtype=np.int64)
    for rank in range(plan.ranks):
        owner[plan.local(rank).vertices] = rank
    vertices, forward, backward = {}, {}, {}
    for rank in range(plan.ranks):
        local: Any = plan.local(rank)
        for peer, rows in local.send_rows.items():
            if len(rows):
                vertices[rank, peer] = local.vertices[rows]
                forward[rank, peer] = np.asarray(rows, dtype=np.int64)
        for peer, part in local.receive.items():
            if part.stop > part.start:
                backward[rank, peer] = np.arange(part.start, part.stop)
    target, source = np.repeat(np.arange(graph.vertices), graph.csr.degrees()), graph.csr.indices
    degree = graph.csr.degrees().astype(np.float64)
    squares = {
        "gcn": 1 / ((degree[target] + 1) * (degree[source] + 1)), "sage": 1 / degree[target] ** 2,
        "gin": np.ones(len(target)), "gat": 1 / (degree[target] + 1) ** 2,
    }[kind]  # fmt: skip
    weights = [
        np.bincount(source[owner[target] == rank], squares[owner[target] == rank], minlength=graph.vertices)
        for rank in range(plan.ranks)
    ]
    return Wire(vertices, {"forward": forward, "backward": backward}, weights, plan.seed, assigning)


@dataclass(frozen=True)
class CodedReference:
    """``losses`` of each epoch, ``gradients`` of the parameters in each, flat; ``parameters`` after the last, flat."""

    losses: list[float]
    gradients: list[torch.Tensor]
    parameters: torch.Tensor
    wire: Wire


def train_coded_reference(
    plan: RunPlan, graph: Graph, initial: Sequence[Mapping[str, torch.Tensor]], owner: NDArray[np.integer],
    assigning: Assigning,
) -> CodedReference:  # fmt: skip
    """Train from ``initial`` parameters (one mapping a layer) in float64. ``owner`` [V]: the rank of each vertex."""
    layers: Sequence[LayerSpec] = plan.layers
    edges, wire = _Edges(graph, owner), wire_of(plan, graph, layers[0].kind, assigning)
    values = [{name: value.detach().double().requires_grad_() for name, value in one.items()} for one in initial]
    every = [value for one in values for value in one.values()]
    optimizer = torch.optim.SGD(every, lr=plan.train["learning_rate"], foreach=False)
    vertices = torch.arange(graph.vertices)
    features = torch.from_numpy(np.asarray(graph.features)).double()
    chosen, labels = (torch.from_numpy(np.array(part)) for part in (graph.train_mask, graph.labels))
    losses, gradients = [], []
    for epoch in range(plan.epochs):
        optimizer.zero_grad()
        wire.epoch, rows = epoch, features
        for layer, parameters in zip(layers, values, strict=True):
            here = _prepare(layer, parameters, rows) if layer.has_prepare else rows
            exact = layer.index == 1
            halos = [here] * plan.ranks if exact else _Exchange.apply(wire, layer.index, here)
            output = 0
            for rank, there in enumerate(halos):
                on_rank = torch.from_numpy(owner == rank)[:, None]
                output = output + on_rank * _output(edges, layer, parameters, rows, here, there)
            if layer.dropped:
                key = layer_key(dropout_seed(plan.seed, epoch), layer.index)
                output = output * factors(vertices, output.shape[1], key, layer.dropped, torch.float64)
            rows = output
        loss = functional.cross_entropy(rows[chosen], labels[chosen])
        losses.append(float(loss.detach()))
        loss.backward()
        gradients.append(torch.cat([value.grad.reshape(-1) for value in every]))
        optimizer.step()
    return CodedReference(losses, gradients, torch.cat([value.detach().reshape(-1) for value in every]), wire)
