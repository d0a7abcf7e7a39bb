"""Index streams of known shape and locality, as CSR: what an aggregation reads, from perfectly local to random."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.csr import CSR

Pick = Callable[[np.random.Generator, NDArray[np.int64]], NDArray[np.int64]]


@dataclass(frozen=True)
class StreamSpec:
    """``rows`` destinations with ``degree`` in-edges on average, reading ``sources`` rows.

    ``local``: share of the edges whose source lies within ``band`` rows of its destination (positions scaled to the
    number of sources); the others are uniform, or Zipf-like with exponent ``skew`` > 0 (hubs in random positions).
    ``degree_skew`` > 0: in-degrees are Pareto-distributed with this spread instead of all alike.
    """

    rows: int
    sources: int
    degree: float
    local: float = 0.0
    band: int = 64
    skew: float = 0.0
    degree_skew: float = 0.0

    @property
    def name(self) -> str:
        """A short label for the sample's form."""
        shape = "local" if self.local >= 0.5 else "skewed" if self.skew > 0 else "random"
        return f"{shape}-{self.sources}"


def make_stream(spec: StreamSpec, seed: int) -> CSR:
    """The CSR of a specification, sources ascending in each row; the same for the same seed."""
    generator = np.random.default_rng(seed)
    degrees = _degrees(spec, generator)
    indptr = np.zeros(spec.rows + 1, dtype=np.int64)
    np.cumsum(degrees, out=indptr[1:])
    edges = int(indptr[-1])
    row_of_edge = np.repeat(np.arange(spec.rows, dtype=np.int64), degrees)
    centre = row_of_edge * spec.sources // max(spec.rows, 1)
    near = np.clip(centre + generator.integers(-spec.band, spec.band + 1, edges), 0, spec.sources - 1)
    far = _far_sources(spec, generator, edges)
    source = np.where(generator.random(edges) < spec.local, near, far)
    order = np.argsort(row_of_edge * spec.sources + source, kind="stable")
    return CSR(indptr, source[order].astype(np.int32), spec.sources)


def _degrees(spec: StreamSpec, generator: np.random.Generator) -> NDArray[np.int64]:
    if spec.degree_skew <= 0:
        return np.full(spec.rows, max(1, round(spec.degree)), dtype=np.int64)
    weights = (1.0 + generator.pareto(1.0 + 1.0 / spec.degree_skew, spec.rows)).clip(max=spec.rows / 4)
    return np.asarray(np.maximum(1, np.rint(weights * (spec.degree / weights.mean()))), dtype=np.int64)


def _far_sources(spec: StreamSpec, generator: np.random.Generator, edges: int) -> NDArray[np.int64]:
    if spec.skew <= 0:
        return generator.integers(0, spec.sources, edges)
    weight = np.arange(1, spec.sources + 1, dtype=np.float64) ** -spec.skew
    drawn = np.searchsorted(np.cumsum(weight), generator.random(edges) * weight.sum())
    return np.asarray(generator.permutation(spec.sources)[np.minimum(drawn, spec.sources - 1)], dtype=np.int64)
