"""A freshness: a row travels once its norm has changed by more than a share."""

from array_api_compat import array_namespace
from pydantic import Field

from simgnn.emit import CachedRows, State
from simgnn.policy import Array, PolicyContext


class NormChange(CachedRows):
    """A row is held back while its norm is within ``share`` of that of the row as last sent; with 0, while it is the
    same row."""

    share: float = Field(default=0.1, ge=0, lt=1, description="change of the norm up to which a row is held back")

    def moved(self, context: PolicyContext, rows: Array, cached: Array, state: State) -> Array:
        xp = array_namespace(rows)
        if not self.share:
            return xp.any(rows != cached, axis=1)
        new, old = (xp.sqrt(xp.sum(each * each, axis=1)) for each in (rows, cached))
        return ~(xp.abs(new - old) <= self.share * old)
