"""Options that another choice leaves without effect: refused where a user set them, dropped where a system did."""

from pathlib import Path

import numpy as np
import pytest
import tomli_w

from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.planner.directory import differences
from simgnn.planner.make_plan import plan
from simgnn.program.storage import program_digest
from simgnn.study.cases import case_experiment
from tests.experiment.test_master_mirror import statistics as vertex_cut
from tests.experiment.test_plan_blocks import blocks
from tests.experiment.test_planner import statistics as edge_cut

GAT = ("model.kind=gat", "model.order=auto")
NEVER, RESENT = "model.hoist=never", "communication.resend_inputs=true"
SAVED = "communication.weight_gradient=saved-sum"
HOSTS = "communication.exchange=host-aggregated"


class Whole:
    """A layer of a user's own, of one segment."""

    def forward(self, csr: object, rows: object) -> object:
        return rows


@pytest.mark.parametrize(
    ("system", "settings", "message"),
    [
        ("cagnet", [*GAT, RESENT], r"communication\.resend_inputs: got true with model\.kind = 'gat', expected false"),
        ("cagnet", [*GAT, SAVED], r"communication\.weight_gradient: got 'saved-sum' with model\.kind = 'gat'"),
        ("cagnet", ["model.kind=gin", SAVED], r"communication\.weight_gradient: got 'saved-sum' with .* = 'gin'"),
        ("cagnet", ["model.order=transform-first", RESENT], r"resend_inputs: got true with model\.order = 'tr"),
        (
            "cagnet",
            [NEVER],
            r"model\.hoist: got 'never' with communication\.kind = 'block-broadcast', .*, expected 'auto'",
        ),
        (
            "cdfgnn",
            ["model.kind=gat", "codec.kind=none", NEVER],
            r"model\.hoist: got 'never' with model\.kind = 'gat'.*; remove it$",
        ),
        ("vanilla", ["model.order=transform-first", NEVER], r"model\.hoist: got 'never' with model\.order = 'tr"),
        (
            "vanilla",
            ["communication.rows=transformed", NEVER],
            r"model\.hoist: .*with communication\.kind = 'halo', which sends tr",
        ),
        (
            "vanilla",
            [RESENT, NEVER],
            r"model\.hoist: got 'never' with communication\.kind = 'halo', which sends input rows",
        ),
        ("vanilla", ["model.kind=a:B", NEVER], r"model\.hoist: got 'never' with .* = 'a:B' and .*order = 'auto'"),
        ("distdgl", [NEVER], r"model\.hoist: got 'never' with batching\.kind = 'sampled'"),
        ("cdfgnn", [HOSTS, "cluster.hosts=1"], r"communication\.exchange: got 'host-agg.* with cluster\.hosts = 1"),
    ],
)
def test_an_idle_option_of_a_user_is_refused(system: str, settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^--set: .*{message}") as found:
        load_experiment(system, settings)
    assert len(found.value.problems) == 1


def test_the_file_that_set_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "cagnet"\n[communication]\nresend_inputs = true\n')
    with pytest.raises(ConfigError, match=r"mine\.toml: communication\.resend_inputs: got true with .* = 'gat'"):
        load_experiment(tmp_path / "mine.toml", GAT)


def test_an_idle_option_of_a_system_goes_back_to_its_default(tmp_path: Path) -> None:
    """Nobody who changes something else of a system has to know it; the plan is the one that the option gave."""
    resent, never = ("communication", {"resend_inputs": True}), ("model", {"hoist": "never"})
    exact = ("freshness.kind=always", "codec.kind=none")
    for system, settings, (section, idle), stats in (
        ("cagnet", GAT, resent, blocks(3)),
        ("cagnet", ("model.order=transform-first",), resent, blocks(3)),
        ("sancus", GAT, resent, blocks(3)),
        ("cdfgnn", ("model.kind=gat", *exact), never, vertex_cut(3)),
        ("cdfgnn", ("model.order=transform-first", *exact), never, vertex_cut(3)),
    ):
        experiment = load_experiment(system, settings)
        options = getattr(experiment, section)
        (key,) = idle
        assert getattr(options, key) == type(options).model_fields[key].default
        stated = experiment.model_copy(update={section: options.model_copy(update=idle)})
        assert program_digest(plan(stated, stats).program) == program_digest(plan(experiment, stats).program)
        written = tomli_w.dumps(experiment.to_table())
        (tmp_path / "experiment.toml").write_text(written)
        assert load_experiment(tmp_path / "experiment.toml") == experiment, "what a run has written is read back"
        (tmp_path / "experiment.toml").write_text(tomli_w.dumps(stated.with_cluster(1, 1).to_table()))
        assert not differences(experiment.with_cluster(1, 1), tmp_path), "as earlier versions wrote it"
        with pytest.raises(ConfigError, match=rf"{section}\.{key}"):
            Experiment.from_table(stated.to_table())
    assert case_experiment("cagnet", [{"model": {"kind": "gat", "order": "auto"}}]).model.kind == "gat"
    with pytest.raises(ConfigError, match=r"model\.hoist"):
        case_experiment("cagnet", [{"model": {"kind": "gat", "order": "auto", "hoist": "never"}}])


def test_what_the_order_of_layers_decides_is_refused_with_the_plan() -> None:
    narrow = ("model.order=auto", "model.hidden=8")
    with pytest.raises(ConfigError, match=r"^communication\.weight_gradient: got 'saved-sum', .* or set model\.order"):
        plan(load_experiment("cagnet", [*narrow, SAVED]), blocks(2))
    only = ("model.layers=1", "communication.resend_inputs=false")
    with pytest.raises(ConfigError, match=r"^communication\.weight_gradient: .*whose sum is kept"):
        plan(load_experiment("cagnet", [*only, SAVED]), blocks(2))
    assert plan(load_experiment("cagnet", [*only, SAVED, NEVER]), blocks(2)).layers[0].order == "aggregate-first"
    with pytest.raises(ConfigError, match=r"^communication\.exchange: got 'host-aggregated' on one host, expected"):
        plan(load_experiment("cdfgnn", [HOSTS]), vertex_cut(3))


def test_sums_of_sparse_features_are_refused_with_the_setting_that_helps() -> None:
    """One remedy a fault, and it helps."""
    gin, first = "model.kind=gin", "model.order=aggregate-first"
    for system, settings, stats, remedy in (
        ("cdfgnn", [gin, "freshness.kind=always"], vertex_cut(2, sparse=True), ["model.hoist=auto"]),
        ("vanilla", [gin, NEVER], edge_cut(2, sparse=True), ["model.hoist=auto"]),
        ("vanilla", [first, RESENT], edge_cut(2, sparse=True), ["communication.resend_inputs=false"]),
    ):
        key, _, value = remedy[0].partition("=")
        value = value if value == "false" else f"'{value}'"
        with pytest.raises(ConfigError, match=rf"^{key}: got .*sparse.*; set {key} = {value}$"):
            plan(load_experiment(system, settings), stats)
        assert plan(load_experiment(system, [*settings, *remedy]), stats).layers[0].hoisted
    whole = f"model.kind={__name__}:Whole"
    with pytest.raises(ConfigError, match=r"^model\.kind: got '.*:Whole', which has only forward, but"):
        plan(load_experiment("vanilla", [whole]), edge_cut(2, sparse=True))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([], (1, 4)),
        (["cluster.hosts=2"], (2, 2)),
        (["cluster.ranks_per_host=1"], (4, 1)),
        (["cluster.hosts=4", "cluster.ranks_per_host=1"], (4, 1)),
        (["cluster.hosts=3"], r"^--ranks: got 4 with cluster\.hosts = 3 \(--set\), expected a multiple of 3"),
        (["cluster.hosts=2", "cluster.ranks_per_host=4"], r"^--ranks: got 4 with .* and .*, expected 8: .*remove it$"),
        (["cluster.hosts=two"], r"--set: cluster\.hosts: got 'two', expected a whole number >= 1"),
        (["cluster=2"], r"--set: cluster: got 2, expected a table"),
    ],
)
def test_ranks_are_those_of_all_hosts(settings: list[str], expected: tuple[int, int] | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            load_experiment("vanilla", settings, ranks=4)
        return
    experiment = load_experiment("vanilla", settings, ranks=4)
    assert (experiment.cluster.hosts, experiment.cluster.ranks_per_host) == expected
    assert np.bincount(experiment.rank_hosts()).tolist() == [expected[1]] * expected[0]


def test_ranks_are_spread_over_the_hosts_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('extends = "vanilla"\ncluster = { hosts = 2, ranks_per_host = 2 }\n')
    experiment = load_experiment(file, ranks=16)
    assert (experiment.cluster.hosts, experiment.cluster.ranks_per_host) == (2, 8)
    assert load_experiment(experiment, ranks=6).cluster.ranks_per_host == 3
    assert load_experiment(file, ["cluster.hosts=1"], ranks=3).cluster.ranks_per_host == 3
    with pytest.raises(ConfigError, match=r"got 3 with cluster\.hosts = 2 \(.*mine\.toml\).*--set cluster\.hosts=1$"):
        load_experiment(file, ranks=3)


def test_two_options_that_disagree_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^--epochs: got 5 with --set train\.epochs=7, expected one of the two"):
        load_experiment("vanilla", ["train.epochs=7"], epochs=5)
    with pytest.raises(ConfigError, match=r"^--hardware: got b with --set hardware\.profile=a, expected one"):
        load_experiment("vanilla", ["hardware.profile=a"], hardware="b")
    assert load_experiment("vanilla", ["train.epochs=7"], epochs=7).train.epochs == 7
