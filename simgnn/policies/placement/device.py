"""Everything stays in the device's memory."""

from typing import Literal

from simgnn.emit.batches.placement import Placement


class Device(Placement):
    """A rank's features, activations, parameters and optimizer state are in the memory of its device."""

    kind: Literal["device"] = "device"
