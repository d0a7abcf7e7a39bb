"""What would stop a validation after minutes of measuring, looked for before them, in all cases, and told at once."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from simgnn.errors import ConfigError, GraphError, ProgramError
from simgnn.experiment.schema import Experiment
from simgnn.graph.load import check_source
from simgnn.graph.thread_pool import usable_threads
from simgnn.model.user_layer import user_shape
from simgnn.planner.prepare import STATISTICS
from simgnn.study.backend import Backend
from simgnn.study.cases import Case, case_experiment, with_data_folder
from simgnn.study.validate.ground_truth import AS_CALIBRATED, Prediction
from simgnn.study.validate.suite import Suite, Topology

Of = TypeVar("Of")


def check_runnable(suite: Suite, backend: Backend) -> None:
    """Raise :class:`ConfigError` for cases that cannot be prepared or predicted, what is quick to tell first; for
    testbeds on a machine that cannot have one; and for rates to cut down that no case uses."""
    cases = suite.cases()
    experiments = _each(cases, lambda case: _there(case_experiment(suite.extends, suite.settings(case))))
    _each(cases, lambda case: _check_threads(suite.topology(case), case.ranks, experiments[case]))
    if not all(topology.plain for topology in suite.topologies):
        backend.check_testbed()
    checked: dict[str, frozenset[str]] = {}

    def check(case: Case) -> frozenset[str]:
        key = json.dumps({**experiments[case].to_table(), "name": ""}, sort_keys=True)
        if key not in checked:
            backend.tell(f"checking {len(checked) + 1}: {case.name}")
            checked[key] = backend.check(experiments[case])
        return checked[key]

    used = frozenset[str]().union(*_each(cases, check).values())
    unused = [
        f"sensitivity.{at}.primitive: got '{what.primitive}', which no case uses, so that nothing could notice it; "
        f"expected '*' or one of {', '.join(sorted(used))}"
        for at, what in enumerate(suite.sensitivity)
        if what.primitive not in (None, "*", *used)
    ]
    if unused:
        raise ConfigError(unused)


def check_noticeable(suite: Suite, predictions: Iterable[Prediction]) -> None:
    """Raise :class:`ConfigError` for a rate whose cutting changes no prediction."""
    times = {(found.variant, found.case): found.times.epoch_s for found in predictions}
    faults = [
        f"sensitivity.{at}: {what.label} changes no prediction: the calibration has nothing of the kind, or no case "
        "uses it; leave it out, and call again: the calibration stays"
        for at, what in enumerate(suite.sensitivity)
        if all(times[what.label, case] == times[AS_CALIBRATED, case] for case in suite.cases())
    ]
    if faults:
        raise ConfigError(faults)


def _check_threads(topology: Topology, ranks: int, experiment: Experiment) -> None:
    """The quota of a slow rank is a share of the cores that its threads fill, which are thus as many as those."""
    wanted = experiment.hardware.threads_per_rank
    of_host = max(1, usable_threads() // topology.hosts)
    full = max(1, of_host // (ranks // topology.hosts))
    if topology.slow_last is not None and wanted not in ("auto", full):
        raise ConfigError(
            f"hardware.threads_per_rank: got {wanted}, expected {full}, or none: '{topology.name}' has a slow rank, "
            f"whose quota is a share of {full} of this machine's cores"
        )


def _there(experiment: Experiment) -> Experiment:
    """The experiment with the place of its graph, once graph and layers are found."""
    if experiment.graph.source.startswith(STATISTICS):
        raise ConfigError(
            f"graph.source: got '{experiment.graph.source}', expected a graph: nobody can train on a statistics file"
        )
    user_shape(experiment.model.kind)
    experiment = with_data_folder(experiment)
    check_source(experiment.graph.source)
    return experiment


def _each(cases: Sequence[Case], work: Callable[[Case], Of]) -> dict[Case, Of]:
    """What ``work`` gives of each case; :class:`ConfigError` with every fault, and which cases have it."""
    found: dict[Case, Of] = {}
    faults: dict[str, list[Case]] = {}
    for case in cases:
        try:
            found[case] = work(case)
        except (ConfigError, ProgramError) as error:
            for problem in error.problems:
                faults.setdefault(problem, []).append(case)
        except GraphError as error:
            faults.setdefault(str(error), []).append(case)
    if faults:
        raise ConfigError(
            [f"{told} ({len(of)} of {len(cases)} cases, the first {of[0].name})" for told, of in faults.items()]
        )
    return found
