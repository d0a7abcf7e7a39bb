"""Reports what a policy of the user's own raises: one sentence that names its file, class and method."""

import inspect
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from simgnn.errors import ConfigError, SimgnnError
from simgnn.policy import Policy
from simgnn.registry import is_external


@contextmanager
def reported(policies: Iterable[Policy]) -> Iterator[None]:
    """Turn what the user's own among ``policies`` raise inside the block into :class:`ConfigError`."""
    try:
        yield
    except SimgnnError:
        raise
    except Exception as error:
        told = blamed(policies, error)
        if told is None:
            raise
        raise ConfigError(told) from error


def blamed(policies: Iterable[Policy], error: BaseException) -> str | None:
    """Which of the user's policies raised an error, where and what; None where none of their files took part."""
    files = {inspect.getfile(sys.modules[type(one).__module__]): one for one in policies if is_external(one)}
    steps = [step for step in traceback.walk_tb(error.__traceback__) if step[0].f_code.co_filename in files]
    if not steps:  # the simulator's event loop raises a copy of what an event raised
        return None if error.__cause__ is None else blamed(files.values(), error.__cause__)
    frame, line = steps[-1]
    code, policy = frame.f_code, files[frame.f_code.co_filename]
    message = (str(error).splitlines() or [""])[0]
    return (
        f"{policy.slot}.kind = '{policy.label}': {code.co_qualname} raised {type(error).__name__}: {message} "
        f"({code.co_filename}:{line})"
    )
