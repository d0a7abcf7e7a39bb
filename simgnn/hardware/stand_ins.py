"""What attention is priced as on a device that has no measurement of it: assumed sums of work that it has one of.

A pass over edges counts as a sum of rows of the same width, an exponential as so many reads and writes: on CPUs epochs
came out between 6 % too long and 28 % too short. Every result that rests on a stand-in says so.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simgnn.model.costs import EXPONENTIAL_PASSES

Sizes = Mapping[str, NDArray[np.float64]]
Work = tuple[str, Mapping[str, ArrayLike]]


def _scores(s: Sizes) -> tuple[Work, ...]:
    return (("elementwise", {name: s[name] for name in ("rows", "width", "passes", "item_bytes")}),)


def _maximum(s: Sizes) -> tuple[Work, ...]:
    return (_read(s, s["heads"]),)


def _sums(s: Sizes) -> tuple[Work, ...]:
    return _read(s, s["width"] + s["heads"]), _exponentials(s, 1)


def _gradients(s: Sizes) -> tuple[Work, ...]:
    width = s["width"] + s["heads"]
    turned = {**s, "rows": s["sources"], "sources": s["rows"]}
    return _read(turned, width), _read(s, width), _exponentials(s, 2)


def _read(s: Sizes, width: NDArray[np.float64]) -> Work:
    return "spmm", {**{name: s[name] for name in ("edges", "rows", "sources", "item_bytes")}, "width": width}


def _exponentials(s: Sizes, times: int) -> Work:
    sizes = {"rows": s["edges"], "width": s["heads"], "item_bytes": s["item_bytes"]}
    return "elementwise", {**sizes, "passes": times * EXPONENTIAL_PASSES}


STAND_INS: Mapping[str, Callable[[Sizes], tuple[Work, ...]]] = MappingProxyType(
    {
        "attention_scores": _scores,
        "attention_maximum": _maximum,
        "attention_sums": _sums,
        "attention_gradients": _gradients,
    }
)
"""Primitive -> the work that stands in for it, from its sizes, each as :mod:`simgnn.hardware.features` defines them."""
