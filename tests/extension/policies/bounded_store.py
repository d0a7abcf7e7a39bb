"""A placement: input rows of mini-batches lie with their hosts, and no batch may have more of them than a bound."""

from pydantic import Field

from simgnn.emit import RowStore
from simgnn.policy import ConfigError
from simgnn.program.sizes import IntArray


class BoundedStore(RowStore):
    """Devices keep no rows of other hosts; a batch that is too large is rejected before the run."""

    most_rows: int = Field(default=2**31 - 1, ge=1, description="input rows of a batch that a device has room for")

    def check_fits(self, cached: IntArray, largest: IntArray, window: int, row_bytes: int) -> None:
        if largest.max() > self.most_rows:
            raise ConfigError(
                f"placement.most_rows: got {self.most_rows}, expected at least {largest.max()}, the input rows of the "
                "largest batch: allow more, or make batches smaller (batching.batch_size, batching.fanouts)"
            )
