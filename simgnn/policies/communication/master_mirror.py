"""Masters and mirrors: partial sums of a vertex are added at its master, and the sum is sent back to its mirrors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.communication import Communication, Sums, Transfers
from simgnn.emit.segments import Segments
from simgnn.emit.sums.mirrors import MIRRORS, SHARED_MASTERS, Level, MirrorSums
from simgnn.errors import ConfigError
from simgnn.model.spec import BUILT_IN_LAYERS, LayerSpec
from simgnn.model.user_layer import SEGMENTS, load_user_class
from simgnn.partition.local.vertex_cut import BY_HOSTS, BY_REPLICAS, LEVELS
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.policy import Choices, CodecTraits, Cut, FreshnessTraits, Idle, Refusal, chosen
from simgnn.program.sizes import Route

SPARSE = "sparse input features"
ONE_HOST = "no other host has mirrors to add up for; remove it, or use several hosts (cluster.hosts)"


class MasterMirror(Communication):
    """Every rank sums over its own edges; one gather (mirrors to masters, added there in the order of ranks) and one
    scatter (masters to mirrors) complete a layer's sums, and backward the gradients of sums; vertex-cuts only.

    Masters and mirrors both hold input features, so these never travel. What is computed between two sums is computed
    on every copy of a row, backward with partial gradients: weight gradients are right once ranks add them up. Source:
    CDFGNN (arXiv 2408.00232), algorithm 2 and equations 3 and 4. Deviations: the sum itself is completed, before the
    weights if a layer aggregates first, so that the narrower side travels; biases come after; constant sums of layer 1
    are completed once unless ``model.hoist = "never"``.

    ``exchange``: "direct", each mirror exchanges rows with its master; "host-aggregated", parts are added up on each
    host and one row per host travels to the master's host, and back the same way: four exchanges, not two."""

    cut: ClassVar[Cut] = "vertex-cut"

    kind: Literal["master-mirror"] = "master-mirror"
    exchange: Literal["direct", "host-aggregated"] = Field(
        default="direct", description="host-aggregated: each host adds up its mirrors and sends one row per vertex"
    )

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        codec = choices.codec
        if self.exchange != "direct" and not codec.repeatable and not choices.freshness.hands_on:
            yield Refusal(
                "communication", "exchange",
                f"got '{self.exchange}' with codec.kind = '{codec.label}', expected 'direct', or a codec that encodes "
                f"what it decoded to the same bytes ({choices.fitting(CodecTraits, lambda kind: kind.repeatable)}), or "
                "a freshness that forwards encoded rows unchanged "
                f"({choices.fitting(FreshnessTraits, lambda kind: kind.hands_on)}): rows that pass through another "
                "rank are encoded twice, and copies of a vertex would differ",
            )  # fmt: skip
        if choices.model.attends and not codec.relative:
            why = "sums share a row with the weights that divide them, and one range for both rounds small weights to 0"
            yield self.needs_relative_codes(choices, why)

    def idle(self, choices: Choices) -> Iterator[Idle]:
        if choices.cluster.hosts == 1 and chosen(self, ["exchange"]):
            yield Idle("exchange", "cluster.hosts = 1", ONE_HOST)

    def sizes(self, stats: PartitionStats, item_bytes: int) -> "MirrorSizes":
        """Return the sizes of the vertex-cut. A host-aggregated exchange needs several hosts and two more tables."""
        if self.exchange == "direct":
            return MirrorSizes(stats, (Level("", MIRRORS, stats.halo),))
        if len(np.unique(stats.hosts)) < 2:
            raise ConfigError(
                f"communication.exchange: got 'host-aggregated' on one host, expected 'direct', the default: {ONE_HOST}"
            )
        levels, arriving = [], np.zeros(stats.ranks, dtype=np.int64)
        for name, level in zip(LEVELS, ("across", "within"), strict=True):
            table = stats.table(name, "communication.exchange = 'host-aggregated'")
            source, target, rows = np.asarray(table, dtype=np.int64).reshape(-1, 3).T
            near = stats.hosts[source % stats.ranks] == stats.hosts[target % stats.ranks]
            if np.any(near != (level == "within")):
                break
            arriving += np.bincount(target, rows, minlength=stats.ranks).astype(np.int64)[: stats.ranks]
            levels.append(Level(level, name, Route(source.astype(np.int32), target.astype(np.int32), rows)))
        if not np.array_equal(arriving, stats.halo_rows()):
            raise ConfigError(
                f"communication.exchange: got 'host-aggregated', but tables {' and '.join(LEVELS)} of the partition "
                "are not those of this cluster's hosts; make its statistics anew with simgnn partition --stats"
            )
        return MirrorSizes(stats, tuple(levels))

    def problems(self, layers: Sequence[LayerSpec]) -> list[str]:
        """Check that a user's layer has segments, and declares that sums over parts of its edges add up."""
        found = []
        for kind in dict.fromkeys(layer.kind for layer in layers if layer.kind not in BUILT_IN_LAYERS):
            owner = load_user_class(kind)
            missing = [name for name in SEGMENTS if not callable(getattr(owner, name, None))]
            if missing:
                why = f"so the class needs prepare, aggregate and update; it lacks {', '.join(missing)}"
            elif getattr(owner, "reduction", None) != "sum":
                why = 'whose aggregates are added up; set reduction = "sum" on the class if its aggregate allows that'
            else:
                continue
            found.append(
                f"model.kind = '{kind}' with communication.kind = '{self.kind}': in-edges of a vertex lie on several "
                f"ranks, {why}"
            )
        return found


@dataclass(frozen=True)
class MirrorSizes:
    """The sizes of a vertex-cut. Mirrors have features of their own, so that input rows never travel."""

    stats: PartitionStats
    levels: tuple[Level, ...]
    fetches_inputs: bool = False
    input_bytes: int = 0
    copied_rows: int = 0

    def add_to(self, builder: ProgramBuilder, aggregated: bool) -> dict[str, Any]:
        """Add columns and routes to the builder. Sums are dense, also those of sparse rows."""
        stats = self.stats
        if any(level.name for level in self.levels):
            builder.route(MIRRORS, stats.halo)  # caches keep rows of all masters that have mirrors, wherever these lie
        for level in self.levels:
            builder.route(level.route, level.rows)
            for column, ends in ((level.mirrors, level.rows.target), (level.mirrored, level.rows.source)):
                builder.column(column.name, np.bincount(ends, level.rows.rows, minlength=stats.ranks).astype(np.int64))
        if SHARED_MASTERS.name in stats.tables:  # caches need it; exact sums do not
            builder.column(SHARED_MASTERS.name, stats.tables[SHARED_MASTERS.name])
        rows = builder.column("rows", stats.rows + stats.halo_rows())
        fields: dict[str, Any] = {
            "rows": rows,
            "sources": rows,
            "edges": builder.column("edges", stats.edges),
            "train_rows": builder.column("train_rows", stats.table("train_rows", "the loss")),
            "feature_nonzeros": None,
            "aggregated_nonzeros": None,
        }
        if stats.facts.feature_nonzeros is not None:
            own = stats.table("feature_nonzeros", SPARSE)
            copied = np.asarray(stats.table("halo_feature_nonzeros", SPARSE), dtype=np.int64)
            fields["feature_nonzeros"] = builder.column("feature_nonzeros", own + copied.sum(axis=0))
        return fields

    def sums(self, segments: Segments, transfers: Transfers, rows: str, fetched_in: tuple[str, ...]) -> Sums:
        levels = self.levels if len(self.stats.halo.source) > 0 else ()
        return MirrorSums(segments, transfers.rows(), levels, self._by_replicas())

    def _by_replicas(self) -> dict[int, Route]:
        """The rows that masters send on the first hop, by number of replicas (or of hosts); empty if not counted."""
        by_hosts, halo = bool(self.levels[0].name), self.stats.halo
        table = self.stats.tables.get(BY_HOSTS if by_hosts else BY_REPLICAS)
        if table is None:
            return {}
        *pair, number, rows = np.asarray(table, dtype=np.int64).reshape(-1, 4 if by_hosts else 3).T
        source, target = pair if by_hosts else (halo.source[pair[0]], halo.target[pair[0]])
        return {
            each: Route(source[chosen].astype(np.int32), target[chosen].astype(np.int32), rows[chosen])
            for each in np.unique(number).tolist()
            for chosen in [number == each]
        }
