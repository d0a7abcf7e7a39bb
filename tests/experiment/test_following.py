"""What follows layers in a plan: which activation, dropout where and for how much, and what is refused."""

from collections.abc import Callable

import pytest

from simgnn.emit.batches.names import VERTICES, rows_after
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.model.costs import EXPONENTIAL_PASSES
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.make_plan import Planned
from simgnn.program.calendar import EVALUATE
from simgnn.program.kinds import Form, OpKind
from tests.experiment import test_master_mirror as mirrors_plan
from tests.experiment import test_plan_blocks as blocks_plan
from tests.experiment.test_planner import planned, statistics
from tests.sim.mini_batches import made_sizes
from tests.sim.mini_batches import planned as planned_batches


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("dropout", "1", r"got 1, expected a number >= 0 and < 1"),
        ("dropout", "1.0", r"got 1\.0, expected a number >= 0 and < 1"),
        ("dropout", "-0.1", r"got -0\.1, expected a number >= 0 and < 1"),
        ("dropout", "true", r"got true, expected a number"),
        ("dropout", "'half'", r"got 'half', expected a number"),
        ("dropout", "nan", r"got nan, expected a number"),
        ("dropout", "[0.5]", r"got \[0\.5\], expected a number"),
        ("dropout", "1e-6", r"got 1e-06, expected 0, or a share that, rounded to a multiple of 1/65536"),
        ("dropout", "0.999999", r"got 0\.999999, expected 0, or a share"),
        ("activation", "'gelu'", r"got 'gelu', expected one of 'auto', 'relu', 'elu'"),
        ("activation", "true", r"got true, expected one of 'auto', 'relu', 'elu'"),
    ],
)
def test_what_is_no_share_or_activation_is_refused(key: str, value: str, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.{key}: {told}"):
        load_experiment("vanilla", [f"model.{key}={value}"])


def test_layers_of_the_users_own_do_it_themselves() -> None:
    own = "model.kind=some.module:Class"
    for stated in ("dropout=0.5", "activation=relu"):
        with pytest.raises(ConfigError, match=rf"model\.{stated.split('=')[0]}: got .* of your own does that in its"):
            load_experiment("vanilla", [own, f"model.{stated}"])
    load_experiment("vanilla", [own, "model.dropout=0.0", "model.activation=auto"])


def test_one_layer_has_none_behind_which_anything_follows() -> None:
    for stated in ("dropout=0.5", "activation=elu"):
        with pytest.raises(
            ConfigError, match=rf"model\.{stated.split('=')[0]}: got .* with model\.layers = 1, expected"
        ):
            load_experiment("vanilla", ["model.layers=1", f"model.{stated}"])
    shipped = load_experiment("distdgl", ["model.layers=1", "batching.fanouts=[5]"])
    assert shipped.model.dropout == 0.0


PLANS: dict[str, tuple[Callable[..., Planned], PartitionStats]] = {
    "halo": (planned, statistics(3)),
    "blocks": (blocks_plan.planned, blocks_plan.blocks(3)),
    "mirrors": (mirrors_plan.planned, mirrors_plan.statistics(3)),
}
"""Communication -> how it is planned, and for what."""


@pytest.mark.parametrize("communication", PLANS)
@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat"])
def test_dropout_follows_every_hidden_layer_in_training_alone(kind: str, communication: str) -> None:
    make, stats = PLANS[communication]
    stated = [f"model.kind={kind}", "model.layers=3", "model.hidden=[8,12]", "model.order=auto"]
    found, without = make(stats, *stated, "model.dropout=0.25"), make(stats, *stated)
    program, trained = found.program, [name for name in found.program.templates if name != EVALUATE]
    for name in trained:
        template = program.templates[name]
        ops = {op.name: op for op in template.ops if op.name.endswith("/dropout")}
        assert list(ops) == [f"forward/{k}/dropout" for k in (1, 2)] + [f"backward/{k}/dropout" for k in (2, 1)]
        names = [op.name for op in template.ops]
        for index, width in ((1, 8), (2, 12)):
            forward, backward = ops[f"forward/{index}/dropout"], ops[f"backward/{index}/dropout"]
            assert names.index(forward.name) == names.index(f"forward/{index}/update") + 1
            assert names.index(backward.name) < names.index(f"backward/{index}/update")
            for op, rows in ((forward, f"hidden/{index}"), (backward, f"d/hidden/{index}")):
                assert op.kind is OpKind.ELEMENTWISE
                assert [access.buffer for access in op.reads] == [rows, VERTICES]
                assert [access.buffer for access in op.writes] == [rows]
                assert (op.form, dict(op.options)) == (Form.DROPOUT, {"dropped": 16384})
                [work] = op.work
                assert (work.primitive, work.sizes["width"], work.sizes["passes"]) == ("elementwise", width, 2)
        rest = [op.name for op in template.ops if op.name not in ops]
        assert rest == [op.name for op in without.program.templates[name].ops]
    assert program.templates[EVALUATE] == without.program.templates[EVALUATE]
    held = program.buffers[VERTICES]
    assert (held.rows, held.width, held.dtype, held.persistent) == (program.buffers["hidden/1"].rows, 1, "int64", True)
    assert VERTICES not in without.program.buffers


def test_of_mini_batches_each_rank_draws_for_its_own() -> None:
    sizes = made_sizes([0, 1], hops=3)
    program = planned_batches("distdgl", [0, 1], sizes).program
    dropped = [op for op in program.templates["step"].ops if op.form is Form.BATCH_DROPOUT]
    ways = ("forward/1", "forward/2", "backward/2", "backward/1")
    assert [op.name for op in dropped] == [f"{way}/dropout" for way in ways]
    assert all(op.options["dropped"] == 32768 for op in dropped)
    assert [op.work[0].sizes["rows"] for op in dropped] == [rows_after(hop) for hop in (2, 1, 1, 2)]
    assert not any("dropout" in op.name for op in program.templates[EVALUATE].ops)
    plain = planned_batches("distdgl", [0, 1], sizes, "model.dropout=0").program
    kept = [op.name for op in program.templates["step"].ops if op not in dropped]
    assert [op.name for op in plain.templates["step"].ops] == kept


def test_attention_on_mini_batches_has_elu_and_all_else_relu() -> None:
    """docs/systems/mini-batches.md; what was resolved is written into the plan."""
    sizes = made_sizes([0])
    for kind, expected in (("sage", "relu"), ("gcn", "relu"), ("gin", "relu"), ("gat", "elu")):
        found = planned_batches("rapidgnn", [0], sizes, f"model.kind={kind}")
        assert found.resolved["model.activation"] == expected
        assert [layer.follows for layer in found.layers] == [expected, "none"]
        assert [layer.dropout for layer in found.layers] == [0.5, 0.0]
        assert planned(statistics(2), f"model.kind={kind}").resolved["model.activation"] == "relu"
        stated = planned_batches("rapidgnn", [0], sizes, f"model.kind={kind}", "model.activation=relu")
        assert [layer.follows for layer in stated.layers] == ["relu", "none"]


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat"])
def test_an_exponential_costs_its_passes_forward_alone(kind: str) -> None:
    passes = {}
    for function in ("relu", "elu"):
        program = planned(statistics(2), f"model.kind={kind}", f"model.activation={function}").program
        passes[function] = {
            op.name: sum(int(work.sizes.get("passes", 0)) for work in op.work)  # type: ignore[call-overload]
            for op in program.templates["steady"].ops
        }
    found = {
        name: passes["elu"][name] - count for name, count in passes["relu"].items() if passes["elu"][name] != count
    }
    assert {name: more for name, more in found.items() if more} == {"forward/1/update": EXPONENTIAL_PASSES}
