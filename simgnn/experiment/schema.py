"""``Experiment``: everything that one experiment file says, checked."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, field_validator

from simgnn.errors import ConfigError
from simgnn.experiment.combinations import combination_problems
from simgnn.experiment.idle_options import Stated, settled
from simgnn.experiment.problems import check_top_level, parse_table, unknown_kind
from simgnn.experiment.sections import (
    ClusterSection,
    GraphSection,
    HardwareSection,
    ModelSection,
    Section,
    TrainSection,
)
from simgnn.experiment.slots import DEFAULT_KIND, DESIGNED, SLOTS, kinds
from simgnn.partition.kinds import PartitionPolicy
from simgnn.policies.batching.base import Batching
from simgnn.policies.batching.full import Full
from simgnn.policies.codec.none import Plain
from simgnn.policies.communication.base import Communication
from simgnn.policies.communication.halo import Halo
from simgnn.policies.freshness.always import Always
from simgnn.policies.freshness.base import Freshness
from simgnn.policies.placement.device import Device
from simgnn.policies.schedule.bsp import Bsp
from simgnn.policy import Codec, Policy, Schedule

SECTIONS: Mapping[str, type[Section]] = {
    "graph": GraphSection,
    "model": ModelSection,
    "cluster": ClusterSection,
    "train": TrainSection,
    "hardware": HardwareSection,
}


class Basics(Section):
    """The keys outside any table."""

    name: str = Field(default="experiment", min_length=1, max_length=100, description="name in tables and files")
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of everything random")

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        if "/" in name or "\\" in name or name.startswith(".") or not name.isprintable():
            raise ValueError("expected a name of a folder: printable, without '/', not starting with '.'")
        return name


class Experiment(BaseModel):
    """One experiment: the same value is planned, simulated and run. Make it with :meth:`from_table`, which checks.

    Slots hold policies: frozen values of the classes that :func:`simgnn.experiment.slots.kinds` names.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str = "experiment"
    seed: int = 0
    graph: GraphSection = GraphSection()
    model: ModelSection = ModelSection()
    cluster: ClusterSection = ClusterSection()
    partition: SerializeAsAny[PartitionPolicy]
    communication: SerializeAsAny[Communication] = Halo()
    batching: SerializeAsAny[Batching] = Full()
    freshness: SerializeAsAny[Freshness] = Always()
    codec: SerializeAsAny[Codec] = Plain()
    placement: SerializeAsAny[Policy] = Device()
    schedule: SerializeAsAny[Schedule] = Bsp()
    train: TrainSection = TrainSection()
    hardware: HardwareSection = HardwareSection()

    @classmethod
    def from_table(
        cls,
        table: Mapping[str, Any],
        origin: Callable[[tuple[str, ...]], str] = lambda path: "",
        trains: bool = True,
        stated: Stated = lambda path: True,
    ) -> "Experiment":
        """Check a nested table (as TOML gives it) as a whole.

        ``origin`` tells where a key path was written, for messages; ``trains`` = False leaves out the checks that only
        matter when the partition is trained on; ``stated`` tells which key paths a user wrote: other options go back to
        their default where they have no effect. Raises :class:`ConfigError` with every fault, one
        line each: key path, what was got, what was expected, the nearest known name and a remedy.
        """
        known = ("name", "seed", *SECTIONS, *SLOTS)
        problems = check_top_level(table, known, origin)
        basics = {key: table[key] for key in ("name", "seed") if key in table}
        values: dict[str, Any] = {}
        parsed = parse_table(Basics, basics, (), origin, problems)
        if parsed is not None:
            values.update(parsed.model_dump())
        for key, section in SECTIONS.items():
            values[key] = parse_table(section, table.get(key, {}), (key,), origin, problems)
        for slot in SLOTS:
            values[slot] = _parse_slot(slot, table.get(slot, {}), origin, problems)
        values, idle = settled(values, origin, stated)
        problems += idle + combination_problems(values, origin, trains)
        if problems:
            raise ConfigError(problems)
        return cls(**values)

    def to_table(self) -> dict[str, Any]:
        """The nested table that :meth:`from_table` reads back to an equal value; None is left out: TOML has no null."""
        table = self.model_dump(mode="json", exclude_none=True)
        # what METIS may not be told together with several constraints must not appear because it has a default
        table["partition"] = {
            "kind": table["partition"]["kind"],
            **self.partition.model_dump(mode="json", exclude_unset=True),
        }
        return {key: value for key, value in table.items() if value != {}}

    def with_cluster(self, hosts: int, ranks_per_host: int) -> "Experiment":
        """The same experiment on a stated number of hosts and ranks."""
        return self.model_copy(update={"cluster": ClusterSection(hosts=hosts, ranks_per_host=ranks_per_host)})

    @property
    def ranks(self) -> int:
        """P; hosts and ranks per host must be known (``simgnn.experiment.prepare`` asks the profile)."""
        return len(self.rank_hosts())

    def rank_hosts(self) -> tuple[int, ...]:
        """Host of each rank: ranks fill host after host."""
        hosts, each = self.cluster.hosts or 1, self.cluster.ranks_per_host or 1
        return tuple(host for host in range(hosts) for _ in range(each))


def _parse_slot(slot: str, table: Any, origin: Callable[[tuple[str, ...]], str], problems: list[str]) -> Any:
    kind = table.get("kind", DEFAULT_KIND[slot]) if isinstance(table, Mapping) else DEFAULT_KIND[slot]
    available = kinds(slot)
    if not isinstance(kind, str) or kind not in available:
        problems.append(unknown_kind(slot, kind, tuple(available), DESIGNED[slot], origin))
        return None
    return parse_table(available[kind], table, (slot,), origin, problems)
