"""Toy policies of a user's own, one file each outside of the tree: simulated, run, replayed and compared."""

import ast
import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from simgnn import emit
from simgnn.analysis.replay.activity import read_recording, replay
from simgnn.cli.main import invoke
from simgnn.program.storage import program_digest
from simgnn.record.activity import decisions_in
from tests.extension.worlds import PAGE, Trained, differing, imported, outside, payload, policies, simulated, train_all

DENSE = ("communication.rows=transformed",)
INPUTS = "communication.rows=input"
REFRESHED, WIDE = "freshness.kind=my_policies.refreshed:Refreshed", "codec.kind=my_policies.wide_first:WideFirst"
CODEC = "codec.kind=my_policies.top_k:TopK"
PHASE, NORM = "freshness.kind=my_policies.every_kth:EveryKth", "freshness.kind=my_policies.norm_change:NormChange"
ROUNDS, BESIDE = "communication.kind=my_policies.two_rounds:TwoRounds", "schedule.kind=my_policies.beside:Beside"
OWN = "schedule.kind=my_policies.own_first:OwnFirst"
BATCHES, AHEAD = ("batching.structure=replicated", "schedule.kind=bsp"), "schedule.kind=my_policies.ahead:Ahead"
CASES = {
    "vanilla": DENSE,
    "codec": (*DENSE, CODEC, "codec.keep=3"),
    "codec, all elements": (*DENSE, CODEC, "codec.keep=64"),
    "random phase": (*DENSE, PHASE, "freshness.interval=3"),
    "random phase, every epoch": (*DENSE, PHASE, "freshness.interval=1"),
    "refreshed": (*DENSE, REFRESHED, "freshness.interval=2"),
    "refreshed, every epoch": (*DENSE, REFRESHED, "freshness.interval=1"),
    "wide first": (*DENSE, WIDE, "codec.period=3"),
    "wide first, every epoch": (*DENSE, WIDE, "codec.period=1"),
    "refreshed and wide": (INPUTS, REFRESHED, "freshness.interval=2", WIDE, "codec.period=3"),
    "norm and wide": (*DENSE, NORM, "freshness.share=0.02", WIDE, "codec.period=2"),
    "norm": (*DENSE, NORM, "freshness.share=0.02"),
    "norm, any change": (*DENSE, NORM, "freshness.share=0"),
    "both": (*DENSE, NORM, "freshness.share=0.02", CODEC),
    "two rounds": (ROUNDS,),
    "two rounds, norm": (ROUNDS, NORM, "freshness.share=0.02", CODEC),
    "stripes": (*DENSE, "partition.kind=my_policies.stripes:Stripes", "partition.height=7"),
    "beside": (*DENSE, BESIDE),
    "beside, in order": (*DENSE, BESIDE, "schedule.chained=true"),
    "beside, as ever": (*DENSE, BESIDE, "schedule.apart=false", "schedule.latest=false"),
    "own first": (*DENSE, OWN),
    "own first, norm": (*DENSE, OWN, NORM, "freshness.share=0.02", CODEC),
    "own first, as ever": (*DENSE, OWN, "schedule.hidden=false"),
    "batches": BATCHES,
    "ahead": (*BATCHES, AHEAD),
    "ahead, one batch": (*BATCHES, AHEAD, "schedule.window=1"),
    "bounded store": (*BATCHES, "placement.kind=my_policies.bounded_store:BoundedStore"),
}
SAME_LOSSES = {
    **dict.fromkeys(("codec, all elements", "random phase, every epoch", "norm, any change", "two rounds"), "vanilla"),
    **dict.fromkeys(("refreshed, every epoch", "wide first, every epoch"), "vanilla"),
    **dict.fromkeys(("beside", "beside, in order", "beside, as ever"), "vanilla"),
    **dict.fromkeys(("own first", "own first, as ever"), "vanilla"),
    "own first, norm": "both",
    **dict.fromkeys(("ahead", "ahead, one batch", "bounded store"), "batches"),
}
SAME_PROGRAM = {
    **dict.fromkeys(("beside, as ever", "own first, as ever"), "vanilla"),
    "ahead, one batch": "batches",
    "bounded store": "batches",
}
FASTER = {"beside": "vanilla", "own first": "vanilla", "own first, norm": "both", "ahead": "batches"}
ON_THREE = (
    "vanilla",
    "codec",
    "random phase",
    "refreshed",
    "wide first",
    "refreshed and wide",
    "norm and wide",
    "norm",
    "both",
    "two rounds, norm",
    "own first",
    "own first, norm",
    "batches",
    "ahead",
)
"""The cases that are trained on three ranks too."""
LOSSY = ("codec", "random phase", "refreshed", "wide first", "norm and wide", "norm", "both", "two rounds, norm")
Runs = dict[tuple[str, int], Trained]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Every case on 2 ranks, and ``ON_THREE``."""
    folder = tmp_path_factory.mktemp("user")
    outside(folder)
    cases = {2: CASES, 3: {name: CASES[name] for name in ON_THREE}}
    return {
        (name, ranks): run
        for ranks in cases
        for name, run in train_all(folder / str(ranks), ranks, cases[ranks]).items()
    }


def test_the_page_is_complete_and_imports_what_authors_are_promised() -> None:
    named = {word.partition(":")[0] for case in CASES.values() for word in " ".join(case).split("my_policies.")[1:]}
    assert set(policies()) == named, "every file of the page is run"
    for name, text in policies().items():
        found = {module for module in imported(text) if not module.startswith("simgnn.program.")}
        assert found <= {"simgnn.policy", "simgnn.emit"}, name


def test_a_type_checker_sees_the_names_that_authors_import() -> None:
    tree = ast.parse(Path(emit.__file__).read_text())
    seen = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(seen) == set(emit.__all__)
    for name, home in seen.items():
        assert getattr(emit, name) is getattr(importlib.import_module(home or ""), name)


@pytest.mark.parametrize(("name", "ranks"), [*((name, 2) for name in CASES), *((name, 3) for name in ON_THREE)])
def test_program_simulation_and_run_count_the_same_bytes(runs: Runs, name: str, ranks: int) -> None:
    assert differing(runs[name, ranks]) == []


@pytest.mark.parametrize("ranks", [2, 3])
def test_settings_that_change_no_value_give_the_same_losses(runs: Runs, ranks: int) -> None:
    ran = {name for name, of in runs if of == ranks}
    for name, plain in SAME_LOSSES.items():
        if name in ran:
            assert runs[name, ranks].losses == runs[plain, ranks].losses, name
    for name, plain in SAME_PROGRAM.items():
        if name in ran:
            assert program_digest(runs[name, ranks].program) == program_digest(runs[plain, ranks].program), name


@pytest.mark.parametrize("name", FASTER)
def test_a_schedule_lets_ops_run_beside_one_another(runs: Runs, name: str) -> None:
    assert sum(simulated(runs[name, 2]).epoch_s) < sum(simulated(runs[FASTER[name], 2]).epoch_s)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", LOSSY)
def test_other_settings_send_less_and_learn_something_else(runs: Runs, name: str, ranks: int) -> None:
    lossy, exact = runs[name, ranks], runs["vanilla", ranks]
    assert payload(lossy) < payload(exact)
    assert lossy.losses != exact.losses
    assert lossy.losses[-1] < lossy.losses[0]


@pytest.mark.parametrize("name", ["random phase", "norm", "both", "two rounds, norm", "own first, norm"])
def test_decisions_are_replayed_on_another_partition(runs: Runs, name: str) -> None:
    two, three = runs[name, 2], runs[name, 3]
    again = replay(read_recording(two.folder), two.program, decisions_in(two.program), two_digests(two), 5, 0, None)
    assert not again.transferred
    found = replay(
        read_recording(two.folder), three.program, decisions_in(three.program), frozenset({"another"}), 5, 0, None
    )
    assert found.transferred
    assert set(found.activity) == decisions_in(three.program)
    for decision, values in found.activity.items():
        if values.ndim == 4 and decision in two.decided:
            shares = [
                decided[decision][..., 1:, 0].sum() / decided[decision][..., 0, 0].sum() / 4
                for decided in (two.decided, found.activity)
            ]
            assert np.isclose(*shares, atol=0.02), decision


def two_digests(run: Trained) -> frozenset[str]:
    """What names the partition of a run."""
    return read_recording(run.folder).digests


@pytest.mark.usefixtures("forked_ranks")
def test_the_first_example_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a reader types it, on a smaller graph."""
    (tmp_path / "top_k.py").write_text(policies()["top_k"])
    (tmp_path / "mine.toml").write_text(re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)[0])
    small = ("graph.vertices=400", "graph.edges=2500", "graph.feature_width=16", "model.hidden=8", "train.epochs=3")
    given = [str(tmp_path / "mine.toml"), "--ranks", "2", *(word for one in small for word in ("--set", one))]
    predicted, measured = str(tmp_path / "predicted"), str(tmp_path / "measured")
    assert invoke(["simulate", *given, "--out", predicted]) == 0
    assert invoke(["run", *given, "--out", measured]) == 0
    capsys.readouterr()
    assert invoke(["compare", predicted, measured, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["bytes_differ"], found["messages_differ"], found["ops_unmatched"]) == (0, 0, 0)
