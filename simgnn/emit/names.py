"""Sizes and templates by name: the vocabulary that the parts of a full-graph plan share."""

from dataclasses import dataclass

from simgnn.program.sizes import Column


@dataclass(frozen=True)
class Names:
    """Sizes by name, and the templates in which ops of the two kinds of turns are put.

    ``rows``: the rows that a rank computes; ``sources``: the rows that its local edges read; ``train_rows``: its part
    of the loss. ``feature_nonzeros``, ``aggregated_nonzeros``: stored values of sparse input rows and of their sums
    (None: dense). ``locality``: tables of the partition that tell how local the sums over edges are, by direction.
    ``prefix``: how the names of forward ops begin, and of the buffers that they write. ``drawn``: the edges are those
    of a batch.
    """

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
