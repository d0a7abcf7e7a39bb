"""Runs to compare: graphs, settings, the reference (made once a model and dtype), errors tensor by tensor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse

from executor.layers import build_layers
from executor.state.plan import RunPlan
from simgnn.graph.csr import CSR
from simgnn.graph.graph import Graph
from simgnn.graph.load import load_graph, with_centred_features
from tests.executor.runs import small_graph
from tests.reference import train_reference

EPOCHS = 10
GENERATED = {"vertices": 1500, "edges": 9000, "classes": 6, "feature_width": 24}
REAL = ("cora", "amazon_computers")
TRAININGS: Mapping[str, tuple[str, ...]] = {
    "float64-adam": ("train.dtype=float64", "train.optimizer=adam"),
    "float32-adam": ("train.dtype=float32", "train.optimizer=adam"),
    "float32-sgd": ("train.dtype=float32", "train.optimizer=sgd"),
}
CUTS: Mapping[str, tuple[str, ...]] = {"ebv": ("communication.kind=master-mirror",)}
"""Partition -> the communication that it needs, where that is not the default."""


@dataclass(frozen=True)
class Case:
    """One run. ``extra`` settings come last, so they overrule the others."""

    graph: str
    model: str
    partition: str
    ranks: int
    training: str = "float64-adam"
    extra: tuple[str, ...] = ()
    hosts: int = 1
    system: str = "vanilla"

    @property
    def name(self) -> str:
        """A name for folders and reports."""
        place = f"{self.ranks}ranks" if self.hosts == 1 else f"{self.ranks}ranks-{self.hosts}hosts"
        system = () if self.system == "vanilla" else (self.system,)
        parts = (*system, self.graph, self.model, self.partition, place, self.training, *self.extra)
        whole = "-".join(parts).replace("=", "_")
        # file systems end names at 255 bytes
        return whole if len(whole) <= 160 else f"{whole[:140]}-{sha256(whole.encode()).hexdigest()[:16]}"

    def settings(self) -> tuple[str, ...]:
        """What the experiment is told."""
        attends = self.model == "gat" or "model.kind=gat" in self.extra  # no sum to keep: it would be refused
        extra = [one for one in self.extra if not (attends and one == "model.hoist=never")]
        return (
            f"model.kind={self.model}", "model.hidden=16", f"partition.kind={self.partition}", f"train.epochs={EPOCHS}",
            f"train.learning_rate={self._learning_rate()}", "train.eval_every=0",
            "hardware.threads_per_rank=1", *TRAININGS[self.training], *CUTS.get(self.partition, ()), *extra,
        )  # fmt: skip

    def _learning_rate(self) -> float:
        if self.training.endswith("adam"):
            return RATES.get((self.graph, self.model, "adam"), 0.01)
        return RATES.get((self.graph, self.model, "sgd"), 0.5 if self.model != "gin" else 0.005)


RATES: Mapping[tuple[str, str, str], float] = {
    ("amazon_computers", "gin", "adam"): 1e-4,
    ("amazon_computers", "gin", "sgd"): 3e-7,
}
"""(graph, model, optimizer) -> step size where the usual one makes the loss jump about.

Sums over up to 2,992 neighbours make steep losses. With Adam at 1e-3 DGL's own float32 leaves its float64 by 3e-3 in 20
epochs, with SGD at 3e-6 by 0.95, and so does one unit in the last place of the initial parameters; with Adam at
1e-4 and SGD at 1e-6 it is below 1e-5.
"""


def make_graph(name: str, data: Path | None) -> Graph:
    """Generated ones by the names below, others are read from ``data``."""
    if name.startswith("communities"):
        options = {**GENERATED, "multilabel": True} if name.endswith("multilabel") else GENERATED
        return load_graph("synthetic:communities", options=options, seed=3)
    if name == "thousand":
        return small_graph(1000, width=32)
    if name.startswith("small-centred"):
        return _centred(small_graph(sparse_features=True), name.endswith("dense"))
    if name.startswith("small"):
        return small_graph(sparse_features=name.endswith("sparse"))
    if name in ("path", "islands"):
        whole = small_graph(80)
        # islands: no edge between the quarters that a block-row partition makes
        lone = np.arange(1, 80) % 20 == 0 if name == "islands" else np.zeros(79, dtype=np.bool_)
        links = np.flatnonzero(~lone)
        edges = (np.ones(2 * len(links)), (np.append(links, links + 1), np.append(links + 1, links)))
        chain = sparse.csr_array(edges, shape=(80, 80))
        return replace(whole, name=name, csr=CSR(chain.indptr.astype(np.int64), chain.indices.astype(np.int32), 80))
    assert data is not None
    return load_graph(str(data / f"{name}.npz"))


def _centred(graph: Graph, dense: bool) -> Graph:
    """Features that share a large part, less it: kept sparse, or as ``dense`` float64 rows."""
    counts: Any = graph.features
    counts.data = np.abs(counts.data) + 1
    centred = with_centred_features(graph, "small")
    if not dense:
        return centred
    rows = counts.toarray().astype(np.float64)
    return replace(graph, features=rows - rows.mean(axis=0))


@dataclass(frozen=True)
class Expected:
    """The reference's tensors by "layer.name"; ``first`` and ``last`` are gradients of those epochs."""

    losses: list[float]
    initial: dict[str, torch.Tensor]
    first: dict[str, torch.Tensor]
    last: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]


@dataclass
class References:
    """Whole-graph training with DGL's layers. It knows no ranks, partition or order of a layer, so cases share it."""

    made: dict[tuple[Any, ...], Expected] = field(default_factory=dict)

    def of(self, graph_name: str, graph: Graph, plan: RunPlan) -> Expected:
        """The reference of a prepared run."""
        shapes = tuple(
            (layer.kind, layer.width_in, layer.width_out, layer.hidden, layer.heads, layer.follows, layer.dropped)
            for layer in plan.layers
        )
        key = (graph_name, shapes, plan.seed, tuple(sorted(plan.train.items())))
        if key not in self.made:
            self.made[key] = _train(graph, plan)
        return self.made[key]

    def rounding(self, graph_name: str, graph: Graph, plan: RunPlan) -> float:
        """How far the reference's own losses move when it is computed in float64: what no two float32 runs need agree
        better than."""
        exact = self.of(graph_name, graph, replace(plan, train={**plan.train, "dtype": "float64"})).losses
        rounded = self.of(graph_name, graph, plan).losses
        return max(abs(one - other) / abs(other) for one, other in zip(rounded, exact, strict=True))


def _train(graph: Graph, plan: RunPlan) -> Expected:
    dtype = getattr(torch, plan.train["dtype"])
    layers = build_layers(plan.layers, plan.seed, dtype)
    initial = [{name: value.detach().clone() for name, value in layer.named_parameters()} for layer in layers]
    first = train_reference(graph, plan.layers, initial, 1, plan.train, plan.seed, dtype)
    whole = train_reference(graph, plan.layers, initial, plan.epochs, plan.train, plan.seed, dtype)
    return Expected(
        whole.losses, _named(initial), _named(first.gradients), _named(whole.gradients), _named(whole.parameters)
    )


def _named(layers: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {f"{index}.{name}": value for index, layer in enumerate(layers, 1) for name, value in layer.items()}


def errors(got: Mapping[str, Any], expected: Expected) -> dict[str, float]:
    """Largest relative error of each quantity: of losses over epochs, of tensors in the Euclidean norm of each."""
    assert len(got["losses"]) == len(expected.losses)
    pairs = zip(got["losses"], expected.losses, strict=True)
    return {
        "losses": max(abs(ours - theirs) / abs(theirs) for ours, theirs in pairs),
        "initial": _largest(got["initial"], expected.initial),
        "first gradients": _largest(got["gradients"][0], expected.first),
        "last gradients": _largest(got["gradients"][-1], expected.last),
        "parameters": _largest(got["parameters"], expected.parameters),
    }


def _largest(flat: torch.Tensor, expected: Mapping[str, torch.Tensor]) -> float:
    """Of a tensor that is nothing but rounding, how far it is off beside all of them: an attention's gradient by its
    targets is zero where all scores of a row have one sign, since softmax does not see what they share."""
    parts = torch.split(flat, [value.numel() for value in expected.values()])
    whole = float(torch.stack([value.norm() for value in expected.values()]).norm())
    rounding = torch.finfo(flat.dtype).eps * whole
    found = []
    for part, value in zip(parts, expected.values(), strict=True):
        off, size = float((part - value.reshape(-1)).norm()), float(value.norm())
        found.append(off / size if size > rounding else off / (whole or 1.0))
    return max(found)
