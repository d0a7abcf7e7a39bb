"""Lists the hardware profiles and the systems that have a name."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simgnn.errors import HardwareError
from simgnn.experiment.load import load_experiment, system_names
from simgnn.experiment.slots import SLOTS
from simgnn.hardware.profile.library import calibration_path, known_profiles
from simgnn.hardware.profile.profile import load_profile
from simgnn.hardware.show.describe import counts

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Listing:
    """Named things: iterates over the names that other functions accept. ``rows``: what is known of each, by name of
    column."""

    names: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]

    def table(self) -> "pd.DataFrame":
        """Return a row for each."""
        # pandas: loaded when a table is made
        import pandas as pd

        return pd.DataFrame(list(self.rows))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def _repr_html_(self) -> str:
        html: str = self.table().to_html(index=False, na_rep="-")
        return html


def list_hardware() -> Listing:
    """List the hardware profiles that have a name, and this machine's last calibration: hosts, devices, how many
    numbers come from which source. A broken profile has a row, but no name in :attr:`Listing.names`."""
    found = dict(sorted(known_profiles().items()))
    if calibration_path().is_file():
        found["(last calibration)"] = calibration_path()
    rows: list[Mapping[str, Any]] = []
    for name, path in found.items():
        fault = f"broken: simgnn hardware check {path}"
        row: dict[str, Any] = {"profile": name, "hosts": None, "devices": None, "sources": {}, "about": fault}
        with suppress(HardwareError):
            profile = load_profile(path)
            sources = {source: count for source, count in profile.source_counts().items() if count}
            row |= {**counts(profile), "sources": sources, "about": profile.meta.description, "path": str(path)}
        rows.append(row)
    names = (row["profile"] for row in rows if "path" in row and row["path"] != str(calibration_path()))
    return Listing(tuple(names), tuple(rows))


def list_systems() -> Listing:
    """List the shipped systems, with the kind of policy in each slot."""
    tables = {name: load_experiment(name).to_table() for name in system_names()}
    rows = ({"system": name, **{slot: table[slot]["kind"] for slot in SLOTS}} for name, table in tables.items())
    return Listing(tuple(tables), tuple(rows))
