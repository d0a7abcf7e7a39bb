"""A calibration measures more sizes of every primitive than its curve has terms, on a processor with three caches."""

import pytest

from executor.microbench.suite import FULL, QUICK, Suite
from simgnn.analysis.fit_compute import terms_of

CACHES = ("L2", "L3", "TLB")


@pytest.mark.parametrize("suite", [FULL, QUICK], ids=["full", "quick"])
def test_every_curve_has_more_samples_than_terms(suite: Suite) -> None:
    counts = {
        "matmul": 3 * len(suite.matmul),
        "spmm": sum(len(widths) for _, widths in suite.graphs),
        "sparse_matmul": len(suite.sparse),
        "elementwise": 4 * len(suite.elementwise),
        "copy": len(suite.copies),
        "gather": len(suite.gathers),
        "scatter_add": len(suite.gathers),
        "loss": len(suite.losses),
        "optimizer": len(suite.optimizers),
        "select": len(suite.selects),
        "sample": len(suite.draws),
    }
    short = {name: count for name, count in counts.items() if count <= len(terms_of(name, CACHES))}
    assert not short
