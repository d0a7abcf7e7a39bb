"""What a rank of a mini-batch run does with its own vertices when it evaluates them."""

from array_api_compat import array_namespace

from simgnn.emit.batches.on_rank import OfOne, RankAction
from simgnn.policy import Action, Array, Policy, PolicyContext


class TakeOwnRows(RankAction[OfOne]):
    """Put the input rows of own vertices on the device, from the memory of the host."""


class JoinRows(Action[Policy]):
    """Rows of own vertices, and behind them those of their remote in-neighbours, as own edges number them."""

    def run(self, context: PolicyContext, own: Array, halo: Array) -> tuple[Array, ...]:
        """``own`` [n, F], ``halo`` [h, F] -> [n + h, F]."""
        return (array_namespace(own).concat((own, halo)),)
