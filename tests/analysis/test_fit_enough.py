"""A calibration measures more sizes of every primitive than its curve has terms, on a processor with three caches."""

import pytest

from executor.microbench import suite
from executor.microbench.probes.bench import MEASURES
from simgnn.analysis.fit.device import terms_of
from simgnn.hardware.primitives import ELEMENTWISE, MATMUL

CACHES = ("L2", "L3", "TLB")
FORMS = {MATMUL: 3, ELEMENTWISE: 4}
"""Probes of a shape whose features differ."""


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
def test_every_curve_has_more_samples_than_terms(quick: bool) -> None:
    assert suite.MODULES, "their functions are registered"
    counts = {
        primitive.name: FORMS.get(primitive, 1) * len(measure.quick if quick else measure.full)
        for measure in MEASURES
        for primitive in measure.primitives
        if (measure.quick if quick else measure.full)
    }
    assert {"matmul", "spmm", "sample", "encode"} <= set(counts)
    short = {name: count for name, count in counts.items() if count <= len(terms_of(name, CACHES))}
    assert not short
