"""Policies called as ops call them: a place to be called at, codecs on arrays, actions by their class."""

from typing import Any

import numpy as np
import torch

from executor.policies.accelerated import accelerated, accelerated_class
from simgnn.policies.codec.none import Plain
from simgnn.policy import Action, Codec, Policy, PolicyContext

HERE = PolicyContext(7, 0, 0, 1, "forward", 0, 2)
"""Rank 0 of 2 in its first epoch."""


def encoded(codec: Codec, rows: Any, names: Any = None, here: PolicyContext = HERE) -> Any:
    """Bytes of rows, which are called 0, 1, .. unless ``names`` says otherwise."""
    if names is None:
        names = np.arange(len(rows)) if isinstance(rows, np.ndarray) else torch.arange(len(rows), device=rows.device)
    return codec.encode(here, rows, names)


def decoded(codec: Codec, packed: Any, width: int, like: Any) -> Any:
    """Rows from bytes, in the type of ``like``."""
    return codec.decode(HERE, packed, width, str(like.dtype).removeprefix("torch."))


def does(action: type[Action[Any]], owner: Policy, codec: Codec | None = None, fast: bool = True) -> Any:
    """``run`` of an action of ``owner``, with the executor's kernels if ``fast``."""
    codec = Plain() if codec is None else codec
    if fast:
        return accelerated_class(action)(accelerated(owner), accelerated(codec)).run
    return action(owner, codec).run
