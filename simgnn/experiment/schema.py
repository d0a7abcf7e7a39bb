"""``Experiment``: the checked content of an experiment file."""

from collections.abc import Callable, Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, field_validator

from simgnn.emit.batches.neighbours import Batching, NeighbourSampling
from simgnn.emit.batches.placement import Placement, RowStore
from simgnn.emit.freshness import Freshness
from simgnn.errors import ConfigError
from simgnn.experiment.problems import line, parse_table
from simgnn.experiment.sections import (
    ClusterSection,
    GraphSection,
    HardwareSection,
    ModelSection,
    Section,
    TrainSection,
)
from simgnn.experiment.slots import DEFAULT_KIND, SLOTS, Stated, settled, usable_class
from simgnn.policy import Codec, CommunicationTraits, Partitioner, Schedule
from simgnn.registry import reported
from simgnn.spelling import nearest

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
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of all random numbers")

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        if "/" in name or "\\" in name or name.startswith(".") or not name.isprintable():
            raise ValueError("expected a name of a folder: printable, without '/', not starting with '.'")
        return name


class Experiment(BaseModel):
    """One experiment, which is planned, simulated and run. Create it with :meth:`from_table`, which checks it.

    Slots hold policies: frozen values of the classes that :func:`simgnn.registry.policy_class` finds."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str = "experiment"
    seed: int = 0
    graph: GraphSection = GraphSection()
    model: ModelSection = ModelSection()
    cluster: ClusterSection = ClusterSection()
    partition: SerializeAsAny[Partitioner]
    communication: SerializeAsAny[CommunicationTraits]
    batching: SerializeAsAny[Batching]
    freshness: SerializeAsAny[Freshness]
    codec: SerializeAsAny[Codec]
    placement: SerializeAsAny[Placement]
    schedule: SerializeAsAny[Schedule]
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
        """Check a nested table (as TOML gives it) as a whole, and return the experiment.

        ``origin`` returns where a key path was written, for messages; ``trains`` = False leaves out the checks that
        only matter when the partition is trained on; ``stated`` returns whether a user wrote a key path: other options
        fall back to their default if they have no effect. Raises :class:`ConfigError` with a line for each fault."""
        known = ("name", "seed", *SECTIONS, *SLOTS)
        problems = [
            line((key,), f"unknown key{nearest(key, known)}; known keys: {', '.join(known)}", origin)
            for key in table
            if key not in known
        ]
        basics = {key: table[key] for key in ("name", "seed") if key in table}
        values: dict[str, Any] = {}
        parsed = parse_table(Basics, basics, (), origin, problems)
        if parsed is not None:
            values.update(parsed.model_dump())
        for key, section in SECTIONS.items():
            values[key] = parse_table(section, table.get(key, {}), (key,), origin, problems)
        for slot in SLOTS:
            entries = table.get(slot, {})
            kind = entries.get("kind", DEFAULT_KIND[slot]) if isinstance(entries, Mapping) else DEFAULT_KIND[slot]
            try:
                found = usable_class(slot, kind)
            except ConfigError as error:
                problems += [line((slot, "kind"), problem, origin) for problem in error.problems]
            else:
                with reported([(found, kind)]):  # users' own checks of options
                    values[slot] = parse_table(found, entries, (slot,), origin, problems)
        if not problems:  # what has faults of its own cannot be asked about others
            values, problems = settled(values, origin, stated, trains)
        if problems:
            raise ConfigError(problems)
        return cls(**values)

    @property
    def sampling(self) -> NeighbourSampling | None:
        """The batching policy if training is on mini-batches; None on the full graph."""
        return cast(NeighbourSampling, self.batching) if self.batching.mini_batches else None

    @property
    def row_store(self) -> RowStore | None:
        """The placement policy if it stores input rows for mini-batches, else None."""
        return cast(RowStore, self.placement) if "batches" in self.placement.serves else None

    def to_table(self) -> dict[str, Any]:
        """A nested table that :meth:`from_table` reads back to an equal value, without None: TOML has no null."""
        table = self.model_dump(mode="json", exclude_none=True)
        # a partitioner may reject options that are stated together, though each has a default
        stated = self.partition.model_dump(mode="json", exclude_unset=True)
        table["partition"] = {"kind": table["partition"]["kind"], **stated}
        return {key: value for key, value in table.items() if value != {}}

    def with_cluster(self, hosts: int, ranks_per_host: int) -> "Experiment":
        """Return the experiment with this number of hosts and ranks per host."""
        return self.model_copy(update={"cluster": ClusterSection(hosts=hosts, ranks_per_host=ranks_per_host)})

    @property
    def ranks(self) -> int:
        """P; hosts and ranks per host must be known (``simgnn.planner.prepare`` reads them from the profile)."""
        return len(self.rank_hosts())

    def rank_hosts(self) -> tuple[int, ...]:
        """Return the host of each rank: ranks fill host after host."""
        hosts, each = self.cluster.hosts or 1, self.cluster.ranks_per_host or 1
        return tuple(host for host in range(hosts) for _ in range(each))
