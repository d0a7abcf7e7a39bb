"""How a faster kernel stands for a function of a policy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Kernel:
    """``run`` takes the arguments of the function that it stands for; ``warm_up(policy, rows)`` compiles it, by a call
    on a few rows."""

    run: Callable[..., Any]
    warm_up: Callable[[Any, torch.Tensor], object]


Kernels = Mapping[Callable[..., Any], Kernel]
"""Function of a class -> its kernel."""
