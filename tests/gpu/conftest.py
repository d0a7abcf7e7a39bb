"""Tests that need CUDA: skipped with a reason where there is none."""

from collections.abc import Callable

import pytest
import torch


@pytest.fixture
def gpus() -> Callable[[int], None]:
    """Skips unless this host has so many CUDA devices and NCCL."""

    def need(count: int) -> None:
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if found < count:
            pytest.skip(f"needs {count} CUDA devices, this host has {found}")
        if not torch.distributed.is_nccl_available():
            pytest.skip("this build of torch has no NCCL")

    return need
