"""Names of sizes and templates that the parts of a full-graph plan share."""

from dataclasses import dataclass

from simgnn.program.sizes import Column


@dataclass(frozen=True)
class Names:
    """The names of a plan's sizes, and the templates of training and evaluation ops.

    ``rows``: the rows that a rank computes; ``sources``: the rows that its local edges read; ``train_rows``: the rows
    of its loss. ``feature_nonzeros``, ``aggregated_nonzeros``: stored values of sparse input rows and of their sums
    (None: dense). ``locality``: the partition's tables of how local the sums over edges are, by direction. ``prefix``:
    the prefix of the names of forward ops and of the buffers that they write. ``drawn``: edges are a mini-batch's."""

    rows: Column
    sources: Column
    edges: Column
    train_rows: Column
    feature_nonzeros: Column | None
    aggregated_nonzeros: Column | None
    train: tuple[str, ...]
    forward: tuple[str, ...]
    setup: tuple[str, ...]
    locality: str = "locality"
    prefix: str = ""
    drawn: bool = False
