"""A slow reading of ByteGNN's algorithm B: blocks by one search for each labelled vertex, parts scored one by one."""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

from simgnn.graph.graph import MASKS, Graph


def literal_blocks(graph: Graph, hops: int) -> list[int]:
    """The nearest labelled vertex along in-edges, the lowest of several; -1: none within ``hops``."""
    indptr, indices = graph.csr.indptr.tolist(), graph.csr.indices.tolist()
    best: list[tuple[int, int]] = [(hops + 1, -1)] * graph.vertices
    for centre in range(graph.vertices):
        if kind_of(graph, centre) is None:
            continue
        distance, front = {centre: 0}, [centre]
        for hop in range(1, hops + 1):
            sources = {w for v in front for w in indices[indptr[v] : indptr[v + 1]]} - set(distance)
            distance |= dict.fromkeys(sources, hop)
            front = sorted(sources)
        for vertex, hop in distance.items():
            if hop < best[vertex][0] or (hop == best[vertex][0] and centre < best[vertex][1]):
                best[vertex] = hop, centre
    return [centre for _, centre in best]


def kind_of(graph: Graph, vertex: int) -> int | None:
    """The mask that holds a vertex, by its place among them."""
    held = [k for k, name in enumerate(MASKS) if (mask := getattr(graph, f"{name}_mask")) is not None and mask[vertex]]
    return held[0] if held else None


def literal_parts(
    graph: Graph,
    block: Sequence[int],
    order: Sequence[int],
    parts: int,
    weights: Sequence[int],
    label_slack: Fraction | None,
    vertex_slack: Fraction | None,
    vertices: Sequence[int],
) -> tuple[dict[int, int], int]:
    """Part of each of ``vertices``, and how many blocks were forced. Bounds are exact; scores are float64, in the
    order of operations that is part of the definition."""
    indptr, indices = graph.csr.indptr.tolist(), graph.csr.indices.tolist()
    inside = set(vertices)
    kinds = {centre: kind for centre in order if (kind := kind_of(graph, centre)) is not None}
    total = [sum(kind == t for kind in kinds.values()) for t in range(len(MASKS))]
    mean = [Fraction(count, parts) for count in total]
    shares = [float(weight) if count else 0.0 for weight, count in zip(weights, total, strict=True)]
    shares = [share / sum(shares) if sum(shares) else 0.0 for share in shares]
    members: dict[int, list[int]] = {centre: [] for centre in order}
    for vertex in vertices:
        if block[vertex] >= 0:
            members[block[vertex]].append(vertex)
    reached = sum(map(len, members.values()))
    part: dict[int, int] = {}
    size, held, forced = [0] * parts, [[0] * len(MASKS) for _ in range(parts)], 0
    for centre in order:
        kind, mine, scored = kinds[centre], members[centre], []
        for j in range(parts):
            if label_slack is not None and held[j][kind] + 1 > max(ceil((1 + label_slack) * mean[kind]), 1):
                continue
            if vertex_slack is not None and size[j] + len(mine) > (1 + vertex_slack) * Fraction(reached, parts):
                continue
            ends = [w for v in mine for w in indices[indptr[v] : indptr[v + 1]] if w in inside and part.get(w) == j]
            balance = 1.0
            for kind_of_all, share in enumerate(shares):
                if total[kind_of_all]:
                    balance -= share * (held[j][kind_of_all] / float(mean[kind_of_all]))
            edges = len(ends) / size[j] if size[j] else 0.0
            scored.append((edges * balance, balance, -size[j], -j))
        if scored:
            chosen = -max(scored)[3]
        else:
            forced += 1
            chosen = size.index(min(size))
        part |= dict.fromkeys(mine, chosen)
        size[chosen] += len(mine)
        held[chosen][kind] += 1
    for vertex in sorted(inside - part.keys()):
        part[vertex] = size.index(min(size))
        size[part[vertex]] += 1
    return part, forced
