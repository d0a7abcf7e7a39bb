"""Everything stays in the device's memory."""

from typing import Literal

from simgnn.emit.batches.placement import Placement


class Device(Placement):
    """Features, activations, parameters and optimizer state of a rank in the memory of its device."""

    kind: Literal["device"] = "device"
