"""What ranks that tests fork off have loaded when they start: see :func:`tests.executor.harness.run_ranks`.

Each loads it by itself otherwise, seconds of processor time a rank: torch sympy at the first backward, pyarrow pandas
at the first table, Numba its targets at the first kernel. Nothing here may start a thread.
"""

import gc

import pyarrow.pandas_compat  # noqa: F401
import pytest  # noqa: F401
import torch.fx.experimental.symbolic_shapes  # noqa: F401
from numba.core.registry import cpu_target

import executor.rank.session  # noqa: F401
import tests.executor.runs  # noqa: F401

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
gc.freeze()  # as ranks do with what they import: a collection of all of it takes 0.1 s, and a run asks for three
