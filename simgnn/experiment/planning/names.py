"""Sizes and templates by name: the vocabulary that the parts of a full-graph plan share."""

from dataclasses import dataclass

from simgnn.program.sizes import Column


@dataclass(frozen=True)
class Names:
    """Sizes by name, and the templates in which ops of the two kinds of turns are put."""

    rows: Column
    halo_rows: Column
    sources: Column
    send_rows: Column
    edges: Column
    train_rows: Column
    feature_nonzeros: Column | None
    halo_nonzeros: Column | None
    aggregated_nonzeros: Column | None
    train: tuple[str, ...]
    forward: tuple[str, ...]
    setup: tuple[str, ...]
