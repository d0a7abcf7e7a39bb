"""Which ranks share a host: the machine that they run on and its network, whatever the experiment calls hosts."""

from collections.abc import Sequence
from pathlib import Path

from executor.world.clock import kernel_identity

NETWORK = Path("/proc/self/ns/net")


def host_identity() -> str:
    """Names this host: the running kernel and its network. Network namespaces of one kernel are hosts of their own,
    since only their links join them; containers that share the machine's network are not."""
    try:
        return f"{kernel_identity()}/{NETWORK.stat().st_ino}"
    except OSError:
        return kernel_identity()


def host_numbers(identities: Sequence[str]) -> tuple[int, ...]:
    """Number of each rank's host: hosts are numbered as their first ranks follow one another."""
    order = list(dict.fromkeys(identities))
    return tuple(order.index(identity) for identity in identities)


def one_machine_notes(declared: Sequence[int], found: Sequence[int]) -> list[str]:
    """A sentence for each host that stood for several of the experiment's, so that nobody takes times of its loopback
    for those of a network. ``declared`` [P]: host of each rank as the experiment has it; ``found`` [P]: as it was."""
    hosts, notes = len(set(declared)), []
    for machine in dict.fromkeys(found):
        together = sorted({int(host) for host, at in zip(declared, found, strict=True) if at == machine})
        if len(together) < 2:
            continue
        which = f"all {hosts} hosts" if len(together) == hosts else f"hosts {', '.join(map(str, together))} of {hosts}"
        notes.append(
            f"one machine stood for {which}: what they sent one another never left it (loopback), so bytes are those "
            f"of {hosts} hosts and times are not; for links of a stated rate: python -m executor testbed"
        )
    return notes
