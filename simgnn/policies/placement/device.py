"""Everything stays in the device's memory."""

from typing import ClassVar, Literal

from simgnn.policy import Policy


class Device(Policy):
    """Features, activations, parameters and optimizer state of a rank in the memory of its device."""

    slot: ClassVar[str] = "placement"

    kind: Literal["device"] = "device"
