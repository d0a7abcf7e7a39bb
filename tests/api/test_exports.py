"""What ``import simgnn`` offers, and what it costs."""

import ast
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import simgnn
from simgnn.api.calibrate import Calibrated
from simgnn.api.compare import RunComparison
from simgnn.api.listings import Listing
from simgnn.api.partition import PartitionReport
from simgnn.api.predict import Prediction
from simgnn.api.reports.explain import Explained
from simgnn.api.results import Outcome, Run
from simgnn.experiment.schema import Experiment

HEAVY = ("torch", "dgl", "pandas", "plotly", "simpy", "numba", "scipy", "pyarrow", "numpy", "networkx", "pydantic")
EXPERIMENT = "experiment, *, hardware=None, ranks=None, epochs=None, set=None"
SIGNATURES = {
    "calibrate": "out=None, *, quick=False, ranks=None, samples=None, fresh=False, passes=1, pool=(), progress=None",
    "compare": "first, second=None, *, trace=None, progress=None",
    "explain": "target, *, hardware=None, ranks=None, epochs=None, set=None, activity=None, progress=None",
    "list_hardware": "",
    "list_systems": "",
    "load_experiment": EXPERIMENT,
    "make_partition": (
        "experiment, *, ranks=None, hardware=None, set=None, stats=None, alternatives=True, progress=None"
    ),
    "run": f"{EXPERIMENT}, out=None, force=False, resume=False, log=None, progress=None",
    "simulate": f"{EXPERIMENT}, activity=None, out=None, force=False, thorough=False, progress=None",
    "write_report": "*outcomes, out=None, explain=False, epoch=None, progress=None",
}
RESULTS = {
    "calibrate": Calibrated,
    "compare": RunComparison,
    "explain": Explained,
    "list_hardware": Listing,
    "list_systems": Listing,
    "load_experiment": Experiment,
    "make_partition": PartitionReport,
    "run": Run,
    "simulate": Prediction,
    "write_report": Path,
}
OUTCOME = {"directory": "", "result": "", "table": "by='experiment'", "timeline": "epoch=None"}
FIGURES = (
    "graph", "vertices", "edges", "partition", "kind", "ranks", "quality", "balances", "types", "fit", "hit_rates",
    "dropped", "made_now", "digest", "path", "chunks", "labels", "counted",
)  # fmt: skip
TEXTS = (
    "as_dict",
    "lines",
    "type_lines",
    "balance_lines",
    "device_lines",
    "fit_lines",
    "dropped_lines",
    "hit_rate_lines",
    "chunk_columns",
    "chunk_lines",
    "rate_lines",
    "label_lines",
    "row_lines",
)
MEMBERS: dict[type, dict[str, str]] = {
    Outcome: OUTCOME,
    Prediction: {**OUTCOME, **dict.fromkeys(("prepared", "chosen", "machine", "replay", "simulation", "spread"), "")},
    Run: {**OUTCOME, **dict.fromkeys(("experiment", "losses", "accuracies"), "")},
    PartitionReport: {**dict.fromkeys((*FIGURES, *TEXTS), ""), "table": "by='partition'"},
    RunComparison: {"comparison": "", "sides": "", "table": "by='op'", "timeline": "epoch=None"},
    Calibrated: {"calibration": "", "path": "", "profile": "", "samples": "", "table": "", "report": "file"},
    Explained: {"explanation": "", "prediction": "", "table": "of='path'"},
    Listing: {"names": "", "rows": "", "table": ""},
}


def parameters(function: object) -> str:
    """The parameters of a function without their types."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    return str(signature.replace(parameters=[one for one in plain if one.name != "self"], return_annotation=str))[
        1 : -len(") -> str")
    ]


def test_exactly_these_functions_are_offered() -> None:
    assert set(simgnn.__all__) == {"__version__", *SIGNATURES}
    assert dir(simgnn) == sorted(simgnn.__all__)
    assert {name: parameters(getattr(simgnn, name)) for name in SIGNATURES} == SIGNATURES
    for name, result in RESULTS.items():
        assert inspect.signature(getattr(simgnn, name)).return_annotation is result, name
        assert inspect.getdoc(getattr(simgnn, name)), name


def test_types_are_declared_of_the_same_functions() -> None:
    assert simgnn.__file__ is not None
    tree = ast.parse(Path(simgnn.__file__).with_suffix(".pyi").read_text())
    declared = {
        alias.asname: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert declared == dict(simgnn.MODULES)
    (listed,) = (ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
    assert listed == simgnn.__all__


@pytest.mark.parametrize("kind", MEMBERS)
def test_results_are_frozen_and_have_exactly_these_members(kind: type) -> None:
    fields = getattr(kind, "__dataclass_fields__")  # noqa: B009
    found = dict.fromkeys(fields, "")
    for name, member in inspect.getmembers_static(kind):
        if not name.startswith("_") and name not in fields:
            found[name] = parameters(member) if inspect.isfunction(member) else ""
    assert found == MEMBERS[kind]
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert hasattr(kind, "_repr_html_")


def test_no_function_has_the_name_of_a_package() -> None:
    assert not {found.name for found in pkgutil.iter_modules(simgnn.__path__)} & set(simgnn.__all__)


def test_importing_loads_nothing_heavy() -> None:
    script = f"import sys\nimport simgnn\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"


def test_what_is_not_offered_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'simulat'; it offers .*simulate"):
        getattr(simgnn, "simulat")  # noqa: B009
