"""METIS: edge-cuts with few cut edges."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from simgnn.errors import ConfigError
from simgnn.graph.graph import Graph
from simgnn.partition.host_parts import HostParts
from simgnn.policy import Assignment, Choices, Refusal
from simgnn.program.sizes import IntArray
from simgnn.spelling import nearest

Balanced = Literal["vertices", "edges", "train", "validation", "test"]
NAMES: tuple[str, ...] = get_args(Balanced)
LARGEST_WEIGHT = 1e9


class Metis(HostParts):
    """METIS, which minimises the edge cut: pymetis for one quantity in ``balance``, DGL's METIS for several.

    ``balance``: "auto" gives each part as much work: one weight a vertex, the sum of ``weights``. A list gives each
    part as much of every quantity. ``imbalance``: allowed ratio of the heaviest part to the mean, unless DGL sets its
    own. ``across``: "ranks" divides the graph among all ranks at once. "hosts" divides it among hosts first, so that
    few edges are cut between hosts (like DistDGL: Zheng et al., IA3 2020), and then each part among the ranks of its
    host; ``inter_machine = "gradients"`` always does so.
    """

    kind: Literal["metis"] = "metis"
    balance: Literal["auto"] | tuple[Balanced, ...] = Field(
        default="auto",
        description="what each part gets equally much of: 'auto' (work of an epoch), or a list of vertices, edges, "
        "train, validation, test",
    )
    weights: dict[Balanced, float] | None = Field(
        default=None,
        description="with balance = 'auto': work of a vertex, and of each in-edge or label; default: counted from the "
        "model's layers",
    )
    imbalance: float = Field(
        default=1.03, gt=1.0, le=10.0, description="heaviest part over the mean, unless several quantities are balanced"
    )
    across: Literal["ranks", "hosts"] = Field(default="ranks", description="what shares the graph: hosts before ranks")

    @field_validator("balance", mode="before")
    @classmethod
    def _known_once(cls, value: Any) -> Any:
        if value == "auto":
            return value
        names = list(value) if isinstance(value, list | tuple) else []
        unknown = [name for name in names if name not in NAMES]
        if not names or unknown:
            wrong = unknown[0] if unknown else value
            hint = nearest(wrong, ("auto", *NAMES)) if isinstance(wrong, str) else ""
            raise ValueError(f"expected 'auto' or a list of some of {', '.join(NAMES)}{hint}")
        if len(set(names)) != len(names):
            raise ValueError(f"names a quantity twice: {', '.join(names)}")
        return value

    @field_validator("weights", mode="before")
    @classmethod
    def _known_weights(cls, value: Any) -> Any:
        if value is None:
            return value
        table = value if isinstance(value, Mapping) else {}
        numbers = all(type(each) in (int, float) and 0 < each <= LARGEST_WEIGHT for each in table.values())
        if not table or not numbers or not set(table) <= set(NAMES):
            raise ValueError(
                f"expected numbers above 0, at most {LARGEST_WEIGHT:g}, for some of {', '.join(NAMES)}, such as "
                "{ vertices = 1.0, edges = 0.05 }"
            )
        return value

    @property
    def names(self) -> tuple[Balanced, ...]:
        """The quantities that are balanced each by itself; none with "auto"."""
        return () if self.balance == "auto" else self.balance

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        yield from super().refuses(choices)
        if len(self.names) > 1 and "imbalance" in self.model_fields_set:
            yield Refusal(
                "partition", "imbalance",
                f"got {self.imbalance} with {len(self.names)} quantities in partition.balance, expected it only with "
                "one, since DGL's METIS sets its own; remove it or balance one quantity",
            )  # fmt: skip
        if self.weights is not None and self.names:
            yield Refusal(
                "partition", "weights",
                f"got a table with partition.balance = {list(self.names)}, expected it only with 'auto'; remove it, "
                "or set partition.balance = 'auto'",
            )  # fmt: skip

    def weighed(self, weights: Callable[[], Mapping[str, float]]) -> Self:
        if self.names or self.weights is not None:
            return self
        return self.model_copy(update={"weights": dict(weights())})

    def alternatives(self) -> Iterator[tuple[str, Self]]:
        kept = {name: getattr(self, name) for name in self.model_fields_set - {"balance", "weights", "imbalance"}}
        yield _shown(self.balance), self
        others: tuple[Any, ...] = ("auto", ("vertices",), ("edges",))
        for balance in others:
            if balance != self.balance:
                yield _shown(balance), type(self).model_validate({**kept, "balance": balance})

    def stated(self) -> dict[str, Any]:
        table = super().stated()
        if len(self.names) > 1:
            del table["imbalance"]
        return table

    def divide(self, graph: Graph, hosts: IntArray, seed: int, spill: Path | None) -> Assignment:
        owner = self._divided(graph, hosts, seed)
        return Assignment(owner, dropped=self.between_hosts(graph, owner, hosts))

    def _divided(self, graph: Graph, hosts: IntArray, seed: int) -> NDArray[np.int32]:
        # these load Numba and SciPy, which checking an experiment does not need
        from simgnn.partition.algorithms.metis import graph_mask, metis_owner, nested_owner, whole_numbers
        from simgnn.partition.balance import vertex_work

        whole = (self.across == "ranks" and not self.drops_between_hosts) or len(set(hosts.tolist())) == 1
        if not self.names:
            if self.weights is None:
                raise ConfigError(
                    "partition.weights: missing: balance = 'auto' divides by the work of an experiment's layers; state "
                    "the weights, such as { vertices = 1.0, edges = 0.05 }, or balance = ['vertices']"
                )
            work = whole_numbers(vertex_work(graph, {str(name): weight for name, weight in self.weights.items()}))
            if whole:
                return metis_owner(graph, len(hosts), seed, work, self.imbalance)

            def by_work(part: Graph, parts: int, vertices: IntArray | slice) -> NDArray[np.int32]:
                # of the whole graph: in a host's part a vertex lacks in-edges that its rank holds
                return metis_owner(part, parts, seed, work[vertices], self.imbalance)

            return nested_owner(graph, hosts, by_work)
        if whole:
            return self._owner(graph, len(hosts), seed, self.names)
        for name in self.names:
            graph_mask(graph, name)  # raises for what the whole graph lacks; what a host's part lacks is left out

        def by_names(part: Graph, parts: int, vertices: IntArray | slice) -> NDArray[np.int32]:
            return self._owner(part, parts, seed, self._held_in(part))

        return nested_owner(graph, hosts, by_names)

    def _held_in(self, graph: Graph) -> tuple[Balanced, ...]:
        """Return the names in ``balance`` that occur in ``graph``, the part of one host. If some are missing and at
        most one is left, add "vertices", which DGL's METIS always balances."""
        masks = {name: getattr(graph, f"{name}_mask", None) for name in self.names}
        held = tuple(
            name for name, mask in masks.items() if name in ("vertices", "edges") or (mask is not None and mask.any())
        )
        if len(held) == len(self.names) or len(held) > 1:
            return held
        return tuple(dict.fromkeys(("vertices", *held)))

    def _owner(self, graph: Graph, parts: int, seed: int, balance: tuple[Balanced, ...]) -> NDArray[np.int32]:
        # these load Numba and SciPy, which checking an experiment does not need
        from simgnn.partition.algorithms.metis import dgl_metis_owner, graph_mask, metis_owner

        if len(balance) > 1 and parts > 1:
            return dgl_metis_owner(graph, parts, balance)
        mask = graph_mask(graph, balance[0])
        weights = mask.astype(np.int64) if mask is not None else None
        if balance[0] == "edges":
            weights = graph.csr.degrees()
        return metis_owner(graph, parts, seed, weights, self.imbalance)


def _shown(balance: Any) -> str:
    return "auto" if balance == "auto" else f"[{', '.join(balance)}]"
