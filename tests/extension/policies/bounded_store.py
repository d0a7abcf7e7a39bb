"""A placement: input rows of mini-batches lie with their hosts, and no batch may have more than so many."""

from collections.abc import Iterator

from pydantic import Field

from simgnn.emit import RowStore
from simgnn.policy import Choices, Refusal
from simgnn.program.sizes import IntArray


class BoundedStore(RowStore):
    """Devices keep no rows of other hosts; what does not fit is rejected before the run."""

    most_rows: int = Field(default=2**31 - 1, ge=1, description="input rows of a batch that a device has room for")

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        if choices.train.eval_every:
            yield Refusal(
                "train", "eval_every", "got an evaluation beside batches, expected 0: it needs all rows at once"
            )

    def check_fits(self, cached: IntArray, largest: IntArray, window: int, row_bytes: int) -> None:
        if largest.max() > self.most_rows:
            raise ValueError(f"a batch has {largest.max()} rows, expected at most {self.most_rows} (most_rows)")
