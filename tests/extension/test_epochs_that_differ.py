"""Policies of a user's own whose epochs differ: what they learn, what they refuse, and what is reported of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor.state.plan import RunPlan
from simgnn.cli.main import invoke
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.program.kinds import OpKind
from simgnn.program.program import remembered
from simgnn.program.storage import program_digest
from simgnn.record.result import Result, read_result
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.report.results import result_lines
from tests.equality.late_runs import HIDDEN, errors, reference_of
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph, train_in_process
from tests.extension.worlds import outside
from tests.late_reference import Lateness

KEPT, WIDE = "freshness.kind=my_policies.refreshed:Refreshed", "codec.kind=my_policies.wide_first:WideFirst"
EVERY = 3
REFRESHED = ("communication.rows=input", KEPT, f"freshness.interval={EVERY}", f"train.epochs={2 * EVERY + 1}")
CASES = {
    "gcn": (*REFRESHED, "model.kind=gcn", HIDDEN, "model.layers=3"),
    "sage, transformed": (*REFRESHED, "model.kind=sage", "model.layers=3", "partition.kind=metis"),
    "gat": (*REFRESHED, "model.kind=gat", "model.heads=2"),
}
BESIDE = "schedule.kind=pipelined"
TRAFFIC = ("payload_epochs", "bytes_sent", "messages", "collective_bytes", "control_bytes")
"""Fields of a result that are means over a period."""
STOPPED = ("train.checkpoint_every=2", "train.eval_every=1")


@pytest.fixture(autouse=True)
def _policies(tmp_path: Path) -> None:
    outside(tmp_path)


def train(folders: list[Path], ranks: int, where: Path, *how: Any) -> list[dict[str, Any]]:
    """What rank 0 returned of each run."""
    return run_ranks(ranks, train_in_process, where, list(map(str, folders)), *how, joined=False)[0]


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_one_process_that_holds_the_same_kept_rows_learns_the_same(tmp_path: Path, ranks: int) -> None:
    graph = small_graph()
    cases = {**CASES, "beside": (*CASES["gcn"], BESIDE)}
    folders = [prepared_run(graph, tmp_path / name, ranks, *settings) for name, settings in cases.items()]
    found = dict(zip(cases, train(folders, ranks, tmp_path / "ranks"), strict=True))
    for name, folder in zip(CASES, folders, strict=False):
        expected = reference_of(folder, graph, Lateness(interval=EVERY))
        exact = reference_of(folder, graph, Lateness(interval=EVERY), apart=False)
        assert abs(exact.losses[-1] - expected.losses[-1]) > 1e-7, "kept rows change what is learned"
        assert max(errors(found[name], expected).values()) <= 1e-10, (name, errors(found[name], expected))
    assert found["beside"]["losses"] == found["gcn"]["losses"], "to the last bit"


def test_other_epochs_have_no_op_that_sends_rows(tmp_path: Path) -> None:
    plan = RunPlan.open(prepared_run(small_graph(), tmp_path / "run", 2, *REFRESHED, HIDDEN))
    sends = {
        name: {op.name for op in template.ops if op.kind is OpKind.EXCHANGE}
        for name, template in plan.program.templates.items()
    }
    assert list(sends) == ["first+refresh", "steady", "refresh", "evaluate"]
    assert sends["steady"] == set()
    assert sends["refresh"] == {"forward/2/exchange", "backward/2/exchange"}
    assert sends["first+refresh"] == {*sends["refresh"], "setup/1/exchange"}
    assert sends["evaluate"] == {"forward/2/exchange"}


def test_a_rank_alone_has_the_program_of_exact_training(tmp_path: Path) -> None:
    alone = [(KEPT,), (WIDE,), ()]
    plans = [RunPlan.open(prepared_run(small_graph(), tmp_path / str(n), 1, *one)) for n, one in enumerate(alone)]
    assert len({program_digest(plan.program) for plan in plans}) == 1


def test_a_run_resumes_in_the_middle_of_a_period(tmp_path: Path) -> None:
    settings = (*REFRESHED, WIDE, "codec.period=5", *STOPPED)
    whole, broken = (prepared_run(small_graph(), tmp_path / name, 2, *settings) for name in ("whole", "broken"))
    (expected,) = train([whole], 2, tmp_path / "ranks-whole")
    train([broken], 2, tmp_path / "ranks-broken", None, False, 5, True)
    plan = RunPlan.open(broken)
    assert [path.name for path in plan.checkpoints.glob("epoch-*")] == ["epoch-4"], "neither period begins with it"
    (got,) = train([broken], 2, tmp_path / "ranks-resumed", None, True)
    assert got["losses"] == expected["losses"]
    assert got["evaluations"] == expected["evaluations"]
    assert torch.equal(got["parameters"], expected["parameters"])
    assert len(got["gradients"]) == 3
    kinds = [read_result(folder / "result.json").epoch_kinds for folder in (whole, broken)]
    assert [[kind.template for kind in of] for of in kinds] == [["wide", "refresh", "steady"]] * 2


TRACING = '''
from typing import ClassVar
from array_api_compat import array_namespace
from my_policies.wide_first import WideFirst
from simgnn.emit import templates_of
from simgnn.policy import Action, Codec, Epochs
from simgnn.program.kinds import OpKind

class Trace(Action):
    def run(self, context, rows, largest):
        assert context.epoch % 3 == 2
        xp = array_namespace(rows)
        largest[...] = xp.max(xp.abs(rows)) if rows.shape[0] else 0.0
        return (largest,)

class Assign(Action):
    def run(self, context, *traced):
        found = sum(float(one[0, 0]) for one in traced[:-1])
        assert found > 0
        traced[-1][...] += 1
        return (traced[-1],)

class Tracing(WideFirst):
    """Traces rows in the last epoch of a period, and then does something with what was traced."""
    actions: ClassVar = (*Codec.actions, Trace, Assign)

    @property
    def epochs(self):
        return Epochs(self.period, {"assign": self.period - 1})

    def emit_beside(self, builder, sync, stage):
        traced = builder.buffer(f"range/{sync.point}", 1, 1, persistent=True)
        builder.compute(sync.only("assign").templates, sync.op(stage, "trace"), OpKind.SELECT, [stage.packed, traced],
                        [traced], (), Trace, module="codec", **sync.overhead)

    def emit_epoch_end(self, builder, templates):
        traced = [name for name in builder.buffers if name.startswith("range/")]
        done = builder.buffer("assigned", 1, 1, "float64", persistent=True)
        builder.compute(templates_of(templates, "assign"), "update/assign", OpKind.SELECT, [*traced, done], [done], (),
                        Assign, module="codec", phase="update")
'''


def test_a_codec_has_ops_of_its_own_in_some_epochs(tmp_path: Path) -> None:
    (tmp_path / "tracing.py").write_text(TRACING)
    settings = ("communication.rows=input", "train.epochs=7", "codec.period=3", "codec.exact=true")
    folders = [
        prepared_run(small_graph(), tmp_path / str(n), 2, *settings, kind)
        for n, kind in enumerate(("codec.kind=tracing:Tracing", WIDE))
    ]
    program = RunPlan.open(folders[0]).program
    traced = {name: [op.name for op in template.ops if op.action in ("Trace", "Assign")]
              for name, template in program.templates.items()}  # fmt: skip
    every = ["forward/2/trace", "backward/2/trace", "update/assign"]
    assert traced == {"first": [], "steady": [], "assign": every, "evaluate": []}
    assert {"range/2/forward", "range/2/backward", "assigned"} <= remembered(program), "a checkpoint holds them"
    plain, tracing = train(folders, 2, tmp_path / "ranks")
    assert plain["losses"] == tracing["losses"]


REFUSED = {
    "mini-batches": ("codec.kind", WIDE, "batching.kind=sampled", "communication.kind=store", "placement.kind=store"),
    "blocks": (
        "codec.kind", "codec.kind=my_policies.wide_first:WideFirst", "partition.kind=block-row",
        "communication.kind=block-broadcast",
    ),
    "periods that seldom meet": ("codec.kind", KEPT, "freshness.interval=97", WIDE, "codec.period=89"),
    "a vertex-cut": ("freshness.kind", KEPT, "partition.kind=ebv", "communication.kind=master-mirror"),
    "no interval": ("freshness.interval", KEPT, "freshness.interval=0"),
    "part of an epoch": ("codec.period", WIDE, "codec.period=2.5"),
    "one name twice": ("codec.kind", KEPT, "codec.kind=twice:Twice"),
    "no place": ("codec.kind", "codec.kind=twice:Late"),
    "no epochs": ("codec.kind", "codec.kind=twice:Nothing"),
}  # fmt: skip
TWICE = """
from my_policies.wide_first import WideFirst
from simgnn.policy import Epochs

class Twice(WideFirst):
    @property
    def epochs(self):
        return Epochs(2, {"refresh": 1})

class Late(WideFirst):
    @property
    def epochs(self):
        return Epochs(2, {"wide": 2})

class Nothing(WideFirst):
    @property
    def epochs(self):
        return None
"""


@pytest.mark.parametrize("case", REFUSED)
def test_the_key_of_what_cannot_be_is_named(case: str, tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(TWICE)
    key, *settings = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        load_experiment("vanilla", settings)
    assert caught.value.exit_status == 2
    assert any(f"{key}: " in problem for problem in caught.value.problems), caught.value.problems


@pytest.mark.usefixtures("forked_ranks")
def test_what_is_reported_of_each_kind_of_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("graph.vertices=400", "graph.edges=2500", "graph.feature_width=16", "model.hidden=8")
    settings = (*small, KEPT, "freshness.interval=10")
    given = ["vanilla", "--ranks", "2", *(word for one in settings for word in ("--set", one))]
    paths = {name: str(tmp_path / name) for name in ("simulate", "run")}
    found: dict[str, Result] = {}
    for command, path in paths.items():
        assert invoke([command, *given, "--epochs", "23", "--out", path]) == 0
        found[command] = read_result(Path(path) / "result.json")
        kinds = {kind.template: kind for kind in found[command].epoch_kinds}
        assert list(kinds) == ["refresh", "steady"]
        counts = [(kind.epochs_of_period, kind.period, kind.epochs) for kind in kinds.values()]
        assert counts == [(1, 10, 2), (9, 10, 20)]
        expected = 0.1 * kinds["refresh"].epoch_s_median + 0.9 * kinds["steady"].epoch_s_median
        assert found[command].epoch_s_median == pytest.approx(expected, rel=1e-12)
        lines = dict(result_lines(found[command]))
        assert {"epoch, mean of 10", "every 10th epoch (refresh)", "other epochs"} <= set(lines)
    kinds = {kind.template: kind.epoch_s_median for kind in found["simulate"].epoch_kinds}
    assert kinds["refresh"] > 1.02 * kinds["steady"]
    for field in TRAFFIC:
        assert getattr(found["simulate"], field) == getattr(found["run"], field), field
    trace_of_run = read_table(RunDirectory(Path(paths["run"])).trace).to_pandas()
    sent = trace_of_run[trace_of_run["step"] >= 0].groupby("epoch")["bytes_sent"].sum()
    refreshed, others = sent[[10, 20]], sent.drop([0, 10, 20])
    assert refreshed.min() > others.max() == 0
    assert np.sum(found["run"].bytes_sent) == pytest.approx(0.1 * refreshed.mean(), rel=1e-12), "a tenth of all epochs"
    assert "traffic, mean of 10" in dict(result_lines(found["run"]))
    capsys.readouterr()
    trace = tmp_path / "trace.json"
    assert invoke(["compare", paths["simulate"], paths["run"], "--json", "--trace", str(trace)]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert (compared["bytes_differ"], compared["messages_differ"], compared["ops_unmatched"]) == (0, 0, 0)
    assert trace.stat().st_size > 0
    exposed = compared["communication_of_an_epoch"]["exposed"]
    for command, side in (("simulate", "predicted_s"), ("run", "measured_s")):
        assert exposed[side] == pytest.approx(np.mean([rank.comm_exposed_s for rank in found[command].per_rank]))
    # a run that goes on counts as one that was not interrupted
    longer = [*given, "--epochs", "32"]
    assert invoke(["run", *longer, "--resume", "--out", paths["run"]]) == 0
    assert invoke(["simulate", *longer, "--out", str(tmp_path / "longer")]) == 0
    on, whole = (read_result(path / "result.json") for path in (Path(paths["run"]), tmp_path / "longer"))
    for field in TRAFFIC:
        assert getattr(on, field) == getattr(whole, field), field
