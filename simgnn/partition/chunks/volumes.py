"""Rows that chunked training moves in one pass over a layer, and what they cost."""

from dataclasses import asdict, dataclass
from typing import Literal

from simgnn.hardware.price.transfer_rates import TransferRates

PeerRows = Literal["eq4", "exact"]


@dataclass(frozen=True)
class Volumes:
    """Rows of one pass over one layer, summed over ranks and batches. N: rows that a chunk needs; T: rows of a batch,
    at their owners; R: rows of N that other ranks own. Source: HongTu; names are those of the paper's equation 4.

    ``v_ori``: N, what a chunk copies from the host by itself. ``v_reuse_only``: N without what the chunk before needs,
    too. ``v_p2p``: T, each row of a batch once. ``v_ru``: T without what its owner held in the batch before. ``v_dd``:
    R, rows read from peers. ``v_ddr``: R without what the chunk before needs.
    """

    v_ori: int
    v_reuse_only: int
    v_p2p: int
    v_ru: int
    v_dd: int
    v_ddr: int

    def as_dict(self) -> dict[str, int]:
        """Return all volumes by name."""
        return asdict(self)


def transfer_cost(
    v_ori: int, v_p2p: int, v_ru: int, v_dd: int, rates: TransferRates, peer_rows: PeerRows
) -> float:  # fmt: skip
    """Compute the seconds of a pass over a layer for each byte of a row, without overlap.

    ``peer_rows``: "eq4" counts ``v_ori - v_p2p`` rows from peers, as HongTu's equation 4 does; "exact" counts ``v_dd``,
    which is more where an owner loads rows that it does not need itself."""
    read = v_ori - v_p2p if peer_rows == "eq4" else v_dd
    cost = v_ru / rates.host_to_device_bytes_per_s + (v_p2p - v_ru) / rates.reuse_bytes_per_s
    if rates.device_to_device_bytes_per_s is not None:
        cost += read / rates.device_to_device_bytes_per_s
    return cost
