"""What the ops of cached halo rows do at run time: keep rows, put those of an epoch together, check their age."""

from typing import Any

from array_api_compat import array_namespace, device

from simgnn.emit.arrays import pick_rows, pick_rows_into, put_rows
from simgnn.emit.halo_cache.routes import CACHED, HELD, MISSED, REST
from simgnn.errors import BackendError
from simgnn.policy import Action, Array, PolicyContext
from simgnn.program.sizes import reverse_of


class KeepRows(Action[Any]):
    """Copy the rows to cache out of the halo rows of a refresh."""

    def run(self, context: PolicyContext, halo: Array, cache: Array, version: Array) -> tuple[Array, ...]:
        """Return ``cache`` [c, F], filled with rows of ``halo`` [h, F], and ``version`` int64 [1, 1]: the epoch plus
        one; both in place."""
        version[...] = context.epoch + 1
        return pick_rows_into(cache, halo, _places(context, reverse_of(CACHED))), version


class CheckAges(Action[Any]):
    """Check that cached rows which are about to be used are those of the last refresh."""

    def run(self, context: PolicyContext, versions: Array) -> tuple[Array, ...]:
        """Return ``versions`` int64 [n, 1], the epoch of each row plus one, as they are. Raises :class:`BackendError`
        unless all are of the last refresh."""
        check_age(context, versions)
        return (versions,)


class PickRows(Action[Any]):
    """Copy the rows of the cache to their places among the halo rows of an epoch between two refreshes."""

    def run(self, context: PolicyContext, cache: Array) -> tuple[Array, ...]:
        """Return halo rows [h, F] with ``cache`` [c, F] at their places; others follow in later ops."""
        return (put_rows(_halo(context, cache), _places(context, reverse_of(CACHED)), cache),)


class FillMissed(Action[Any]):
    """Put the rows that arrived between two refreshes to their places among the halo rows."""

    def run(self, context: PolicyContext, arrived: Array, halo: Array) -> tuple[Array, ...]:
        """Return ``halo`` [h, F] with ``arrived`` [m, F] at their places, in place."""
        return (put_rows(halo, _places(context, reverse_of(MISSED)), arrived),)


class SwapRows(Action[Any]):
    """Use the rows of the cache in place of those that have just arrived, and keep these for the epochs to come."""

    def run(self, context: PolicyContext, halo: Array, cache: Array, version: Array) -> tuple[Array, ...]:
        """Return ``halo`` [h, F] with the rows of ``cache`` [c, F] at their places; ``cache`` with those that were
        there; and ``version`` int64 [1, 1], the epoch plus one: all in place."""
        version[...] = context.epoch + 1
        places = _places(context, reverse_of(CACHED))
        arrived = pick_rows(halo, places)
        halo = put_rows(halo, places, cache)
        cache[...] = arrived
        return halo, cache, version


class SwapMemories(Action[Any]):
    """Read the rows that owners have just written into the memory of the host, and write into that of older ones."""

    def run(self, context: PolicyContext, *memories: Array) -> tuple[Array, ...]:
        """Return the arrays of the memory that is read (rows, versions) and of the one that is written (rows,
        versions) in each other's place; nothing is copied."""
        return (*memories[2:], *memories[:2])


class FillRest(Action[Any]):
    """Put the rows of a refresh that arrived from their owners into the halo."""

    def run(self, context: PolicyContext, arrived: Array) -> tuple[Array, ...]:
        """Return halo rows [h, F] with ``arrived`` [m, F] at their places; others follow in later ops."""
        return (put_rows(_halo(context, arrived), _places(context, reverse_of(REST)), arrived),)


class PutShared(Action[Any]):
    """Put rows that were read from the memory of the host into the halo."""

    def run(self, context: PolicyContext, rows: Array, halo: Array) -> tuple[Array, ...]:
        """Return ``halo`` [h, F] with ``rows`` [s, F] at their places, in place."""
        return (put_rows(halo, context.arriving, rows),)


class KeepGradients(Action[Any]):
    """Copy the gradients of cached rows out of all gradients that have just arrived at the owners of rows."""

    def run(self, context: PolicyContext, arrived: Array, kept: Array) -> tuple[Array, ...]:
        """Return ``kept`` [k, F], filled in place with rows of ``arrived`` [s, F]."""
        return (pick_rows_into(kept, arrived, _places(context, HELD)),)


def _places(context: PolicyContext, route: str) -> Array:
    assert context.places_of is not None, "the executor lists the rows of routes"
    return context.places_of(route)


def _halo(context: PolicyContext, like: Array) -> Array:
    """Return memory for all rows that the op's route brings."""
    shape = (sum(context.receive), like.shape[1])
    return array_namespace(like).empty(shape, dtype=like.dtype, device=device(like))


def check_age(context: PolicyContext, versions: Array) -> None:
    """Raise :class:`BackendError` unless cached rows are as old as the calendar says: of the last refresh, which with
    ``options["delay"]`` = 1 was in an earlier epoch; or if they are constant (``options["interval"]`` = 0), of any
    epoch. ``versions`` int64 [n, 1]: one more than their epochs."""
    interval, xp = int(context.options["interval"]), array_namespace(versions)
    latest = context.epoch - int(context.options.get("delay", 0))
    if not versions.shape[0]:
        return
    oldest, newest = int(xp.min(versions)), int(xp.max(versions))
    last = latest - latest % interval + 1 if interval else max(oldest, 1)
    if (oldest, newest) != (last, last if interval else newest):
        raise BackendError(
            f"cached rows in use in epoch {context.epoch + 1} (layer {context.layer}, {context.phase}) are of epochs "
            f"{oldest} to {newest} (0: never filled), expected those of epoch {last}: this is a fault of simgnn, not "
            "of the experiment"
        )
