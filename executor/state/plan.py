"""The plan in a run directory as the executor reads it: program, paths of artefacts, how to train."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from simgnn.errors import BackendError, ConfigError
from simgnn.model.spec import LayerSpec
from simgnn.policy import Policy
from simgnn.program.dispatch import Picks
from simgnn.program.program import Program
from simgnn.program.storage import load_program, program_digest
from simgnn.record.plan import BatchesTable, read_plan
from simgnn.record.result import DroppedEdges, check_unfinished
from simgnn.record.rundir import RunDirectory

if TYPE_CHECKING:
    from simgnn.partition.local.shards import Shard
    from simgnn.partition.local.vertex_cut import RankGraph
    from simgnn.partition.store import PartitionArtifact


@dataclass(frozen=True)
class RunPlan:
    """``plan/plan.json`` of a run directory, checked. ``train``: the fields of ``[train]``; ``policies``: those
    that act while training, by slot; ``batches``: settings of mini-batches, None in full-graph training; ``continues``:
    digests of earlier programs of this run, of fewer epochs; ``class_names``: of classes, or none. ``device_bytes``:
    the budget of each rank's device (0: none). ``dropped_edges``, ``notes``: what results must say of the
    partition. ``chunks``: folder of the chunks of each rank (None: training is not chunk by chunk)."""

    root: Path
    name: str
    partition: Path
    shards: Path
    ranks: int
    layers: tuple[LayerSpec, ...]
    classes: int
    multilabel: bool
    train: Mapping[str, Any]
    seed: int
    digest: str
    threads_per_rank: int | None
    synthetic: tuple[str, ...]
    policies: Mapping[str, Policy] = field(default_factory=dict)
    batches: BatchesTable | None = None
    continues: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    device_bytes: int = 0
    dropped_edges: DroppedEdges | None = None
    notes: tuple[str, ...] = ()
    chunks: Path | None = None

    @classmethod
    def open(cls, root: Path) -> "RunPlan":
        """Read a run directory. Raises :class:`ConfigError` where no run can start from it."""
        path = root / "plan" / "plan.json"
        remedy = "make it with simgnn run --prepare"
        if not path.is_file():
            raise ConfigError(f"{root} is no run directory: it holds no plan/plan.json; {remedy}")
        try:
            plan = read_plan(path)
            policies = plan.acting()
        except ConfigError as error:
            raise ConfigError([f"{problem}; {remedy} again" for problem in error.problems]) from error
        if plan.partition is None or plan.shards is None:
            raise ConfigError(
                f"{path} names no partition or no shards: it is the plan of a simulation; "
                "prepare a run with simgnn run --prepare"
            )
        return cls(
            root=root,
            name=plan.name,
            partition=Path(plan.partition),
            shards=Path(plan.shards),
            ranks=plan.ranks,
            layers=plan.layers,
            classes=plan.classes,
            multilabel=plan.multilabel,
            train=plan.train.model_dump(mode="json"),
            seed=plan.seed,
            digest=plan.program_digest,
            threads_per_rank=plan.threads_per_rank,
            synthetic=tuple(word for word in ("features", "labels") if getattr(plan.graph, f"synthetic_{word}")),
            policies=policies,
            batches=plan.batches,
            continues=plan.continues,
            class_names=plan.class_names,
            device_bytes=plan.device_bytes,
            dropped_edges=plan.dropped_edges,
            notes=plan.notes,
            chunks=None if plan.chunks is None else Path(plan.chunks),
        )

    def check_unfinished(self) -> None:
        """Raise :class:`ConfigError` where the directory holds a finished run, which must not be overwritten."""
        check_unfinished(RunDirectory(self.root).result)

    @property
    def trace(self) -> Path:
        return self.root / "trace"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoint"

    @property
    def epochs(self) -> int:
        return int(self.train["epochs"])

    @property
    def timeout(self) -> float:
        """Seconds without an answer after which a rank counts as lost."""
        return float(self.train["timeout"])

    @property
    def schedule(self) -> Picks | None:
        """The schedule policy, which chooses among ready ops; None if the plan names none."""
        return cast("Picks | None", self.policies.get("schedule"))

    @cached_property
    def program(self) -> Program:
        """The run's program. Raises :class:`ConfigError` if it is not the one that the plan was made for."""
        program = load_program(self.root / "plan")
        found = program_digest(program)
        if found != self.digest or program.ranks != self.ranks:
            raise ConfigError(
                f"{self.root / 'plan'}: the program's digest is {found[:12]} for {program.ranks} ranks, the plan says "
                f"{self.digest[:12]} for {self.ranks}; prepare the run again"
            )
        return program

    @cached_property
    def artifact(self) -> "PartitionArtifact":
        # Numba: loaded by ranks; the launcher reads the plan without it
        from simgnn.partition.store import PartitionArtifact

        return PartitionArtifact.open(self.partition)

    def local(self, rank: int) -> "RankGraph":
        return self.artifact.local(rank)

    def shard(self, rank: int) -> "Shard":
        # Numba: loaded by ranks; the launcher reads the plan without it
        from simgnn.partition.local.shards import ShardArtifact

        shard = ShardArtifact.open(self.shards).rank(rank)
        if shard.labels is None:
            raise BackendError("the graph has no labels, so there is nothing to train")
        return shard
