"""Names of columns, buffers and ops that the parts of a mini-batch plan share.

Hops are numbered 1..L from the seed vertices, layers 1..L from the input rows, so that layer l sums over the block of
hop L - l + 1. All columns but ``LARGEST`` ones are [P, epochs, steps]."""

from simgnn.program.sizes import Column

INPUTS, HOT, FEATURES, VERTICES, SEEDS = "inputs", "hot", "features", "vertices", "seeds"
INPUT_GRADIENT = "d/hidden/0"
"""The buffer of the gradient of learned input rows."""
SEED_COUNT = "seed_count"
FEATURE_ROWS = Column("features/rows")
"""Rows in the memory of each rank's host, [P]."""
PULLED_ROWS, SERVED_ROWS = "rows/pulled", "rows/served"
"""Buffers of a batch's rows that other hosts send, and of those that a rank sends them unasked."""
DRAW, STAGE_BLOCKS, STAGE_ROWS, TAKE_HOT = "batch/draw", "batch/stage", "rows/stage", "hot/take"
PLACES, BATCHES = "placement", "batching"
"""Modules of ops: the slots whose policies act."""
EMBEDDINGS = "embeddings"
"""Stream of ops that change input rows."""
EVALUATING = "evaluate/"
"""The prefix of names that only evaluations use."""
HALO = "halo"
"""The route of rows of remote in-neighbours, from owners to the ranks that evaluate."""
PARTNERS, SCORES = f"{EVALUATING}partners", f"{EVALUATING}scores"
"""The route of rows with which own vertices are compared, and the buffer of the scores of all pairs."""
PAIRS, SEED_ROWS = Column("pairs"), Column("seeds/rows")
"""In unsupervised training: positives and negatives of a batch, and its seeds."""
OWN_BLOCK, OWN_LABELS = f"{EVALUATING}block", f"{EVALUATING}labels"
"""Buffers of a rank's own vertices: all their in-edges, and labels."""


def rows_after(hop: int) -> Column:
    """Return the column that counts a batch's vertices after a hop; after hop 0 these are its seed vertices."""
    return Column(f"rows/{hop}")


def edges_of(hop: int) -> Column:
    """Return the column that counts the edges drawn at a hop."""
    return Column(f"edges/{hop}")


def block(hop: int) -> str:
    """Name of the buffer of a hop's block on the device, int32: row pointers of the destinations, then the sources."""
    return f"blocks/{hop}"


def drawn(hop: int) -> str:
    """Name of the buffer of a hop's block in the host's memory, as drawn."""
    return f"drawn/{hop}"
