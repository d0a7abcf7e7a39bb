"""Small graphs that several tests of this folder write in one format and read back."""

import numpy as np
import pytest


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    """A path 0-1-2-3 and an isolated vertex 4, in the .npz format."""
    return {
        "indptr": np.array([0, 1, 3, 5, 6, 6], np.int64),
        "indices": np.array([1, 0, 2, 1, 3, 2], np.int32),
        "feat": np.arange(10, dtype=np.float16).reshape(5, 2),
        "labels": np.array([0, 1, 2, 0, 1]),
        "train_mask": np.array([True, True, False, False, False]),
        "val_mask": np.array([False, False, True, False, False]),
        "test_mask": np.array([False, False, False, True, True]),
    }
