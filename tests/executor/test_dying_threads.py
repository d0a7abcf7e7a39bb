"""A thread that dies ends its rank with an error: nobody waits for it."""

import threading
from collections.abc import Callable, Sequence

import pytest
import torch

from executor.rank.interpreter import Interpreter
from executor.rank.lanes import Workers
from simgnn.errors import BackendError
from simgnn.program.dispatch import Observed, Ready
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Buffer, Op, Stream
from tests.executor.harness import Notes, reads, tiny_program, world_context


def _error_of(job: Callable[[], object]) -> BaseException | None:
    """What a job raises, in a thread of its own; the test fails where it has not ended after 10 seconds."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            job()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it waits for a thread that is gone"
    return raised[0] if raised else None


class _Refusing:
    """Chooses nothing where an op of a given name is ready."""

    picks = True

    def __init__(self, refused: str) -> None:
        self.refused = refused

    def init_pick(self) -> None:
        """No state."""

    def pick(self, ready: Sequence[Ready], observed: Observed, state: None) -> tuple[int, None]:
        """The first."""
        if ready[0].name == self.refused:
            raise LookupError(f"no choice for {self.refused}")
        return 0, None


@pytest.mark.parametrize("stream", ["compute", "cpu"])
def test_a_pick_that_fails_ends_the_run_whichever_stream_it_chooses_for(stream: str) -> None:
    """``compute`` runs in the thread that waits for all of them, ``cpu`` in one of its own."""
    ops = [Op(name, OpKind.COPY, name, reads("rows"), reads(f"out/{name}")) for name in ("compute", "cpu")]
    buffers = [Buffer("rows", 1, 1, persistent=True), Buffer("out/compute", 1, 1), Buffer("out/cpu", 1, 1)]
    program = tiny_program(1, {"steady": ops}, buffers, streams=[Stream("compute"), Stream("cpu")], groups=[])
    context = world_context(program, 0, {"rows": torch.ones(1, 1)})
    interpreter = Interpreter(program, context, Notes(), schedule=_Refusing(stream))
    error = _error_of(lambda: interpreter.train(range(3)))
    assert isinstance(error, BackendError)
    said = f"rank 0, epoch 1, stream '{stream}': LookupError: no choice for {stream} (in _Refusing.pick, at "
    assert str(error).startswith(said)
    interpreter.close()


def test_a_thread_that_cannot_begin_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three, so two wait for it too."""
    first, makes = threading.Lock(), torch.ones

    def ones(*shape: int) -> torch.Tensor:
        if first.acquire(blocking=False):
            raise MemoryError("no stack")
        return makes(*shape)

    monkeypatch.setattr(torch, "ones", ones)
    before = set(threading.enumerate())
    error = _error_of(lambda: Workers(3))
    assert isinstance(error, BackendError)
    assert str(error) == "a stream's thread could not begin: MemoryError: no stack"
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive(), "the others end, too"
