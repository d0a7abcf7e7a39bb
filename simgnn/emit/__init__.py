"""The parts from which policies emit ops. A user's policy imports them from here, beside :mod:`simgnn.policy`.

``from simgnn.emit import NAME`` loads the module that defines the name on first use."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simgnn.emit.arrays import (
        add_rows,
        counted,
        draws,
        dtype_name,
        from_bytes,
        pick_rows,
        places_of,
        put_rows,
        signed,
        to_bytes,
        units,
    )
    from simgnn.emit.batches.neighbours import Batching
    from simgnn.emit.batches.placement import Placement, RowStore
    from simgnn.emit.batches.staging import Staging
    from simgnn.emit.blocks import BlockSync, BlockTransfer, PlainBlocks
    from simgnn.emit.builder import ProgramBuilder
    from simgnn.emit.caches.cached_rows import CachedRows
    from simgnn.emit.caches.row_cache import ChoosesRows, State
    from simgnn.emit.communication import (
        BatchCommunication,
        Communication,
        CopiedRows,
        Sizes,
        Sums,
        Transfers,
        WholeLayers,
    )
    from simgnn.emit.freshness import Freshness, MovesBlocks, MovesRows
    from simgnn.emit.guarded_blocks import Change, ComparesBlocks, GuardsBlocks
    from simgnn.emit.names import Names
    from simgnn.emit.segments import Segments
    from simgnn.emit.sums.halo import HaloNames, HaloSizes, HaloSums
    from simgnn.emit.sync import (
        Expand,
        Reference,
        Stage,
        Sync,
        carry,
        emit_encoded,
        emit_plainly,
        land,
        training_part,
    )
    from simgnn.graph.hashing import stream_key
    from simgnn.model.spec import LayerSpec
    from simgnn.partition.statistics.partition_stats import PartitionStats
    from simgnn.program.calendar import epoch_names, templates_of, templates_without

__all__ = [
    "BatchCommunication", "Batching", "BlockSync", "BlockTransfer", "CachedRows", "Change", "ChoosesRows",
    "Communication", "ComparesBlocks", "CopiedRows", "Expand", "Freshness", "GuardsBlocks", "HaloNames", "HaloSizes",
    "HaloSums", "LayerSpec", "MovesBlocks", "MovesRows", "Names", "PartitionStats", "Placement", "PlainBlocks",
    "ProgramBuilder", "Reference", "RowStore", "Segments", "Sizes", "Stage", "Staging", "State", "Sums", "Sync",
    "Transfers", "WholeLayers", "add_rows", "carry", "counted", "draws", "dtype_name", "emit_encoded", "emit_plainly",
    "epoch_names", "from_bytes", "land", "pick_rows", "places_of", "put_rows", "signed", "stream_key", "templates_of",
    "templates_without", "to_bytes", "training_part", "units",
]  # fmt: skip

MODULES = (
    "simgnn.emit.arrays", "simgnn.emit.sync", "simgnn.emit.names", "simgnn.emit.builder", "simgnn.emit.segments",
    "simgnn.emit.blocks", "simgnn.emit.freshness", "simgnn.emit.communication", "simgnn.emit.sums.halo",
    "simgnn.emit.guarded_blocks", "simgnn.emit.caches.row_cache", "simgnn.emit.caches.cached_rows",
    "simgnn.emit.batches.staging", "simgnn.emit.batches.placement", "simgnn.emit.batches.neighbours",
    "simgnn.graph.hashing", "simgnn.model.spec", "simgnn.partition.statistics.partition_stats",
    "simgnn.program.calendar",
)  # fmt: skip
"""The modules above, those that many need first: a name is looked up in them in this order."""


def __getattr__(name: str) -> Any:
    for module in MODULES if name in __all__ else ():
        loaded = importlib.import_module(module)
        if hasattr(loaded, name):
            return getattr(loaded, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
