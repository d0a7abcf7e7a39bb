"""A testbed that is up for one process, and goes with it: ``up --hold``. Whoever else would change it is refused."""

import os
import select
from collections.abc import Callable

from executor.testbed import lifecycle, network
from executor.testbed.declaration import Declaration
from executor.testbed.lifecycle import Made, undisturbed
from executor.testbed.state import Record, holding, is_recorded, locked

LOOK_S = 1.0
"""How long a holder takes to see that its testbed was taken down: seldom, for it may wait beside a measurement."""


def hold(declared: Declaration, tell: Callable[[Made], None]) -> None:
    """Bring a testbed about, ``tell`` that it is up, and keep it until standard input ends, this process is interrupted
    or somebody takes it down. Taken down is what was made here: one that was up before, and is as declared, stays.

    Raises :class:`BackendError` where another process holds it or runs in it.
    """
    network.require_tools()
    with holding(declared.name):
        with locked(declared.name):
            made = lifecycle.make(declared, replace=True, holds=True)
        try:
            tell(made)
            _wait(declared.name)
        finally:
            with undisturbed():
                _let_go(declared.name)


def remove_orphan(name: str) -> bool:
    """Remove what a holder left that was killed; whether there was any. What is up for others stays."""
    network.require_tools()
    if not lifecycle.is_orphan(Record.read(name)):
        return False
    with locked(name, lifecycle.LOCK_PATIENCE_S):
        found = Record.read(name)
        if found is None or not lifecycle.is_orphan(found):
            return False
        lifecycle.remove(found)
    return True


def _wait(name: str) -> None:
    """Until standard input ends, or there is no such testbed any more."""
    standard_input = 0
    while is_recorded(name):
        ready, _, _ = select.select([standard_input], [], [], LOOK_S)
        if ready and not os.read(standard_input, 4096):
            return


def _let_go(name: str) -> None:
    found = Record.read(name)
    if found is not None and found.holder == os.getpid():
        lifecycle.take_down(found)
