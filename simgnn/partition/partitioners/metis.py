"""METIS: edge-cuts with few cut edges."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from simgnn.graph.graph import Graph
from simgnn.policy import Assignment, Choices, Partitioner, Refusal
from simgnn.program.sizes import IntArray

Balanced = Literal["vertices", "edges", "train", "validation", "test"]


class Metis(Partitioner):
    """METIS, which minimises the edge cut: pymetis for one quantity in ``balance``, DGL's METIS for several.

    ``imbalance``: allowed ratio of the heaviest part to the mean, for one quantity; DGL sets its own. ``across``:
    "ranks" divides the graph among all ranks at once. "hosts" divides it among hosts first, so that few edges are cut
    between hosts (like DistDGL: Zheng et al., IA3 2020), and then each part among the ranks of its host.
    """

    kind: Literal["metis"] = "metis"
    balance: Annotated[tuple[Balanced, ...], Field(min_length=1)] = Field(
        default=("vertices",), description="what each part gets equally much of"
    )
    imbalance: float = Field(
        default=1.03, gt=1.0, le=10.0, description="heaviest part over the mean, where one quantity is balanced"
    )
    across: Literal["ranks", "hosts"] = Field(default="ranks", description="what shares the graph: hosts before ranks")

    @field_validator("balance")
    @classmethod
    def _names_once(cls, value: tuple[Balanced, ...]) -> tuple[Balanced, ...]:
        if len(set(value)) != len(value):
            raise ValueError(f"names a quantity twice: {', '.join(value)}")
        return value

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        if len(self.balance) > 1 and "imbalance" in self.model_fields_set:
            yield Refusal(
                "partition", "imbalance",
                f"got {self.imbalance} with {len(self.balance)} quantities in partition.balance, expected it only with "
                "one, since DGL's METIS sets its own; remove it or balance one quantity",
            )  # fmt: skip

    def stated(self) -> dict[str, Any]:
        table = super().stated()
        if len(self.balance) > 1:
            del table["imbalance"]
        return table

    def divide(self, graph: Graph, hosts: IntArray, seed: int, spill: Path | None) -> Assignment:
        # these load Numba and SciPy, which checking an experiment does not need
        from simgnn.partition.algorithms.metis import graph_mask, nested_owner

        if self.across == "ranks" or len(set(hosts.tolist())) == 1:
            return Assignment(self._owner(graph, len(hosts), seed, self.balance))
        for name in self.balance:
            graph_mask(graph, name)  # raises for what the whole graph lacks; what a host's part lacks is left out

        def part_of(part: Graph, parts: int) -> NDArray[np.int32]:
            return self._owner(part, parts, seed, self._held_in(part))

        return Assignment(nested_owner(graph, hosts, part_of))

    def _held_in(self, graph: Graph) -> tuple[Balanced, ...]:
        """Return the names in ``balance`` that occur in ``graph``, the part of one host. If some are missing and at
        most one is left, add "vertices", which DGL's METIS always balances."""
        masks = {name: getattr(graph, f"{name}_mask", None) for name in self.balance}
        held = tuple(
            name for name, mask in masks.items() if name in ("vertices", "edges") or (mask is not None and mask.any())
        )
        if len(held) == len(self.balance) or len(held) > 1:
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
