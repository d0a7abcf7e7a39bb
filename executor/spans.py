"""Which epochs are handed to the interpreter at once."""

from collections.abc import Iterator

SPAN = 512
"""Most turns at once."""


def spans(start: int, epochs: int, every: int, keep: int, steps: int) -> Iterator[range]:
    """Runs of epochs, of ``steps`` turns each, between which something else happens: an evaluation, a checkpoint, the
    end of warm-up. Nothing runs ahead over the end of one, so that no more of them are made than have to be."""
    begin = start
    for epoch in range(start + 1, epochs + 1):
        stop = epoch in (start + 1, epochs) or (epoch - begin + 1) * steps > SPAN
        if stop or (every and epoch % every == 0) or (keep and epoch % keep == 0):
            yield range(begin, epoch)
            begin = epoch
