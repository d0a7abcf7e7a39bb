"""A queue for each connection in front of a link, served packet by packet in turn: as fq_codel does, which most Linux
distributions put before their network cards, but with what kernels without it have, too: HTB and a classic BPF program.

In one queue for all, a small message waits behind as much as the senders of large ones have put there, which is a
matter of TCP's congestion control, so of the machine that a testbed happens to be on.
"""

DISCIPLINE, FILTER = "htb", "bpf"
SHAPER, PARENT, CHILD = "1:", "1:1", "10:"
"""Handles: of the shaper, of its inside, where packets come one by one, and of what lies there."""
QUEUES = 1024
"""Connections are spread over them by their ports; two that meet in one share its turn. A power of two."""
PACKET_BYTES = 1514
"""A turn."""
BURST_BYTES = 1 << 16
HEADROOM = 16
"""What HTB allows each queue, in rates of the link, and at once: no limit in effect, only turns."""
SOURCE_PORT, TARGET_PORT = 34, 36
"""Bytes into a frame: behind headers of Ethernet (14) and of IPv4 without options (20)."""


def fair_queues(interface: str, bytes_per_s: float) -> list[str]:
    """Lines for ``tc -batch``, after the shaper of this rate has been made with the handle ``SHAPER``."""
    limit = f"{round(bytes_per_s * 8 * HEADROOM)}bit"
    classes = [
        f"class add dev {interface} parent {CHILD} classid {CHILD}{number:x} {DISCIPLINE} rate {limit} "
        f"quantum {PACKET_BYTES} burst {BURST_BYTES} cburst {BURST_BYTES}"
        for number in range(1, QUEUES + 1)
    ]
    return [
        f"qdisc add dev {interface} parent {PARENT} handle {CHILD} {DISCIPLINE} default 1",
        *classes,
        f"filter add dev {interface} parent {CHILD} protocol all prio 1 {FILTER} bytecode '{spreading()}'",
    ]


def spreading() -> str:
    """Class of a packet: the first + ((source port XOR target port) / 2) mod ``QUEUES``, as classic BPF. Linux gives
    the connections to one port source ports that are all odd, or all even."""
    first = (int(CHILD.rstrip(":"), 16) << 16) + 1
    load, keep, exclusive_or, halve, mask, add, done = 40, 7, 172, 116, 84, 4, 22
    code = [
        (load, SOURCE_PORT),
        (keep, 0),
        (load, TARGET_PORT),
        (exclusive_or, 0),
        (halve, 1),
        (mask, QUEUES - 1),
        (add, first),
        (done, 0),
    ]
    return ",".join([str(len(code)), *(f"{operation} 0 0 {operand}" for operation, operand in code)])
