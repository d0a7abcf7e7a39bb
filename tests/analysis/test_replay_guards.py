"""Guards carried over to other partitions and longer runs keep the share of what is sent, and nothing else."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from simgnn.analysis.replay.extrapolation import carried_guards
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.planner.make_plan import plan
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray
from tests.experiment.test_plan_blocks import blocks

EPOCHS = 12


def program(ranks: int, *overrides: str) -> Program:
    gap = "freshness.rule=variation-gap"
    return plan(load_experiment("sancus", [gap, *overrides]), blocks(ranks)).program


def record(of: Program, seed: int = 0) -> dict[str, IntArray]:
    """What a made-up run on these ranks decided: every root by itself, all in the first epoch."""
    draw = np.random.default_rng(seed)
    found = {}
    for _, op in of.ops:
        if op.guard is not None:
            sends = (draw.random(EPOCHS) < 0.4).astype(np.int64)
            sends[0] = 1
            found[op.guard.decision] = np.broadcast_to(sends[None, :, None], (of.ranks, EPOCHS, 1))
    return found


def shares(values: dict[str, IntArray], point: str) -> np.ndarray:
    """Share of roots that send in each epoch."""
    return np.mean([v[0, :, 0] for name, v in values.items() if name.startswith(f"{point}/root-")], axis=0)


@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_the_share_of_blocks_is_kept_on_other_ranks(ranks: int) -> None:
    there, here = program(4), program(ranks)
    recorded = record(there)
    found = carried_guards(recorded, there, here, EPOCHS, same=False)
    assert len(found) == (2 * ranks if ranks > 1 else 0)
    for point in ("agreed/1/forward", "agreed/2/forward"):
        if ranks == 1:
            continue
        got, wanted = shares(found, point), shares(recorded, point)
        assert got[0] == 1
        # each root is off by less than one block at any time
        assert np.abs(np.cumsum(got - wanted)).max() < 1
    for name, values in found.items():
        assert values.shape == (ranks, EPOCHS, 1), name
        assert set(np.unique(values)) <= {0, 1}


def test_the_record_holds_as_far_as_it_goes() -> None:
    made = program(3)
    recorded = record(made)
    found = carried_guards(recorded, made, made, 3 * EPOCHS, same=True)
    for name, values in found.items():
        assert np.array_equal(values[:, :EPOCHS], recorded[name])


def _follow(
    of: Program, moved: Callable[[NDArray[np.float64]], NDArray[np.float64]], epochs: int
) -> dict[str, IntArray]:
    """What roots decide whose blocks move by ``moved`` of the bound an epoch, each begun at another place."""
    found, walked = {}, np.cumsum(moved(np.arange(epochs, dtype=np.float64)))
    for _, op in of.ops:
        if op.guard is not None and op.root is not None:
            sends = np.diff(np.floor(walked + op.root / of.ranks), prepend=-1) > 0
            sends[0] = True
            found[op.guard.decision] = np.broadcast_to(sends[None, :, None].astype(np.int64), (of.ranks, epochs, 1))
    return found


@pytest.mark.parametrize(
    ("moved", "off"),
    [
        (lambda epochs: np.full(len(epochs), 1 / 3), 0.05),
        (lambda epochs: 0.05 + 0.8 * np.exp(-epochs / 20), 0.15),
        (lambda epochs: np.where(epochs > 0, 0.0, 1.0), 0.0),
    ],
    ids=["every third", "settling", "never again"],
)
def test_past_the_record_shares_follow_its_curve(
    moved: Callable[[NDArray[np.float64]], NDArray[np.float64]], off: float
) -> None:
    made = program(4)
    whole = _follow(made, moved, 240)
    found = carried_guards({name: v[:, :80] for name, v in whole.items()}, made, made, 240, same=True)
    for name, values in found.items():
        assert np.array_equal(values[:, :80], whole[name][:, :80])
    for point in ("agreed/1/forward", "agreed/2/forward"):
        got, wanted = shares(found, point)[80:].sum(), shares(whole, point)[80:].sum()
        assert abs(got - wanted) <= off * wanted + (1 if off else 0)


def test_a_short_record_goes_on_at_its_mean() -> None:
    made = program(2)
    recorded = {name: v[:, :4] for name, v in _follow(made, lambda epochs: np.full(len(epochs), 0.5), 4).items()}
    found = carried_guards(recorded, made, made, 104, same=True)
    for point in ("agreed/1/forward", "agreed/2/forward"):
        mean = shares(recorded, point)[1:].mean()
        assert shares(found, point)[4:].mean() == pytest.approx(mean, abs=0.02)


def test_what_cannot_be_carried_over_is_refused() -> None:
    there = program(2)
    recorded = record(there)
    with pytest.raises(ConfigError, match="recorded for layer 3, forward"):
        carried_guards(recorded, there, program(2, "model.layers=3"), EPOCHS, same=False)
    name = "agreed/1/forward/root-0"
    recorded[name] = recorded[name].copy()
    recorded[name][1, 3] += 1
    with pytest.raises(ConfigError, match=f"do not agree on .{name}."):
        carried_guards(recorded, there, there, EPOCHS, same=False)
    del recorded[name]
    with pytest.raises(ConfigError, match=f"lacks the decision .{name}."):
        carried_guards(recorded, there, program(3), EPOCHS, same=False)
