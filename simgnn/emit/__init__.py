"""How transfers become ops, and what policies share: what a policy of a user imports beside :mod:`simgnn.policy`.

``from simgnn.emit import NAME`` gives each name of ``HOMES``; its module is loaded when the name is first asked for.
"""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simgnn.emit.arrays import add_rows as add_rows
    from simgnn.emit.arrays import counted as counted
    from simgnn.emit.arrays import draws as draws
    from simgnn.emit.arrays import dtype_name as dtype_name
    from simgnn.emit.arrays import from_bytes as from_bytes
    from simgnn.emit.arrays import pick_rows as pick_rows
    from simgnn.emit.arrays import places_of as places_of
    from simgnn.emit.arrays import put_rows as put_rows
    from simgnn.emit.arrays import signed as signed
    from simgnn.emit.arrays import to_bytes as to_bytes
    from simgnn.emit.arrays import units as units
    from simgnn.emit.batches.batching import Batching as Batching
    from simgnn.emit.batches.placement import Placement as Placement
    from simgnn.emit.batches.placement import RowStore as RowStore
    from simgnn.emit.batches.staging import Staging as Staging
    from simgnn.emit.blocks import BlockSync as BlockSync
    from simgnn.emit.blocks import BlockTransfer as BlockTransfer
    from simgnn.emit.blocks import PlainBlocks as PlainBlocks
    from simgnn.emit.caches.cached_rows import CachedRows as CachedRows
    from simgnn.emit.caches.row_cache import ChoosesRows as ChoosesRows
    from simgnn.emit.caches.row_cache import State as State
    from simgnn.emit.communication import BatchCommunication as BatchCommunication
    from simgnn.emit.communication import Communication as Communication
    from simgnn.emit.communication import CopiedRows as CopiedRows
    from simgnn.emit.communication import Sizes as Sizes
    from simgnn.emit.communication import Sums as Sums
    from simgnn.emit.communication import Transfers as Transfers
    from simgnn.emit.communication import WholeLayers as WholeLayers
    from simgnn.emit.encoded import emit_encoded as emit_encoded
    from simgnn.emit.encoded import training_part as training_part
    from simgnn.emit.freshness import Freshness as Freshness
    from simgnn.emit.freshness import MovesBlocks as MovesBlocks
    from simgnn.emit.freshness import MovesRows as MovesRows
    from simgnn.emit.guarded_blocks import GuardsBlocks as GuardsBlocks
    from simgnn.emit.guards import Change as Change
    from simgnn.emit.guards import ComparesBlocks as ComparesBlocks
    from simgnn.emit.names import Names as Names
    from simgnn.emit.segments import Segments as Segments
    from simgnn.emit.sums.halo import HaloNames as HaloNames
    from simgnn.emit.sums.halo import HaloSizes as HaloSizes
    from simgnn.emit.sums.halo import HaloSums as HaloSums
    from simgnn.emit.sync import Expand as Expand
    from simgnn.emit.sync import Reference as Reference
    from simgnn.emit.sync import Stage as Stage
    from simgnn.emit.sync import Sync as Sync
    from simgnn.emit.sync import emit_plainly as emit_plainly
    from simgnn.graph.hashing import stream_key as stream_key
    from simgnn.model.spec import LayerSpec as LayerSpec
    from simgnn.partition.statistics.partition_stats import PartitionStats as PartitionStats

HOMES: Mapping[str, str] = {
    name: module
    for module, names in {
        "simgnn.emit.arrays": "add_rows counted draws dtype_name from_bytes pick_rows places_of put_rows signed "
        "to_bytes units",
        "simgnn.emit.guards": "Change ComparesBlocks",
        "simgnn.emit.caches.row_cache": "ChoosesRows State",
        "simgnn.graph.hashing": "stream_key",
        "simgnn.model.spec": "LayerSpec",
        "simgnn.partition.statistics.partition_stats": "PartitionStats",
        "simgnn.emit.batches.batching": "Batching",
        "simgnn.emit.blocks": "BlockSync BlockTransfer PlainBlocks",
        "simgnn.emit.communication": "BatchCommunication Communication CopiedRows Sizes Sums Transfers WholeLayers",
        "simgnn.emit.sums.halo": "HaloNames HaloSizes HaloSums",
        "simgnn.emit.encoded": "emit_encoded training_part",
        "simgnn.emit.freshness": "Freshness MovesBlocks MovesRows",
        "simgnn.emit.caches.cached_rows": "CachedRows",
        "simgnn.emit.guarded_blocks": "GuardsBlocks",
        "simgnn.emit.names": "Names",
        "simgnn.emit.batches.placement": "Placement RowStore",
        "simgnn.emit.segments": "Segments",
        "simgnn.emit.batches.staging": "Staging",
        "simgnn.emit.sync": "Expand Reference Stage Sync emit_plainly",
    }.items()
    for name in names.split()
}
"""Name -> the module that defines it."""


def __getattr__(name: str) -> Any:
    """What a module of this room, or of a policy that others build on, defines."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(HOMES[name]), name)
