"""Options of mini-batch experiments: those without a meaning or an effect are refused, others and defaults taken."""

import pytest

from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment


@pytest.mark.parametrize(
    ("system", "overrides", "told"),
    [
        ("distdgl", ["communication.rows=scheduled"], r"communication\.rows: got 'scheduled' with batching\.kind"),
        (
            "distdgl",
            ["placement.hot_rows=5"],
            r"placement\.hot_rows: got 5 with batching\.kind = 'sampled', expected 0",
        ),
        ("rapidgnn", ["communication.rows=requested"], r"placement\.hot_rows: got auto with communication\.kind"),
        ("rapidgnn", ["communication.kind=halo"], r"communication\.kind: got 'halo' with batching\.kind = 'seeded'"),
        ("rapidgnn", ["placement.kind=device"], r"placement\.kind: got 'device' with batching\.kind = 'seeded'"),
        ("rapidgnn", ["codec.kind=float32"], r"codec\.kind: got 'float32' with batching\.kind = 'seeded'"),
        ("rapidgnn", ["freshness.kind=adaptive-vertex"], r"freshness\.kind: got 'adaptive-vertex' with batching"),
        ("rapidgnn", ["batching.fanouts=[5]"], r"batching\.fanouts: got 1 fan-outs \[5\], expected 2"),
        ("rapidgnn", ["schedule.staged=x"], r"schedule\.staged: got 'x', expected one of 'rows', 'blocks'"),
        ("rapidgnn", ["batching.evaluation=all"], r"batching\.evaluation: got 'all', expected one of 'exact', 'none'"),
        ("rapidgnn", ["placement.pull=some"], r"placement\.pull: got 'some', expected one of 'full', 'delta'"),
        ("vanilla", ["communication.kind=store"], r"communication\.kind: got 'store' with batching\.kind = 'full'"),
        ("rapidgnn", ["partition.kind=ebv"], r"partition\.kind: got 'ebv' with communication\.kind = 'store'"),
        (
            "distdgl",
            ["model.kind=mine:Layer"],
            r"model\.kind: got 'mine:Layer' with batching\.kind = 'sampled', .* gcn, sage",
        ),
    ],
)
def test_combinations_without_meaning_are_refused(system: str, overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_experiment(system, overrides)


UNEVALUATED = "batching.evaluation=none"
REQUESTED = ["communication.rows=requested", "placement.hot_rows=0"]


@pytest.mark.parametrize(
    ("system", "overrides", "told"),
    [
        (
            "rapidgnn",
            ["train.eval_every=2", UNEVALUATED],
            r"train\.eval_every: got 2 with batching\.evaluation = 'none'",
        ),
        ("vanilla", ["train.gradient_mean=ranks"], r"train\.gradient_mean: got 'ranks' with batching\.kind = 'full'"),
        ("distdgl", ["schedule.across_epochs=true"], r"schedule\.across_epochs: got true with schedule\.staged = 'b"),
        ("distdgl", ["placement.pull=delta"], r"placement\.pull: got 'delta' with .* = 'sampled' and .* 'store'"),
        ("distdgl", ["placement.hot_scope=run"], r"placement\.hot_scope: got 'run' with .* = 'sampled' and .* 'store"),
        (
            "rapidgnn",
            ["placement.hot_scope=run", "placement.pull=delta"],
            r"placement\.pull: got 'delta' with placement\.hot_scope = 'run', expected 'full'",
        ),
        (
            "rapidgnn",
            ["placement.pull=delta", *REQUESTED],
            r"placement\.pull: got 'delta' with .* = 'seeded' and .* 'store', expected 'full'",
        ),
    ],
)
def test_options_without_effect_are_refused(system: str, overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as found:
        load_experiment(system, overrides)
    assert str(found.value).count(": got ") == 1


@pytest.mark.parametrize(
    ("system", "overrides"),
    [
        ("rapidgnn", ["train.eval_every=1", UNEVALUATED]),  # the default, which an experiment read back states
        ("rapidgnn", ["train.eval_every=0", UNEVALUATED]),
        ("rapidgnn", ["train.eval_every=2"]),
        ("rapidgnn", ["schedule.across_epochs=true", "schedule.window=1"]),  # rows are staged beside the optimizer
        ("distdgl", ["schedule.across_epochs=true", "schedule.staged=rows"]),
        ("rapidgnn", ["placement.pull=delta", "placement.hot_rows=0"]),  # the end of a sweep of sizes
        ("rapidgnn", ["placement.hot_scope=run", "placement.hot_rows=0"]),
        ("rapidgnn", REQUESTED),
    ],
)
def test_options_with_an_effect_and_defaults_are_taken(system: str, overrides: list[str]) -> None:
    load_experiment(system, overrides)


def test_batches_are_counted_with_any_pull() -> None:
    """``simgnn sample --hot-rows`` reads it whatever training would do."""
    load_experiment("distdgl", ["placement.pull=delta"], trains=False)
