"""What the time of a primitive is made of: features, from the sizes of the work and the locality of its index stream.

A device curve is ``seconds = sum_k cost_k * feature_k``. This module says which features each primitive has and
computes them for many pieces of work at once. ``item_bytes`` (4: float32, 8: float64) is a size of every primitive.

Sizes of each primitive, as in ``simgnn.program.ops.Work`` (arrays [n] or numbers):

=============  ==========================================  ============================================================
matmul         rows, inner, outer [crossed]                flops (of float32: a float64 one counts twice), input_bytes,
                                                           weight_bytes, output_bytes, bytes = all three; where crossed
                                                           is 1 (Xᵀ @ Y, as weights' gradients are made, reads the
                                                           narrower of both across its rows) crossed_bytes = the smaller
                                                           of input_bytes and weight_bytes
spmm           edges, rows, width [sources]                edges, rows, gathered_bytes = edges x row, written_bytes =
                                                           rows x row, index_bytes, missed_bytes/C, missed_rows/C
sparse_matmul  nonzeros, rows, width [sources]             nonzeros (as edges), rows, gathered_bytes, written_bytes,
                                                           missed_bytes/C, missed_rows/C
elementwise    rows, width (or elements), passes           elements, rows, bytes = elements x passes x item,
                                                           beyond_bytes/C
copy           rows, width (or elements, or bytes)         bytes (once), beyond_bytes/C
gather         rows, width                                 rows, bytes (once), beyond_bytes/C
scatter_add    rows, width                                 rows, bytes (once), beyond_bytes/C
sample         vertices, edges                             vertices, edges
loss           rows, width (or rows, elements)             rows, elements, bytes
optimizer      elements                                    elements, bytes, beyond_bytes/C
select         rows, width                                 rows, bytes (of rows and of those they are compared with),
                                                           beyond_bytes/C
encode         rows, width, row_bytes                      rows, elements, bytes (before), coded_bytes = rows x
                                                           row_bytes, beyond_bytes/C
decode         rows, width, row_bytes                      the same
attention_*    scores: rows, width, heads, passes          rows, weights = rows x heads, bytes, beyond_bytes/C
...            maximum, sums, gradients: edges, rows,      edges, weights = edges x heads, rows, gathered_bytes,
               width, heads [sources]                      written_bytes, missed_bytes/C, missed_rows/C
=============  ==========================================  ============================================================

Every primitive has ``call`` = 1. C is a cache of the device: ``missed_*/C`` counts edges whose source row was last read
so many different rows ago that these rows no longer fit into C, and first reads; ``beyond_bytes/C`` what of ``bytes``
exceeds C's size. With several ranks at once each has its share of C (:meth:`simgnn.hardware.devices.Cache.bytes_each`).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simgnn.errors import HardwareError

FloatArray = NDArray[np.float64]
Sizes = Mapping[str, FloatArray]
INDEX_BYTES = 4
POINTER_BYTES = 8
CACHE_FEATURES = ("missed_bytes", "missed_rows", "beyond_bytes")

UNITS: Mapping[str, str] = MappingProxyType(
    {
        "call": "calls",
        "flops": "flop",
        "bytes": "B",
        "input_bytes": "B",
        "weight_bytes": "B",
        "output_bytes": "B",
        "crossed_bytes": "B",
        "gathered_bytes": "B",
        "written_bytes": "B",
        "index_bytes": "B",
        "coded_bytes": "B",
        "missed_bytes": "B",
        "beyond_bytes": "B",
        "missed_rows": "rows",
        "edges": "edges",
        "rows": "rows",
        "elements": "elements",
        "weights": "elements",
        "vertices": "vertices",
    }
)
"""Unit of every feature; a cost is seconds for each of it."""

SIZE_DIMENSIONS: Mapping[str, str] = MappingProxyType(
    {
        "rows": "rows",
        "sources": "rows",
        "width": "elements",
        "heads": "elements",
        "inner": "elements",
        "outer": "elements",
        "edges": "edges",
        "nonzeros": "elements",
        "elements": "elements",
        "passes": "passes",
        "vertices": "vertices",
        "bytes": "bytes",
        "item_bytes": "bytes",
        "row_bytes": "bytes",
    }
)
"""Dimension of every size."""


def _matmul(s: Sizes) -> dict[str, FloatArray]:
    rows, inner, outer, item = s["rows"], s["inner"], s["outer"], s["item_bytes"]
    parts = {
        "input_bytes": rows * inner * item,
        "weight_bytes": inner * outer * item,
        "output_bytes": rows * outer * item,
    }
    crossed = np.minimum(parts["input_bytes"], parts["weight_bytes"]) * s.get("crossed", np.zeros(1))
    moved = sum(parts.values(), np.zeros(1))
    return {"flops": 2 * rows * inner * outer * item / 4, **parts, "bytes": moved, "crossed_bytes": crossed}


def _spmm(s: Sizes) -> dict[str, FloatArray]:
    row_bytes = s["width"] * s["item_bytes"]
    return {
        "edges": s["edges"],
        "rows": s["rows"],
        "gathered_bytes": s["edges"] * row_bytes,
        "written_bytes": s["rows"] * row_bytes,
        "index_bytes": s["edges"] * INDEX_BYTES + s["rows"] * POINTER_BYTES,
    }


def _sparse_matmul(s: Sizes) -> dict[str, FloatArray]:
    row_bytes = s["width"] * s["item_bytes"]
    return {
        "edges": s["nonzeros"],
        "rows": s["rows"],
        "gathered_bytes": s["nonzeros"] * row_bytes,
        "written_bytes": s["rows"] * row_bytes,
    }


def _attention(s: Sizes) -> dict[str, FloatArray]:
    return {**_sparse_matmul({**s, "nonzeros": s["edges"]}), "weights": s["edges"] * s["heads"]}


def _attention_scores(s: Sizes) -> dict[str, FloatArray]:
    read = s["rows"] * s["width"] * s["passes"] * s["item_bytes"]
    return {"rows": s["rows"], "weights": s["rows"] * s["heads"], "bytes": read}


def _elementwise(s: Sizes) -> dict[str, FloatArray]:
    elements = _elements(s)
    rows = s["rows"] if "rows" in s else np.zeros(1)
    return {"elements": elements, "rows": rows, "bytes": elements * s["passes"] * s["item_bytes"]}


def _copy(s: Sizes) -> dict[str, FloatArray]:
    return {"bytes": s["bytes"] if "bytes" in s else _elements(s) * s["item_bytes"]}


def _gather(s: Sizes) -> dict[str, FloatArray]:
    return {"rows": s["rows"], "bytes": s["rows"] * s["width"] * s["item_bytes"]}


def _sample(s: Sizes) -> dict[str, FloatArray]:
    return {"vertices": s["vertices"], "edges": s["edges"]}


def _loss(s: Sizes) -> dict[str, FloatArray]:
    elements = _elements(s)
    return {"rows": s["rows"], "elements": elements, "bytes": elements * s["item_bytes"]}


def _optimizer(s: Sizes) -> dict[str, FloatArray]:
    elements = _elements(s)
    return {"elements": elements, "bytes": elements * s["item_bytes"]}


def _select(s: Sizes) -> dict[str, FloatArray]:
    return {"rows": s["rows"], "bytes": 2 * s["rows"] * s["width"] * s["item_bytes"]}


def _code(s: Sizes) -> dict[str, FloatArray]:
    elements = s["rows"] * s["width"]
    coded = s["rows"] * s["row_bytes"]
    return {"rows": s["rows"], "elements": elements, "bytes": elements * s["item_bytes"], "coded_bytes": coded}


def _elements(s: Sizes) -> FloatArray:
    return s["elements"] if "elements" in s else s["rows"] * s["width"]


_MISSES = ("missed_bytes", "missed_rows")
_ATTENTION = _attention, ("edges", "rows", "weights", "gathered_bytes", "written_bytes"), _MISSES

_FORMS: Mapping[str, tuple[Callable[[Sizes], dict[str, FloatArray]], tuple[str, ...], tuple[str, ...]]] = (
    MappingProxyType(
        {  # primitive: (features, their names, names that exist for each cache)
            "matmul": (
                _matmul,
                ("flops", "input_bytes", "weight_bytes", "output_bytes", "bytes", "crossed_bytes"),
                ("beyond_bytes",),
            ),
            "spmm": (_spmm, ("edges", "rows", "gathered_bytes", "written_bytes", "index_bytes"), _MISSES),
            "sparse_matmul": (_sparse_matmul, ("edges", "rows", "gathered_bytes", "written_bytes"), _MISSES),
            "elementwise": (_elementwise, ("elements", "rows", "bytes"), ("beyond_bytes",)),
            "copy": (_copy, ("bytes",), ("beyond_bytes",)),
            "gather": (_gather, ("rows", "bytes"), ("beyond_bytes",)),
            "scatter_add": (_gather, ("rows", "bytes"), ("beyond_bytes",)),
            "sample": (_sample, ("vertices", "edges"), ()),
            "loss": (_loss, ("rows", "elements", "bytes"), ("beyond_bytes",)),
            "optimizer": (_optimizer, ("elements", "bytes"), ("beyond_bytes",)),
            "select": (_select, ("rows", "bytes"), ("beyond_bytes",)),
            "encode": (_code, ("rows", "elements", "bytes", "coded_bytes"), ("beyond_bytes",)),
            "decode": (_code, ("rows", "elements", "bytes", "coded_bytes"), ("beyond_bytes",)),
            "attention_scores": (_attention_scores, ("rows", "weights", "bytes"), ("beyond_bytes",)),
            "attention_maximum": _ATTENTION,
            "attention_sums": _ATTENTION,
            "attention_gradients": _ATTENTION,
        }
    )
)
PRIMITIVES: tuple[str, ...] = tuple(_FORMS)


def feature_names(primitive: str, caches: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Every feature that a curve of this primitive may use on a device with these caches."""
    _, plain, per_cache = _FORMS[primitive]
    return ("call", *plain, *(f"{name}/{cache}" for name in per_cache for cache in caches))


def unit_of(feature: str) -> str:
    """Unit of a feature, without its cache: "B", "flop", "edges"... Raises ``KeyError`` for an unknown one."""
    return UNITS[feature.partition("/")[0]]


def features(
    primitive: str,
    sizes: Mapping[str, ArrayLike],
    locality: ArrayLike | None = None,
    caches: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, FloatArray]:
    """All features of n pieces of work, each float64 [n].

    ``sizes``: number or array [n] each; ``item_bytes`` defaults to 4. ``locality``: cumulative reuse profile [bins] or
    [n, bins] (``simgnn.graph.locality``); None: the stream is taken as uniformly random over its ``sources``, and the
    first read of each source is a miss. ``caches``: bytes of each cache that one rank has.
    """
    arrays = _arrays(primitive, sizes)
    compute, _, per_cache = _FORMS[primitive]
    try:
        result = compute(arrays)
    except KeyError as error:
        raise HardwareError(
            f"work of primitive '{primitive}' lacks the size '{error.args[0]}'; got: {', '.join(sorted(sizes))}"
        ) from None
    count = len(next(iter(arrays.values())))
    result = {name: _long(value, count) for name, value in result.items()}
    result["call"] = np.ones(count)
    for cache, size in caches.items():
        if "beyond_bytes" in per_cache:
            result[f"beyond_bytes/{cache}"] = np.maximum(result["bytes"] - size, 0.0)
        if "missed_bytes" in per_cache:
            row_bytes = arrays["width"] * arrays["item_bytes"]
            missed = result["edges"] * (1.0 - hit_share(size / np.maximum(row_bytes, 1.0), arrays, locality))
            result[f"missed_rows/{cache}"] = missed
            result[f"missed_bytes/{cache}"] = missed * row_bytes
    return result


def hit_share(capacity_rows: FloatArray, sizes: Sizes, locality: ArrayLike | None) -> FloatArray:
    """Share of the edges [n] whose source row is still among the ``capacity_rows`` [n] rows that were read last.

    Between the profile's powers of two the share grows linearly with the logarithm of the capacity.
    """
    if locality is None:
        edges = np.maximum(sizes["edges"] if "edges" in sizes else sizes["nonzeros"], 1.0)
        sources = np.maximum(sizes.get("sources", edges), 1.0)
        first_reads = np.minimum(sources / edges, 1.0)
        return np.asarray((1.0 - first_reads) * np.minimum(capacity_rows / sources, 1.0))
    profile = np.atleast_2d(np.asarray(locality, dtype=np.float64))
    profile = np.broadcast_to(profile, (len(capacity_rows), profile.shape[1]))
    last = profile.shape[1] - 1
    place = np.clip(np.log2(np.maximum(capacity_rows, 1.0)), 0.0, last)
    low = np.minimum(place.astype(np.int64), max(last - 1, 0))
    high = np.minimum(low + 1, last)
    lane = np.arange(len(capacity_rows))
    share = profile[lane, low] + (place - low) * (profile[lane, high] - profile[lane, low])
    return np.asarray(np.where(capacity_rows < 1.0, 0.0, share))


def _arrays(primitive: str, sizes: Mapping[str, ArrayLike]) -> dict[str, FloatArray]:
    if primitive not in _FORMS:
        raise HardwareError(f"unknown primitive '{primitive}'; known: {', '.join(PRIMITIVES)}")
    arrays = {name: np.atleast_1d(np.asarray(value, dtype=np.float64)) for name, value in sizes.items()}
    arrays.setdefault("item_bytes", np.array([4.0]))
    count = max(len(array) for array in arrays.values())
    return {name: _long(array, count) for name, array in arrays.items()}


def _long(value: FloatArray, count: int) -> FloatArray:
    """A value, one for all or of [count], as [count]."""
    return value if np.shape(value) == (count,) else np.broadcast_to(value, (count,))
