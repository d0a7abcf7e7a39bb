from simgnn.api.calibrate import calibrate as calibrate
from simgnn.api.compare import compare as compare
from simgnn.api.experiments import load_experiment as load_experiment
from simgnn.api.listings import list_hardware as list_hardware
from simgnn.api.listings import list_systems as list_systems
from simgnn.api.partition import make_partition as make_partition
from simgnn.api.reports.explain import explain as explain
from simgnn.api.reports.write_report import write_report as write_report
from simgnn.api.simulate import simulate as simulate
from simgnn.api.train import run as run

__version__: str
__all__ = [
    "__version__",
    "calibrate",
    "compare",
    "explain",
    "list_hardware",
    "list_systems",
    "load_experiment",
    "make_partition",
    "run",
    "simulate",
    "write_report",
]
