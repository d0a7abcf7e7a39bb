"""The halo exchange: rows travel from their owners to the ranks that need them, gradients travel back."""

from simgnn.experiment.planning.builder import ProgramBuilder
from simgnn.experiment.planning.names import Names
from simgnn.model.spec import LayerSpec
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Work
from simgnn.program.sizes import Column


class HaloRows:
    """Emits the transfers of halo rows into a builder."""

    def __init__(self, builder: ProgramBuilder, names: Names) -> None:
        self.builder = builder
        self.names = names

    def fetch_inputs(self, templates: tuple[str, ...], layer: LayerSpec) -> None:
        """Input rows of the halo arrive, in the given templates: dense rows, or sparse ones encoded as bytes."""
        builder, names = self.builder, self.names
        if not layer.sparse_input:
            row_bytes = layer.width_in * builder.item_bytes
            self._pack(templates, "setup/1/pack", "features", "send/0", layer.width_in, 1, "setup")
            builder.buffer("halo/0", names.halo_rows, layer.width_in, persistent=True)
            builder.exchange(
                templates, "setup/1/exchange", "halo", "send/0", "halo/0", row_bytes, layer=1, phase="setup"
            )
            return
        assert names.feature_nonzeros is not None
        assert names.halo_nonzeros is not None
        entry = 4 + builder.item_bytes
        builder.buffer("send/0", Column("send_feature_bytes"), 1, "uint8")
        builder.buffer("receive/0", Column("halo_feature_bytes"), 1, "uint8")
        builder.buffer("halo/0", names.halo_nonzeros, entry, "uint8", persistent=True)
        for name, read, write, size in (
            ("setup/1/pack", "features", "send/0", "send_feature_bytes"),
            ("setup/1/unpack", "receive/0", "halo/0", "halo_feature_bytes"),
        ):
            if name == "setup/1/unpack":
                builder.exchange(
                    templates, "setup/1/exchange", "halo_feature_bytes", "send/0", "receive/0", 1, layer=1,
                    phase="setup",
                )  # fmt: skip
            work = (Work("gather", {"rows": Column(size), "width": 1, "item_bytes": 1}),)
            builder.compute(
                templates, name, OpKind.COPY, [read], [write], work, layer=1, phase="setup", route="halo",
                category="comm_overhead", options={"encoding": "sparse"},
            )  # fmt: skip

    def _pack(
        self, templates: tuple[str, ...], name: str, reads: str, writes: str, width: int, layer: int, phase: str
    ) -> None:
        builder, names = self.builder, self.names
        builder.buffer(writes, names.send_rows, width)
        work = (Work("gather", {"rows": names.send_rows, "width": width, "item_bytes": builder.item_bytes}),)
        builder.compute(
            templates, name, OpKind.COPY, [reads], [writes], work, layer=layer, phase=phase, route="halo",
            category="comm_overhead",
        )  # fmt: skip

    def exchange(self, layer: LayerSpec, source: str, halo: str) -> None:
        """Rows that other ranks need are packed and sent; the halo arrives."""
        builder, names, index = self.builder, self.names, layer.index
        width = layer.prepared_width if not layer.whole else layer.width_in
        self._pack(names.forward, f"forward/{index}/pack", source, f"send/{index}", width, index, "forward")
        builder.buffer(halo, names.halo_rows, width)
        builder.exchange(
            names.forward, f"forward/{index}/exchange", "halo", f"send/{index}", halo, width * builder.item_bytes,
            layer=index, phase="forward",
        )  # fmt: skip

    def give_back(self, layer: LayerSpec, halo_gradient: str, target: str) -> None:
        """Gradients of halo rows go to their owners, which add them to their own."""
        builder, names, index = self.builder, self.names, layer.index
        width = layer.prepared_width if not layer.whole else layer.width_in
        received = builder.buffer(f"receive/{index}", names.send_rows, width)
        builder.exchange(
            names.train, f"backward/{index}/exchange", "halo/reverse", halo_gradient, received,
            width * builder.item_bytes, layer=index, phase="backward",
        )  # fmt: skip
        work = (Work("scatter_add", {"rows": names.send_rows, "width": width, "item_bytes": builder.item_bytes}),)
        builder.compute(
            names.train, f"backward/{index}/add", OpKind.ADD, [received, target], [target], work,
            layer=index, phase="backward", route="halo", category="comm_overhead",
        )  # fmt: skip
