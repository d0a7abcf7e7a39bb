"""Work primitives: one table row for each kind of device work, such as a matrix product, that ops are made of.

A program states its device work in pieces (:class:`simgnn.program.ops.Work`), each a primitive and its sizes. The time
of a piece is ``sum_k cost_k * feature_k``. The curve of a device holds the costs, and the row of the primitive computes
the features from the sizes. To add a primitive, add a row here and a function that measures it to
``executor.microbench.probes`` (``@measures``).

Every primitive also has the size ``item_bytes`` (4: float32, 8: float64) and the feature ``call`` = 1. The features
that a row lists as ``per_cache`` exist once for every cache C of the device. ``missed_*/C`` counts the edges whose
source row is not in C: it is read for the first time, or so many other rows were read since its last read that they do
not fit into C. ``beyond_bytes/C`` is ``bytes`` minus the size of C, at least 0. When several ranks share a device, each
has a part of C (:meth:`simgnn.hardware.profile.devices.Cache.bytes_each`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simgnn.model.costs import EXPONENTIAL_PASSES

FloatArray = NDArray[np.float64]
Sizes = Mapping[str, FloatArray]
INDEX_BYTES = 4
POINTER_BYTES = 8
LARGEST = 2**62
"""Largest value of a size: sizes are integers that fit into 64 bits."""


class SizeKind(NamedTuple):
    """The dimension (unit family) of a size, and the smallest and largest value that it may have."""

    dimension: str
    least: int = 1
    most: int = LARGEST


SIZES: Mapping[str, SizeKind] = MappingProxyType(
    {
        "rows": SizeKind("rows"),  # that are written
        "sources": SizeKind("rows"),  # that are read through an index
        "width": SizeKind("elements"),  # of a row
        "heads": SizeKind("elements"),  # of attention
        "inner": SizeKind("elements"),  # dimension of a product
        "outer": SizeKind("elements"),
        "edges": SizeKind("edges"),
        "nonzeros": SizeKind("elements"),  # stored values of sparse rows
        "elements": SizeKind("elements"),
        "passes": SizeKind("passes"),  # reads and writes of all elements
        "vertices": SizeKind("vertices"),
        "bytes": SizeKind("bytes", least=0),
        "item_bytes": SizeKind("bytes"),
        "row_bytes": SizeKind("bytes"),  # of a row as it is encoded
        "crossed": SizeKind("passes", least=0, most=1),  # 1: the left side of a product is held transposed
    }
)
"""Every size that a primitive may have."""
UNITS: Mapping[str, str] = MappingProxyType(
    {
        "call": "calls",
        "flops": "flop",
        **dict.fromkeys(("bytes", "input_bytes", "weight_bytes", "output_bytes", "crossed_bytes"), "B"),
        **dict.fromkeys(("gathered_bytes", "written_bytes", "index_bytes", "coded_bytes"), "B"),
        **dict.fromkeys(("missed_bytes", "beyond_bytes"), "B"),
        "missed_rows": "rows",
        "edges": "edges",
        "rows": "rows",
        "elements": "elements",
        "weights": "elements",
        "vertices": "vertices",
    }
)
"""The unit of each feature. The cost of a feature is in seconds per unit."""

StandIn = tuple[str, Mapping[str, ArrayLike]]
"""A primitive and sizes: work whose price is used instead of the price of a primitive that has no curve."""

_ROWS = (100.0, 1e3, 1e4, 1e5, 1e6)
_WIDTHS = (8.0, 32.0, 128.0, 512.0)
_DEGREES = (4.0, 16.0, 64.0)
_MISSES = ("missed_bytes", "missed_rows")
_TABLE: Mapping[str, int | str | None] = {"rows": None, "width": None}
_TABLE_SWEEP: Mapping[str, tuple[float, ...]] = {"rows": _ROWS, "width": _WIDTHS}


@dataclass(frozen=True, kw_only=True, eq=False)
class Primitive:
    """One kind of device work: sizes, features, curve terms, and how it is measured and compared."""

    name: str
    meaning: str
    """What the work does, in terms of its sizes."""
    kind: str
    """Kind of the ops (``simgnn.program.kinds.OpKind``) that consist of this work alone."""
    sizes: Mapping[str, int | str | None] = field(default_factory=lambda: _TABLE)
    """Sizes and their defaults in ``simgnn hardware time``. None: required; a number: the default; a name: equal to
    that size by default. A program may state ``elements`` or ``bytes`` instead where the features accept them."""
    features: Callable[[Sizes], dict[str, FloatArray]]
    """Function from the sizes of n pieces of work to quantities [n] that time may depend on, by name
    (:data:`UNITS`)."""
    per_cache: tuple[str, ...] = ("beyond_bytes",)
    """Features that exist once for each cache of the device."""
    terms: tuple[str, ...] = ("call", "rows", "bytes", "beyond_bytes")
    """Features that a calibration fits a cost for. A per-cache feature is one term for each cache
    (:func:`simgnn.analysis.fit.device.terms_of`). A term that does not improve the fit gets no cost."""
    ranged: tuple[str, ...] = ("bytes",)
    """Sizes or features whose measured range is stored with the curve."""
    sweep: Mapping[str, tuple[float, ...] | float | Callable[[Sizes], FloatArray]] = field(
        default_factory=lambda: _TABLE_SWEEP
    )
    """Sizes at which two profiles are compared. A tuple is an axis of a grid, a number is constant, and a function
    computes a size from the entries before it."""
    by_form: bool = False
    """Whether cross-validation holds out all samples of a graph together. The ``form`` of a sample names it."""
    by_shape: tuple[str, ...] = ()
    """Sizes that define the shape of a sample, in any order. Samples of one shape are held out together."""
    copies: bool = False
    """Whether the work is a copy: each byte of the feature ``bytes`` is read from memory and written to memory."""
    optional: bool = False
    """Whether only some policies need this primitive. A profile without a curve of it serves all other policies."""
    on_host: bool = False
    """Whether a thread of the host's CPU does the work, also for ranks on GPUs; more threads do not make it faster."""
    stand_in: Callable[[Sizes], tuple[StandIn, ...]] | None = None
    """Function from sizes to other work whose total time is the price on a device without a curve of this primitive.
    Results that depend on such a price report it as assumed."""

    @cached_property
    def plain(self) -> tuple[str, ...]:
        """Names of the features that do not depend on a cache, ``call`` first."""
        return ("call", *self.features(dict.fromkeys(SIZES, np.ones(1))))

    def grid(self) -> dict[str, FloatArray]:
        """Return all combinations of the sizes in :attr:`sweep`, as arrays of equal length, with random indices."""
        axes = {name: values for name, values in self.sweep.items() if isinstance(values, tuple)}
        columns = dict(zip(axes, np.array(list(product(*axes.values()))).T, strict=True))
        count = len(next(iter(columns.values())))
        for name, value in self.sweep.items():
            if not isinstance(value, tuple):
                columns[name] = value(columns) if callable(value) else np.full(count, value)
        return {name: column for name, column in columns.items() if name in SIZES}


def _elements(s: Sizes) -> FloatArray:
    return s["elements"] if "elements" in s else s["rows"] * s["width"]


def _through_index(s: Sizes, edges: str = "edges") -> dict[str, FloatArray]:
    row_bytes = s["width"] * s["item_bytes"]
    moved = {"gathered_bytes": s[edges] * row_bytes, "written_bytes": s["rows"] * row_bytes}
    return {"edges": s[edges], "rows": s["rows"], **moved}


def _matmul(s: Sizes) -> dict[str, FloatArray]:
    rows, inner, outer, item = s["rows"], s["inner"], s["outer"], s["item_bytes"]
    ends = {"input_bytes": rows * inner, "weight_bytes": inner * outer, "output_bytes": rows * outer}
    parts = {name: elements * item for name, elements in ends.items()}
    crossed = np.minimum(parts["input_bytes"], parts["weight_bytes"]) * s.get("crossed", np.zeros(1))
    moved = sum(parts.values(), np.zeros(1))
    # flops are counted in float32: one of float64 counts twice
    return {"flops": 2 * rows * inner * outer * item / 4, **parts, "bytes": moved, "crossed_bytes": crossed}


def _elementwise(s: Sizes) -> dict[str, FloatArray]:
    elements, rows = _elements(s), s["rows"] if "rows" in s else np.zeros(1)
    return {"elements": elements, "rows": rows, "bytes": elements * s["passes"] * s["item_bytes"]}


def _code(s: Sizes) -> dict[str, FloatArray]:
    rows, elements = s["rows"], s["rows"] * s["width"]
    return {
        "rows": rows,
        "elements": elements,
        "bytes": elements * s["item_bytes"],
        "coded_bytes": rows * s["row_bytes"],
    }


def _sum_of_rows(s: Sizes, width: FloatArray) -> StandIn:
    return "spmm", {**{name: s[name] for name in ("edges", "rows", "sources", "item_bytes")}, "width": width}


def _exponentials(s: Sizes, times: int) -> StandIn:
    sizes = {"rows": s["edges"], "width": s["heads"], "item_bytes": s["item_bytes"]}
    return "elementwise", {**sizes, "passes": times * EXPONENTIAL_PASSES}


def _gradients_stand_in(s: Sizes) -> tuple[StandIn, ...]:
    width = s["width"] + s["heads"]
    reverse = {**s, "rows": s["sources"], "sources": s["rows"]}
    return _sum_of_rows(reverse, width), _sum_of_rows(s, width), _exponentials(s, 2)


_SUM: Mapping[str, int | str | None] = {"edges": None, "rows": None, "width": None, "sources": "rows"}
_SUM_SWEEP: Mapping[str, tuple[float, ...] | float | Callable[[Sizes], FloatArray]] = {
    **_TABLE_SWEEP,
    "degree": _DEGREES,
    "edges": lambda s: s["degree"] * s["rows"],
    "sources": lambda s: s["rows"],
}

MATMUL = Primitive(
    name="matmul",
    meaning="[rows, inner] @ [inner, outer]. With crossed = 1, as in a weight gradient, the left side is held "
    "transposed, and the narrower side is read across its rows.",
    kind="transform",
    sizes={"rows": None, "inner": None, "outer": None, "crossed": 0},
    features=_matmul,
    terms=("call", "flops", "input_bytes", "weight_bytes", "output_bytes", "crossed_bytes"),
    ranged=("flops",),
    sweep={"rows": _ROWS, "inner": _WIDTHS, "outer": _WIDTHS},
    by_shape=("rows", "inner", "outer"),
)
SPMM = Primitive(
    name="spmm",
    meaning="Sums over edges: each of the rows is a weighted sum of source rows.",
    kind="aggregate",
    sizes=_SUM,
    features=lambda s: {**_through_index(s), "index_bytes": s["edges"] * INDEX_BYTES + s["rows"] * POINTER_BYTES},
    per_cache=_MISSES,
    terms=("call", "edges", "gathered_bytes", "missed_bytes", "missed_rows"),
    ranged=("edges", "width"),
    sweep=_SUM_SWEEP,
    by_form=True,
)
SPARSE_MATMUL = Primitive(
    name="sparse_matmul",
    meaning="Sparse rows times a dense matrix of source rows.",
    kind="transform",
    sizes={"nonzeros": None, "rows": None, "width": None, "sources": "rows"},
    features=lambda s: _through_index(s, "nonzeros"),
    per_cache=_MISSES,
    terms=("call", "gathered_bytes", "written_bytes", "missed_bytes"),
    ranged=("nonzeros", "width"),
    sweep={**_SUM_SWEEP, "nonzeros": lambda s: s["edges"]},
)
GATHER = Primitive(
    name="gather",
    meaning="Rows picked by an index into a new table.",
    kind="select",
    features=lambda s: {"rows": s["rows"], "bytes": s["rows"] * s["width"] * s["item_bytes"]},
    copies=True,
)
SCATTER_ADD = replace(GATHER, name="scatter_add", kind="add", meaning="Rows added to rows that an index picks.")
SELECT = Primitive(
    name="select",
    meaning="Rows compared with the rows of another table.",
    kind="select",
    features=lambda s: {"rows": s["rows"], "bytes": 2 * s["rows"] * s["width"] * s["item_bytes"]},
    optional=True,
)
COPY = Primitive(
    name="copy",
    meaning="[rows, width] into another place of the same memory.",
    kind="select",
    features=lambda s: {"bytes": s["bytes"] if "bytes" in s else _elements(s) * s["item_bytes"]},
    terms=("call", "bytes", "beyond_bytes"),
    copies=True,
)
ELEMENTWISE = Primitive(
    name="elementwise",
    meaning="Passes over [rows, width], each a read or a write of all elements.",
    kind="elementwise",
    sizes={**_TABLE, "passes": 2},
    features=_elementwise,
    sweep={**_TABLE_SWEEP, "passes": 2.0},
)
LOSS = Primitive(
    name="loss",
    meaning="The loss of rows of width classes, with its gradient and the counts of an accuracy.",
    kind="loss",
    features=lambda s: {"rows": s["rows"], "elements": _elements(s), "bytes": _elements(s) * s["item_bytes"]},
    terms=("call", "rows", "elements"),
    ranged=("elements",),
)
OPTIMIZER = Primitive(
    name="optimizer",
    meaning="One step of the optimizer over that many parameters.",
    kind="optimize",
    sizes={"elements": None},
    features=lambda s: {"elements": _elements(s), "bytes": _elements(s) * s["item_bytes"]},
    terms=("call", "elements", "beyond_bytes"),
    ranged=("elements",),
    sweep={"elements": (*_ROWS, 1e7)},
)
ENCODE = Primitive(
    name="encode",
    meaning="Rows to row_bytes bytes each.",
    kind="encode",
    sizes={**_TABLE, "row_bytes": None},
    features=_code,
    terms=("call", "rows", "elements", "coded_bytes"),
    ranged=("elements",),
    sweep={**_TABLE_SWEEP, "row_bytes": lambda s: 8 + s["width"]},  # a header, and a byte an element
    optional=True,
)
DECODE = replace(ENCODE, name="decode", kind="decode", meaning="Rows from row_bytes bytes each.")
SAMPLE = Primitive(
    name="sample",
    meaning="A hop of neighbour sampling: vertices draw edges, and new sources get numbers.",
    kind="sample",
    sizes={"vertices": None, "edges": None},
    features=lambda s: {"vertices": s["vertices"], "edges": s["edges"]},
    per_cache=(),
    terms=("call", "vertices", "edges"),
    ranged=("edges",),
    sweep={"vertices": _ROWS, "degree": _DEGREES, "edges": lambda s: s["degree"] * s["vertices"]},
    optional=True,
    on_host=True,
)
ATTENTION_SCORES = Primitive(
    name="attention_scores",
    meaning="Passes over [rows, width] that make the scores of heads, or reverse them.",
    kind="transform",
    sizes={**_TABLE, "heads": None, "passes": 1},
    features=lambda s: {
        "rows": s["rows"],
        "weights": s["rows"] * s["heads"],
        "bytes": s["rows"] * s["width"] * s["passes"] * s["item_bytes"],
    },
    terms=("call", "weights", "bytes", "beyond_bytes"),
    ranged=("bytes", "heads"),
    sweep={**_TABLE_SWEEP, "passes": 2.0, "heads": 4.0},
    stand_in=lambda s: (("elementwise", {name: s[name] for name in ("rows", "width", "passes", "item_bytes")}),),
)
# The stand-ins of the three sums over edges count a pass over edges as a sum of rows of the same width, and an
# exponential as EXPONENTIAL_PASSES passes. On CPUs, predicted epochs were between 6 % too long and 28 % too short.
ATTENTION_SUMS = Primitive(
    name="attention_sums",
    meaning="Sums over edges, weighted by the exponentials of their scores, of source rows of the width of all heads.",
    kind="aggregate",
    sizes={**_SUM, "heads": None},
    features=lambda s: {**_through_index(s), "weights": s["edges"] * s["heads"]},
    per_cache=_MISSES,
    terms=("call", "edges", "weights", "gathered_bytes", "missed_bytes", "missed_rows"),
    ranged=("edges", "width", "heads"),
    sweep={**_SUM_SWEEP, "heads": 4.0},
    by_form=True,
    stand_in=lambda s: (_sum_of_rows(s, s["width"] + s["heads"]), _exponentials(s, 1)),
)
ATTENTION_MAXIMUM = replace(
    ATTENTION_SUMS,
    name="attention_maximum",
    meaning="The greatest score of each row's edges, head by head; the width is that of heads.",
    terms=("call", "edges", "weights", "missed_bytes", "missed_rows"),
    ranged=("edges", "heads"),
    sweep={**_SUM_SWEEP, "heads": lambda s: s["width"]},
    stand_in=lambda s: (_sum_of_rows(s, s["heads"]),),
)
ATTENTION_GRADIENTS = replace(
    ATTENTION_SUMS,
    name="attention_gradients",
    meaning="The reverse of attention_sums: gradients of the source rows and of the scores.",
    stand_in=_gradients_stand_in,
)

PRIMITIVES: Mapping[str, Primitive] = MappingProxyType(
    {
        row.name: row
        for row in (
            MATMUL, SPMM, SPARSE_MATMUL, ELEMENTWISE, COPY, GATHER, SCATTER_ADD, LOSS, OPTIMIZER, SELECT, ENCODE,
            DECODE, SAMPLE, ATTENTION_SCORES, ATTENTION_MAXIMUM, ATTENTION_SUMS, ATTENTION_GRADIENTS,
        )
    }
)  # fmt: skip
"""Every primitive by name, in the order of reports."""


def feature_names(primitive: str, caches: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return all features that a curve of this primitive may use on a device with these caches."""
    row = PRIMITIVES[primitive]
    return (*row.plain, *(f"{name}/{cache}" for name in row.per_cache for cache in caches))


def unit_of(feature: str) -> str:
    """Return the unit of a feature, such as "B", "flop" or "edges". Caches in names ("missed_rows/L2") are ignored."""
    return UNITS[feature.partition("/")[0]]
