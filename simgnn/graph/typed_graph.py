"""Graphs with several types of vertices and relations: one relation is picked, or all types are merged into one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from simgnn.errors import GraphError
from simgnn.graph.build import assemble_edges
from simgnn.graph.complete import Found, complete_graph
from simgnn.graph.graph import MASKS, Graph
from simgnn.graph.splits import STANDARD_SHARES, shared_masks
from simgnn.memory import check_memory
from simgnn.spelling import nearest

RelationName = tuple[str, str, str]
"""Type of the sources, name of the relation, type of the targets."""


@dataclass(frozen=True)
class TypeChoice:
    """``graph.relation``, as SOURCE,NAME,TARGET or NAME alone, and ``graph.homogeneous``."""

    relation: str | None = None
    homogeneous: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "TypeChoice":
        """Return the choice in options of ``[graph]``; a missing key stands for its default."""
        return cls(options.get("relation"), bool(options.get("homogeneous", False)))

    def check_one_type(self, where: str) -> None:
        """Raise :class:`GraphError` for a choice of types where ``where`` has only one."""
        for key, value in (("relation", self.relation), ("homogeneous", self.homogeneous)):
            if value:
                raise GraphError(f"graph.{key} does not apply to {where}, which has one type of vertices: remove it")


ONE_TYPE = TypeChoice()


@dataclass(frozen=True)
class Relation:
    """Edges of one relation: numbers of vertices within their types, and weights or None."""

    source: NDArray[Any]
    target: NDArray[Any]
    weights: NDArray[Any] | None = None


@dataclass(frozen=True)
class TypedGraph:
    """A graph with several types of vertices. ``counts``: vertices by type. ``fields``: by type, those fields of
    :class:`Found` that hold features, labels and masks. ``where`` begins error messages."""

    name: str
    where: str
    counts: Mapping[str, int]
    relations: Mapping[RelationName, Relation]
    fields: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...] = ()

    def chosen(self, choice: TypeChoice, symmetrise: bool) -> Graph:
        """Return the graph of the chosen relation, or of all types. A relation between two types has the vertices of
        both. Raises :class:`GraphError` without a choice, in one sentence that says what can be done."""
        if choice.relation is not None and choice.homogeneous:
            raise GraphError("graph.homogeneous: got true with graph.relation, expected one of the two: remove one")
        if choice.homogeneous:
            return self._merged(tuple(self.counts), tuple(self.relations), symmetrise)
        if choice.relation is None and len(self.counts) == len(self.relations) == 1:
            return self._merged(tuple(self.counts), tuple(self.relations), symmetrise)
        if choice.relation is None:
            example = next(iter(self._names()), "SOURCE,NAME,TARGET")
            raise GraphError(
                f"{self.where}: has the types {_listed(self.counts)} and the relations {_listed(self._names())}: "
                f"state graph.relation = '{example}' (or another) to train on one, or graph.homogeneous = true to "
                "merge all types"
            )
        name = self._named(choice.relation)
        return self._merged(tuple(dict.fromkeys((name[0], name[2]))), (name,), symmetrise)

    def _names(self) -> dict[str, RelationName]:
        return {",".join(name): name for name in self.relations}

    def _named(self, stated: str) -> RelationName:
        text = ",".join(part.strip() for part in stated.split(","))
        whole = self._names()
        alike = [name for name in self.relations if name[1] == text]
        if text in whole or len(alike) == 1:
            return whole[text] if text in whole else alike[0]
        why = f"{len(alike)} relations are called so; " if alike else ""
        raise GraphError(
            f"graph.relation: got '{stated}', expected a relation of {self.where}: {why}{_listed(whole)}"
            f"{nearest(text, (*whole, *(name[1] for name in self.relations)))}"
        )

    def _merged(self, types: Sequence[str], relations: Sequence[RelationName], symmetrise: bool) -> Graph:
        """Number the vertices type after type, and join edges, features and labels."""
        where, sizes = self.where, [self.counts[kind] for kind in types]
        first = dict(zip(types, np.concatenate([[0], np.cumsum(sizes)]).tolist(), strict=False))
        pieces = [self._edges(name, first) for name in relations]
        source, target = (np.concatenate([np.empty(0, np.int64), *(piece[k] for piece in pieces)]) for k in range(2))
        notes = list(self.notes)
        weights = self._weights(relations, [len(piece[0]) for piece in pieces], notes)
        edges = assemble_edges(source, target, sum(sizes), symmetrise, weights=weights, key=where)
        ids = None
        if len(types) > 1:
            notes.append(f"types merged, in this order: {', '.join(f'{self.counts[kind]:,} {kind}' for kind in types)}")
            ids = np.array([f"{kind}/{k}" for kind, size in zip(types, sizes, strict=True) for k in range(size)])
        features = self._features(types, sizes, notes)
        labelled, labels = self._labels(types, sizes)
        masks = {} if labelled is None else self._masks(labelled, first[labelled], sum(sizes), labels)
        found = Found(self.name, where, edges, features=features, labels=labels, notes=notes, **masks)
        return replace(complete_graph(found), vertex_ids=ids)

    def _weights(self, relations: Sequence[RelationName], lengths: Sequence[int], notes: list[str]) -> Any:
        """Join the weights of edges; those of relations without any are 1. None if no relation has any."""
        given = [self.relations[name].weights for name in relations]
        lacking = [",".join(name) for name, weights in zip(relations, given, strict=True) if weights is None]
        if len(lacking) == len(relations):
            return None
        if lacking:
            notes.append(f"edges of {', '.join(lacking)} have the weight 1")
        return np.concatenate(
            [
                np.ones(count) if weights is None else np.ravel(weights)
                for count, weights in zip(lengths, given, strict=True)
            ]
        )

    def _edges(self, name: RelationName, first: Mapping[str, int]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the ends of a relation's edges in the numbers of the merged graph."""
        relation, ends = self.relations[name], []
        for side, ids, kind in (("sources", relation.source, name[0]), ("targets", relation.target, name[2])):
            numbers = np.asarray(ids)
            if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
                got = f"{numbers.dtype} {list(numbers.shape)}"
                raise GraphError(f"{self.where}: {','.join(name)}: {side} must be a list of integers; got {got}")
            if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) >= self.counts[kind]):
                raise GraphError(
                    f"{self.where}: {','.join(name)}: {side} must lie in 0..{self.counts[kind] - 1}, the vertices of "
                    f"'{kind}'; got {int(numbers.min())}..{int(numbers.max())}"
                )
            ends.append(numbers.astype(np.int64) + first[kind])
        return ends[0], ends[1]

    def _features(self, types: Sequence[str], sizes: Sequence[int], notes: list[str]) -> Any:
        """Join the features; types without any get zeros. All widths must be equal."""
        given = {kind: self.fields.get(kind, {}).get("features") for kind in types}
        held = {kind: value for kind, value in given.items() if value is not None}
        if not held:
            return None
        held = {kind: np.asarray(value)[:, None] if np.ndim(value) == 1 else value for kind, value in held.items()}
        widths = {kind: int(value.shape[1]) for kind, value in held.items()}
        if len(set(widths.values())) > 1:
            told = ", ".join(f"{kind} {width}" for kind, width in widths.items())
            raise GraphError(
                f"{self.where}: features of merged types must be equally wide; got {told}: project them to one width, "
                "or pick a relation within one type with graph.relation"
            )
        width = next(iter(widths.values()))
        lacking = [kind for kind in types if kind not in held]
        if lacking:
            notes.append(f"features of {', '.join(lacking)} are zeros")
        sized = list(zip(types, sizes, strict=True))
        if any(sparse.issparse(value) for value in held.values()):
            empty = {kind: sparse.csr_array((size, width), dtype=np.float32) for kind, size in sized}
            return sparse.csr_array(sparse.vstack([sparse.csr_array(held.get(kind, empty[kind])) for kind in types]))
        dtype = np.result_type(*(value.dtype for value in held.values()))
        remedy = "pick a relation with graph.relation, or use a machine with more memory"
        check_memory(sum(sizes) * width * dtype.itemsize, f"{self.where}: features of merged types", remedy)
        return np.concatenate([held.get(kind, np.zeros((size, width), dtype)) for kind, size in sized])

    def _labels(self, types: Sequence[str], sizes: Sequence[int]) -> tuple[str | None, Any]:
        """Return the one type that has labels, and labels of all vertices: those of other types have none."""
        held = [kind for kind in types if self.fields.get(kind, {}).get("labels") is not None]
        if len(held) > 1:
            raise GraphError(
                f"{self.where}: labels of several types ({', '.join(held)}), whose classes differ: keep those of one"
            )
        if not held:
            return None, None
        own = np.asarray(self.fields[held[0]]["labels"])
        if own.ndim == 2 and own.shape[1] == 1:
            own = own[:, 0]
        missing, dtype = (0 if own.ndim == 2 else -1), (own.dtype if own.dtype.kind in "if" else np.dtype(np.int64))
        others = {
            kind: np.full((size, *own.shape[1:]), missing, dtype) for kind, size in zip(types, sizes, strict=True)
        }
        return held[0], np.concatenate([own if kind == held[0] else others[kind] for kind in types])

    def _masks(self, labelled: str, first: int, vertices: int, labels: NDArray[Any]) -> dict[str, Any]:
        """Return the masks of the labelled type, for all vertices; several labels and no masks: a seeded split of
        it."""
        place = slice(first, first + self.counts[labelled])
        masks: dict[str, Any] = {}
        for part in MASKS:
            own = self.fields[labelled].get(f"{part}_mask")
            if own is not None:
                masks[f"{part}_mask"] = np.zeros(vertices, np.asarray(own).dtype)
                masks[f"{part}_mask"][place] = own
        if not masks and labels.ndim == 2:
            candidates = np.zeros(vertices, np.bool_)
            candidates[place] = True
            masks = {f"{part}_mask": mask for part, mask in shared_masks(candidates, STANDARD_SHARES, 0).items()}
        return masks


def _listed(names: Mapping[str, Any]) -> str:
    shown = list(names)
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")
