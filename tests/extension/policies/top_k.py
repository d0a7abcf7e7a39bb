"""A codec: of each row only the elements of the largest magnitude travel."""

from array_api_compat import array_namespace, device
from pydantic import Field

from simgnn.emit import from_bytes, to_bytes
from simgnn.policy import Array, Codec, PolicyContext
from simgnn.program.ops import ITEM_BYTES


class TopK(Codec):
    """Place (int32) and value of the ``keep`` largest elements of a row; receivers read zeros for the others."""

    keep: int = Field(default=8, ge=1, description="elements of a row that travel")

    def row_bytes(self, width: int, dtype: str) -> int:
        return min(self.keep, width) * (ITEM_BYTES["int32"] + ITEM_BYTES[dtype])

    def encode(self, context: PolicyContext, rows: Array, names: Array) -> Array:
        xp, kept = array_namespace(rows), min(self.keep, rows.shape[1])
        places = xp.argsort(-xp.abs(rows), axis=1, stable=True)[:, :kept]
        values = xp.reshape(xp.reshape(rows, (-1,))[self._flat(places, rows.shape[1])], places.shape)
        return xp.concat((to_bytes(xp.astype(places, xp.int32)), to_bytes(values)), axis=1)

    def decode(self, context: PolicyContext, packed: Array, width: int, dtype: str) -> Array:
        xp, kept = array_namespace(packed), min(self.keep, width)
        places = xp.astype(from_bytes(packed[:, : 4 * kept], "int32"), xp.int64)
        values = from_bytes(packed[:, 4 * kept :], dtype)
        rows = xp.zeros(packed.shape[0] * width, dtype=values.dtype, device=device(packed))
        rows[self._flat(places, width)] = xp.reshape(values, (-1,))
        return xp.reshape(rows, (packed.shape[0], width))

    def _flat(self, places: Array, width: int) -> Array:
        """Places within rows as places within all elements."""
        xp = array_namespace(places)
        first = xp.arange(places.shape[0], dtype=xp.int64, device=device(places)) * width
        return xp.reshape(places + first[:, None], (-1,))
