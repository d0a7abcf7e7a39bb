"""A freshness: each row travels in every k-th epoch, from a phase that is drawn for it."""

from array_api_compat import array_namespace
from pydantic import Field

from simgnn.emit import CachedRows, State, counted, draws, signed, stream_key
from simgnn.policy import Array, PolicyContext


class EveryKth(CachedRows):
    """All rows travel in the first epoch, then each in every ``interval``-th."""

    interval: int = Field(default=2, ge=1, description="epochs from one transfer of a row to the next")

    def moved(self, context: PolicyContext, rows: Array, cached: Array, state: State) -> Array:
        xp = array_namespace(rows)
        names = counted(rows, rows.shape[0]) if context.gathered is None else context.gathered
        drawn = draws(signed(int(stream_key(context.seed, f"phase/{context.rank}"))), names)
        return xp.asarray((drawn + context.epoch) % self.interval == 0) | (context.epoch == 0)
