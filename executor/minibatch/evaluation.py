"""What a rank of a mini-batch run evaluates: its own vertices, each layer on all of their in-edges."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from executor.state.buffers import Value
from executor.state.context import LocalRoute
from executor.state.plan import RunPlan
from executor.state.routes import local_routes, packed_routes
from executor.store.places import Places
from simgnn.emit.batches.names import OWN_BLOCK
from simgnn.emit.batches.on_rank import Functions, TakeOwnRows, carried_out
from simgnn.graph.csr import CSR
from simgnn.policy import PolicyContext
from simgnn.program.program import EVALUATE


@dataclass(frozen=True)
class OwnRows:
    """Carries out what evaluations do with own vertices. ``rows`` int64 [n]: those of the rank's own vertices in the
    memory of its host, in the order of their edges; ``device``: where layers run."""

    rows: torch.Tensor
    device: torch.device

    def functions(self) -> Functions:
        """What carries out the actions of evaluations."""
        return carried_out(TakeOwnRows, self.own)

    def own(self, context: PolicyContext, features: torch.Tensor) -> tuple[torch.Tensor]:
        """Input rows [n, F] of own vertices."""
        return (features.index_select(0, self.rows).to(self.device),)


@dataclass(frozen=True)
class Evaluation:
    """What a rank's context has for evaluations: ``constants`` by buffer, ``functions`` by action; ``routes`` are all
    of the program."""

    routes: Mapping[str, LocalRoute]
    constants: Mapping[str, Value] = field(default_factory=dict)
    functions: Functions = field(default_factory=dict)


def load_evaluation(plan: RunPlan, places: Places, device: torch.device) -> Evaluation:
    """From the rank's graph, where the program evaluates. Raises :class:`~simgnn.errors.BackendError` for another
    partition than the program's."""
    program, rank = plan.program, places.rank
    if EVALUATE not in program.templates:
        return Evaluation(packed_routes(program, rank))
    local = plan.local(rank)
    rows = np.searchsorted(places.maps.core(places.host), local.vertices)
    return Evaluation(
        routes=local_routes(program, local, device),
        constants={OWN_BLOCK: _block(local.csr, device)},
        functions=OwnRows(torch.from_numpy(rows), device).functions(),
    )


def _block(csr: CSR, device: torch.device) -> Value:
    """Edges as layers take a sampled block: (indptr int64 [n + 1], sources [edges])."""
    pointers, sources = np.array(csr.indptr, dtype=np.int64), np.array(csr.indices)
    return torch.from_numpy(pointers).to(device), torch.from_numpy(sources).to(device)
