"""Plans of the cache over masters and mirrors: valid for every model and option, with the ops that each needs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.experiment.load import load_experiment
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.make_plan import plan
from simgnn.program.calendar import EVALUATE
from simgnn.program.kinds import OpKind
from simgnn.program.program import Program
from simgnn.program.sizes import Route
from simgnn.program.validate import validate
from tests.experiment.test_master_mirror import statistics


def cut(ranks: int) -> PartitionStats:
    """The made-up vertex-cut with what caches need: every vertex that has mirrors has one."""
    stats = statistics(ranks)
    route = stats.halo
    pairs = np.stack([np.arange(len(route.rows)), np.full(len(route.rows), 2), route.rows], axis=1)
    shared = np.bincount(route.source, route.rows, minlength=ranks).astype(np.int64)
    return replace(stats, tables={**stats.tables, "shared_masters": shared, "mirrors/histogram": pairs})


def planned(ranks: int, *overrides: str) -> Program:
    return plan(load_experiment("cdfgnn", ["model.hidden=8", *overrides]), cut(ranks)).program


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["gcn", "sage", "gin", "gat"]),
    ranks=st.integers(1, 4),
    layers=st.integers(1, 3),
    index=st.sampled_from(["bitmap", "ids"]),
    folds=st.booleans(),
    codec=st.sampled_from(["none", "linear", "stochastic", "bfloat16"]),
)
def test_every_plan_is_valid(kind: str, ranks: int, layers: int, index: str, folds: bool, codec: str) -> None:
    if kind == "gat" and codec in ("linear", "stochastic"):
        codec = "none"  # one range a row is refused there
    program = validate(
        planned(
            ranks, f"model.kind={kind}", f"model.layers={layers}", f"freshness.index={index}",
            f"freshness.fold_on_active={str(folds).lower()}", f"codec.kind={codec}",
        )
    )  # fmt: skip
    steady = [op.name for op in program.templates["steady"].ops]
    routes = {op.route for _, op in program.ops if op.kind is OpKind.EXCHANGE and op.transfer and op.transfer.control}
    ahead = {"bitmap": "mask", "ids": "count"}[index]
    if ranks > 1:
        assert {f"mirrors/{ahead}", f"mirrors/{ahead}/reverse"} <= routes
    # attention alone has a reference, and resets what was sent relative to another
    assert any(name.endswith("/reset/mirrors") for name in steady) == (kind == "gat" and ranks > 1)
    assert not any("reset" in op.name or "settle" in op.name for op in program.templates[EVALUATE].ops)


def test_the_system_is_that_of_the_paper() -> None:
    """docs/systems/cdfgnn.md: a sync of every layer in both directions; none is hoisted."""
    program = planned(3)
    ops = {op.name for op in program.templates["steady"].ops}
    for layer in (1, 2):
        for phase in ("forward", "backward"):
            assert f"{phase}/{layer}/scatter/exchange" in ops
            assert (f"{phase}/{layer}/gather/exchange" in ops) == ((phase, layer) != ("backward", 2))
    assert len(program.publications) == 3
    assert set(program.templates) == {"steady", EVALUATE}
    mirrors = program.sizes.routes["mirrors"].matrix(3)
    assert program.publications[0].rows(program.sizes)[2].matrix(3).tolist() == mirrors.tolist()


@pytest.mark.parametrize("index", ["bitmap", "ids"])
@pytest.mark.parametrize(("kind", "codec"), [("gcn", "linear"), ("gat", "bfloat16"), ("sage", "none")])
def test_hosts_that_add_up_first_are_planned(kind: str, codec: str, index: str) -> None:
    """Parts inside hosts, of hosts, what masters publish across hosts, and inside them; the top has nothing to give."""
    # rank 0 has a mirror on each of three others; ranks 0, 1 and 2, 3 share a host
    matrix = np.array([[0, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    tables = {"train_rows": np.full(4, 50), "mirrors/across": np.array([[0, 2, 1]]),
              "mirrors/within": np.array([[0, 1, 1], [2, 3, 1]]), "shared_masters": np.array([1, 0, 0, 0])}  # fmt: skip
    stats = replace(statistics(4), hosts=np.array([0, 0, 1, 1]), halo=Route.from_matrix(matrix), tables=tables)
    settings = ["model.hidden=8", "communication.exchange=host-aggregated", f"model.kind={kind}", f"codec.kind={codec}",
                f"freshness.index={index}"]  # fmt: skip
    program = validate(plan(load_experiment("cdfgnn", settings), stats).program)
    sent = [
        op for op in program.templates["steady"].ops if op.transfer is not None and op.transfer.decision is not None
    ]
    hops = [op.name.removesuffix("/exchange") for op in sent if op.name.endswith("/exchange")]
    inward, outward = ["gather/within", "gather/across"], ["scatter/across", "scatter/within"]
    assert hops == [
        *(f"forward/{layer}/{hop}" for layer in (1, 2) for hop in (*inward, *outward)),
        *(f"backward/2/{hop}" for hop in outward),
        *(f"backward/1/{hop}" for hop in (*inward, *outward)),
    ]
    assert program.sizes.routes["mirrors/across"].matrix(4).tolist() == [[0, 0, 1, 0], *[[0] * 4] * 3]
    resets = {op.name for op in program.templates["steady"].ops if "/reset/" in op.name}
    assert bool(resets) == (kind == "gat")
