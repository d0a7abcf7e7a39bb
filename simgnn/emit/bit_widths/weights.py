"""How much an error of a halo row weighs for the rank that receives it."""

from collections.abc import Sequence

from simgnn.policy import Array


class HaloWeights:
    """Weights of a rank's edges from halo rows; the executor holds it for policies."""

    def squared(self, layer: int) -> Sequence[Array]:
        """By owner, [P]: of each halo row, float64 [rows], the sum over the rank's own rows that add it of its squared
        weight. Attention, whose weights change, and layers of a user's count as means: the weights of a row add up to
        1."""
        raise NotImplementedError
