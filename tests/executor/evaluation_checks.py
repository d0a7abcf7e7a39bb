"""What one process says of the evaluations of a run."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.nn import functional

from simgnn.graph.graph import Graph


def assert_evaluated(graph: Graph, scores: Sequence[torch.Tensor], found: Mapping[int, Sequence[float]]) -> None:
    """``found``: counts of evaluated epochs, float64 [12] each; ``scores`` [V, classes] of one process, by epoch.

    Losses of splits are divided as that of training is; all other numbers are counts."""
    assert graph.train_mask is not None
    labels = torch.from_numpy(np.array(graph.labels))
    trained = int(graph.train_mask.sum())
    for epoch, counts in found.items():
        expected: list[float] = []
        for mask in (graph.train_mask, graph.validation_mask, graph.test_mask):
            rows = torch.from_numpy(np.flatnonzero(mask))
            picked, wanted = scores[epoch][rows], labels[rows]
            if graph.multilabel:
                total = functional.binary_cross_entropy_with_logits(picked, wanted.to(picked.dtype), reduction="sum")
                chosen = picked > 0
                both, either = int((chosen & wanted).sum()), int(chosen.sum() + wanted.sum())
                expected += [float(total) / trained / graph.classes, 2 * both, either, 0]
            else:
                total = functional.cross_entropy(picked, wanted, reduction="sum")
                expected += [float(total) / trained, int((picked.argmax(1) == wanted).sum()), len(rows), 0]
        assert counts[1::4] == expected[1::4], f"epoch {epoch}: other vertices are right"
        np.testing.assert_allclose(counts, expected, rtol=1e-9, err_msg=f"epoch {epoch}")
