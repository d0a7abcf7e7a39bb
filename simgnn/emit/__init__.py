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
    from simgnn.emit.guards import Change as Change
    from simgnn.emit.guards import ComparesBlocks as ComparesBlocks
    from simgnn.emit.row_cache import ChoosesRows as ChoosesRows
    from simgnn.emit.row_cache import State as State
    from simgnn.graph.hashing import stream_key as stream_key
    from simgnn.model.spec import LayerSpec as LayerSpec
    from simgnn.partition.statistics.partition_stats import PartitionStats as PartitionStats
    from simgnn.policies.batching.base import Batching as Batching
    from simgnn.policies.blocks import BlockSync as BlockSync
    from simgnn.policies.blocks import BlockTransfer as BlockTransfer
    from simgnn.policies.blocks import PlainBlocks as PlainBlocks
    from simgnn.policies.communication.base import BatchCommunication as BatchCommunication
    from simgnn.policies.communication.base import Communication as Communication
    from simgnn.policies.communication.base import CopiedRows as CopiedRows
    from simgnn.policies.communication.base import Sizes as Sizes
    from simgnn.policies.communication.base import Sums as Sums
    from simgnn.policies.communication.base import Transfers as Transfers
    from simgnn.policies.communication.base import WholeLayers as WholeLayers
    from simgnn.policies.communication.halo_sums import HaloNames as HaloNames
    from simgnn.policies.communication.halo_sums import HaloSizes as HaloSizes
    from simgnn.policies.communication.halo_sums import HaloSums as HaloSums
    from simgnn.policies.encoded import emit_encoded as emit_encoded
    from simgnn.policies.encoded import training_part as training_part
    from simgnn.policies.freshness.base import Freshness as Freshness
    from simgnn.policies.freshness.base import MovesBlocks as MovesBlocks
    from simgnn.policies.freshness.base import MovesRows as MovesRows
    from simgnn.policies.freshness.cached_rows import CachedRows as CachedRows
    from simgnn.policies.freshness.guarded_blocks import GuardsBlocks as GuardsBlocks
    from simgnn.policies.names import Names as Names
    from simgnn.policies.placement.base import Placement as Placement
    from simgnn.policies.placement.base import RowStore as RowStore
    from simgnn.policies.segments import Segments as Segments
    from simgnn.policies.staging import Staging as Staging
    from simgnn.policies.sync import Expand as Expand
    from simgnn.policies.sync import Reference as Reference
    from simgnn.policies.sync import Stage as Stage
    from simgnn.policies.sync import Sync as Sync
    from simgnn.policies.sync import emit_plainly as emit_plainly

HOMES: Mapping[str, str] = {
    name: module
    for module, names in {
        "simgnn.emit.arrays": "add_rows counted draws dtype_name from_bytes pick_rows places_of put_rows signed "
        "to_bytes units",
        "simgnn.emit.guards": "Change ComparesBlocks",
        "simgnn.emit.row_cache": "ChoosesRows State",
        "simgnn.graph.hashing": "stream_key",
        "simgnn.model.spec": "LayerSpec",
        "simgnn.partition.statistics.partition_stats": "PartitionStats",
        "simgnn.policies.batching.base": "Batching",
        "simgnn.policies.blocks": "BlockSync BlockTransfer PlainBlocks",
        "simgnn.policies.communication.base": "BatchCommunication Communication CopiedRows Sizes Sums Transfers "
        "WholeLayers",
        "simgnn.policies.communication.halo_sums": "HaloNames HaloSizes HaloSums",
        "simgnn.policies.encoded": "emit_encoded training_part",
        "simgnn.policies.freshness.base": "Freshness MovesBlocks MovesRows",
        "simgnn.policies.freshness.cached_rows": "CachedRows",
        "simgnn.policies.freshness.guarded_blocks": "GuardsBlocks",
        "simgnn.policies.names": "Names",
        "simgnn.policies.placement.base": "Placement RowStore",
        "simgnn.policies.segments": "Segments",
        "simgnn.policies.staging": "Staging",
        "simgnn.policies.sync": "Expand Reference Stage Sync emit_plainly",
    }.items()
    for name in names.split()
}
"""Name -> the module that defines it."""


def __getattr__(name: str) -> Any:
    """What a module of this room, or of a policy that others build on, defines."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(HOMES[name]), name)
