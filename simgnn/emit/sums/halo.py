"""Sums on an edge-cut: a rank owns some vertices and holds all their in-edges; rows of remote sources (the halo)
arrive before a layer aggregates, and their gradients go back the same way."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.communication import CopiedRows, Sums, Transfers
from simgnn.emit.segments import BACKWARD, FORWARD, Segments
from simgnn.emit.sums.own_first import CUT_EDGES, OWN_EDGES, OwnFirst
from simgnn.emit.sync import Expand, Stage, Sync, emit_plainly
from simgnn.model.costs import RowSet
from simgnn.model.spec import LayerSpec
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.kinds import Form, OpKind, Segment
from simgnn.program.ops import Work
from simgnn.program.sizes import Column, IntArray, Route, Scratch, Size, reverse_of

SPARSE = "sparse input features"


@dataclass(frozen=True)
class HaloNames:
    """Names of the columns that hold, for each rank, its halo rows, the rows that it sends, and the stored values of
    its sparse halo inputs (None: inputs are dense); the route of the rows; and the prefix of their buffers' names.
    """

    halo_rows: Column
    send_rows: Column
    halo_nonzeros: Column | None
    route: str = "halo"
    prefix: str = ""


class HaloSums:
    """Emits sums on an edge-cut; :class:`~simgnn.emit.communication.Sums` describes the methods.

    ``exchanges``: whether any rank has a halo. ``rows``: what layer 1 exchanges, "input" or "transformed" rows.
    ``fetched_in``: the templates in which input rows arrive."""

    def __init__(
        self, segments: Segments, halo: HaloNames, expand: Expand, exchanges: bool, rows: str,
        fetched_in: tuple[str, ...],
    ) -> None:  # fmt: skip
        self.segments = segments
        self.names, self.halo = segments.names, halo
        self.expand = expand
        self.exchanges = exchanges
        self.rows = rows
        self.fetched_in = fetched_in
        self.divided = OwnFirst(segments, halo.halo_rows)

    def divides(self, layer: LayerSpec) -> bool:
        """Whether a layer sums own rows and halo rows in an op each. Attention does so under every schedule: its sums
        depend, in the last bit, on where edges are divided. Statistics that do not count these edges apart, from which
        nothing is trained, plan one op."""
        builder = self.segments.builder
        first = builder.sums_own_first or (layer.attends and OWN_EDGES.name in builder.columns)
        return first and (self.moves(layer) or self._resends(layer)) and self.divided.serves(layer)

    def _resends(self, layer: LayerSpec) -> bool:
        """Whether layer 1 sums dense input rows that arrive in every epoch. Where rows are transformed before they are
        summed, one op transforms own and halo rows."""
        whole = layer.sparse_input or layer.has_prepare or layer.attends
        return layer.index == 1 and self.exchanges and self.fetched_in == self.names.forward and not whole

    def moves(self, layer: LayerSpec) -> bool:
        """Whether the layer's halo rows are exchanged in every epoch."""
        return self.exchanges and (layer.index > 1 or self.rows == "transformed")

    def fetch_inputs(self) -> None:
        """Emit the arrival of the halo's input rows, once or (resent) in every epoch. Sparse rows travel as bytes."""
        if not self.exchanges or self.rows != "input" or not self.fetched_in:
            return
        layer = self.segments.model.layers[0]
        if layer.sparse_input:
            self._fetch_sparse()
            return
        # evaluations alone have no copies to keep for the next epoch
        stage = self._publish("features", "halo/0", "send/0", kept=bool(self.names.train))
        sync = Sync(self.fetched_in, 1, "setup", layer.width_in, (stage,))
        if self.fetched_in == self.names.forward:  # in every epoch, in which freshness decides what is sent
            self.expand(sync)
        else:
            emit_plainly(self.segments.builder, sync)

    def hoist(self, layer: LayerSpec) -> None:
        """Sum the inputs of layer 1 once, before the first epoch."""
        self.segments.hoisted(layer, ["features", "halo/0"] if self.exchanges else ["features"])

    def copies(self, layer: LayerSpec) -> CopiedRows | None:
        """The halo inputs of layer 1, which arrived once and which each rank transforms itself."""
        if not self.exchanges or self.moves(layer):
            return None
        nonzeros = self.halo.halo_nonzeros if layer.sparse_input else None
        rows: RowSet[Size] = RowSet(self.halo.halo_rows, nonzeros, layer.centred_input)
        return CopiedRows(
            f"{self.halo.prefix}halo/{layer.index - 1}", f"{self.halo.prefix}prepared_halo/{layer.index}", rows
        )

    def forward(self, layer: LayerSpec, source: str) -> None:
        """Emit the arrival of halo rows, then the sum of own and halo rows; a schedule that sums own rows first does so
        meanwhile."""
        with self._in_turn(layer):
            self._forward(layer, source)

    def _forward(self, layer: LayerSpec, source: str) -> None:
        halo = self._halo(layer)
        if self.moves(layer):
            self.arrive(layer, source, halo, layer.prepared_width)
        if self.divides(layer):
            self.divided.forward(layer, source, halo)
        elif not layer.hoisted:
            reads = [source, halo] if self.exchanges else [source]
            if layer.attends:
                reads = [*reads, self.segments.maximum(layer, reads)]
            self.segments.aggregate(layer, reads)

    def backward(self, layer: LayerSpec, source: str, target: str) -> None:
        """Emit the gradients of own and halo rows; those of halo rows travel to their owners, who add them, after those
        of own rows are there, or with a schedule that sums own rows first beside them."""
        with self._in_turn(layer):
            self._backward(layer, source, target)

    def _in_turn(self, layer: LayerSpec) -> AbstractContextManager[None]:
        """Let divided sums and messages, which do not depend on each other, wait for one another unless the schedule
        overlaps them. Late rows wait for nothing."""
        builder = self.segments.builder
        alone = self.divides(layer) and not builder.sums_own_first and not builder.late
        return builder.one_by_one() if alone else nullcontext()

    def _backward(self, layer: LayerSpec, source: str, target: str) -> None:
        gradients, writes, halo = {target: source}, [target], self._halo(layer)
        if self.divides(layer):
            self.divided.backward(layer, source, halo, target)
        else:
            if self.exchanges:
                self.segments.builder.buffer(f"d/{halo}", self.halo.halo_rows, layer.prepared_width)
                gradients[f"d/{halo}"] = halo
                writes.append(f"d/{halo}")
            self.segments.aggregate_backward(layer, writes, gradients)
        if self.moves(layer):
            self.give_back(layer, f"d/{halo}", target, layer.prepared_width)

    @property
    def whole(self) -> "HaloSums":
        """Return this emitter: a rank has all in-edges of its rows, so that a layer may be one function of them."""
        return self

    def forward_whole(self, layer: LayerSpec) -> None:
        """Emit the layer as one op that reads own and halo rows."""
        segments, builder, index = self.segments, self.segments.builder, layer.index
        own, halo = segments.own(layer), f"halo/{index - 1}"
        if self.moves(layer):
            self.arrive(layer, own, halo, layer.width_in)
        hidden = builder.buffer(f"hidden/{index}", self.names.rows, layer.width_out)
        reads = [own, *([halo] if self.exchanges else [])]
        work = builder.work(segments.work(layer, "forward", []), FORWARD)
        segments.forward(layer, Segment.FORWARD, OpKind.TRANSFORM, reads, [hidden], work)
        segments.keep_adjacency()

    def backward_whole(self, layer: LayerSpec) -> None:
        """Emit the layer's backward pass, and send gradients of halo rows to their owners."""
        segments, builder, index = self.segments, self.segments.builder, layer.index
        gradients = {f"d/hidden/{index}": f"hidden/{index}"}
        reads, writes = [f"d/hidden/{index}", segments.own(layer), f"hidden/{index}"], []
        below, halo = f"d/hidden/{index - 1}", f"halo/{index - 1}"
        if segments.needs_gradient(layer):
            gradients[builder.buffer(below, self.names.rows, layer.width_in)] = segments.own(layer)
            writes.append(below)
            if self.exchanges:
                gradients[builder.buffer(f"d/{halo}", self.halo.halo_rows, layer.width_in)] = halo
                writes.append(f"d/{halo}")
        pieces = segments.work(layer, "forward/backward", [])
        scratch = Scratch(segments.weight_gradients(layer, pieces, in_turn=False))
        work = builder.work(pieces, BACKWARD)
        segments.reverse(layer, Segment.FORWARD, OpKind.TRANSFORM, reads, writes, work, gradients, scratch=scratch)
        if self.moves(layer):
            self.give_back(layer, f"d/{halo}", below, layer.width_in)

    # -- transfers -------------------------------------------------------------------------------------------------

    def _halo(self, layer: LayerSpec) -> str:
        kept = f"prepared_halo/{layer.index}" if layer.has_prepare else f"halo/{layer.index - 1}"
        return f"{self.halo.prefix}{kept}"

    def _publish(self, source: str, target: str, packed: str, kept: bool = False) -> Stage:
        return Stage(
            "publish", self.halo.route, source, target, self.halo.send_rows, self.halo.halo_rows, packed, "store",
            picked=self.halo.route, kept=kept,
        )  # fmt: skip

    def arrive(self, layer: LayerSpec, source: str, halo: str, width: int, held: str | None = None) -> None:
        """Emit the transfer of halo rows, from ``source`` on their owners into the buffer ``halo``. ``held``: see
        :class:`Sync`."""
        stage = self._publish(source, halo, f"{self.halo.prefix}send/{layer.index}")
        linear = not layer.attends
        self.expand(Sync(self.names.forward, layer.index, "forward", width, (stage,), linear=linear, held=held))

    def give_back(self, layer: LayerSpec, gradient: str, target: str, width: int) -> None:
        """Emit the transfer of gradients of halo rows to their owners, who add them to ``target``."""
        stage = Stage(
            "fold", reverse_of(self.halo.route), gradient, target, self.halo.halo_rows, self.halo.send_rows, gradient,
            "add", arrived=f"{self.halo.prefix}receive/{layer.index}", landed=self.halo.route,
        )  # fmt: skip
        linear = not layer.attends
        self.expand(Sync(self.names.train, layer.index, "backward", width, (stage,), linear=linear))

    def _fetch_sparse(self) -> None:
        builder, names = self.segments.builder, self.halo
        assert names.halo_nonzeros is not None, "sparse inputs have stored values"
        entry = 4 + builder.item_bytes
        builder.buffer("send/0", Column("send_feature_bytes"), 1, "uint8")
        builder.buffer("receive/0", Column("halo_feature_bytes"), 1, "uint8")
        builder.buffer("halo/0", names.halo_nonzeros, entry, "uint8", persistent=True)
        self._recode("setup/1/pack", "features", "send/0", "send_feature_bytes")
        builder.exchange(
            self.fetched_in,
            "setup/1/exchange",
            "halo_feature_bytes",
            ["send/0"],
            "receive/0",
            1,
            layer=1,
            phase="setup",
        )
        self._recode("setup/1/unpack", "receive/0", "halo/0", "halo_feature_bytes")

    def _recode(self, name: str, read: str, write: str, size: str) -> None:
        work = (Work("gather", {"rows": Column(size), "width": 1, "item_bytes": 1}),)
        self.segments.builder.compute(
            self.fetched_in, name, OpKind.COPY, [read], [write], work, layer=1, phase="setup", route="halo",
            category="comm_overhead", form=Form.SPARSE_ROWS,
        )  # fmt: skip
        self.segments.builder.keep_rows_of("halo", self.halo.send_rows)


@dataclass(frozen=True)
class HaloSizes:
    """Sizes of a halo exchange. ``feature_nonzeros`` [P], ``halo_nonzeros`` [owner, rank]: stored values of sparse
    features, in own rows and in the halo rows of each pair of ranks."""

    stats: PartitionStats
    item_bytes: int
    feature_nonzeros: IntArray | None = None
    halo_nonzeros: IntArray | None = None

    @property
    def fetches_inputs(self) -> bool:
        """Whether any rank has halo rows."""
        return self.stats.ranks > 1 and len(self.stats.halo.source) > 0

    @property
    def copied_rows(self) -> int:
        """The number of halo rows of all ranks together."""
        return int(self.stats.halo_rows().sum())

    @property
    def input_bytes(self) -> int:
        """Bytes of all halo input rows: dense rows, or the lengths, column ids and values of sparse rows."""
        if self.halo_nonzeros is None:
            return self.copied_rows * self.stats.facts.feature_width * self.item_bytes
        return self.copied_rows * 4 + int(self.halo_nonzeros.sum()) * (4 + self.item_bytes)

    def add_to(self, builder: ProgramBuilder, aggregated: bool) -> dict[str, Any]:
        stats = self.stats
        halo_rows = stats.halo_rows()
        builder.route("halo", stats.halo)
        send_rows = np.bincount(stats.halo.source, stats.halo.rows, minlength=stats.ranks).astype(np.int64)
        fields: dict[str, Any] = {
            "rows": builder.column("rows", stats.rows),
            "sources": builder.column("sources", stats.rows + halo_rows),
            "edges": builder.column("edges", stats.edges),
            "train_rows": builder.column("train_rows", stats.table("train_rows", "the loss")),
            "feature_nonzeros": None,
            "aggregated_nonzeros": None,
        }
        if builder.sums_own_first:
            OwnFirst.add_to(builder, stats)
        builder.column("halo_rows", halo_rows)
        builder.column("send_rows", send_rows)
        if self.feature_nonzeros is None or self.halo_nonzeros is None:
            return fields
        encoded = stats.halo.matrix(stats.ranks) * 4 + self.halo_nonzeros * (4 + self.item_bytes)
        builder.route("halo_feature_bytes", Route.from_matrix(encoded))
        builder.column("send_feature_bytes", encoded.sum(axis=1))
        builder.column("halo_feature_bytes", encoded.sum(axis=0))
        builder.column("halo_nonzeros", self.halo_nonzeros.sum(axis=0))
        fields["feature_nonzeros"] = builder.column("feature_nonzeros", self.feature_nonzeros)
        if aggregated:
            table = stats.table("aggregated_feature_nonzeros", "the sum of sparse input features")
            fields["aggregated_nonzeros"] = builder.column("aggregated_nonzeros", table)
        return fields

    def sums(self, segments: Segments, transfers: Transfers, rows: str, fetched_in: tuple[str, ...]) -> Sums:
        attends = any(layer.attends for layer in segments.model.layers)
        counted = CUT_EDGES in self.stats.tables
        if attends and counted and self.fetches_inputs and not segments.builder.sums_own_first:
            OwnFirst.add_to(segments.builder, self.stats)
        return HaloSums(segments, self.names, transfers.rows(), self.fetches_inputs, rows, fetched_in)

    @property
    def names(self) -> HaloNames:
        """The columns that :meth:`add_to` adds."""
        nonzeros = None if self.halo_nonzeros is None else Column("halo_nonzeros")
        return HaloNames(Column("halo_rows"), Column("send_rows"), nonzeros)
