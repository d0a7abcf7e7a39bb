"""``python -m tools.fit_errors``: fits the error model of the shipped profiles to errors on groups that were left out.

It prints how well intervals cover these errors, and writes ``hwprofiles/reference/errors.toml``.

The constants of the file are fitted to all groups; the coverage that it states is that of constants fitted without the
group that they judge.
"""

import argparse
import datetime
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simgnn.analysis.left_out.collectives import BANDS, without_ranks, without_ranks_per_host, without_sizes
from simgnn.analysis.left_out.errors import (
    Errors,
    Judged,
    fit_constant,
    fit_rest,
    fit_steps,
    fitted_rest,
    fitted_spread,
    fitted_steps,
    judge,
    rounded_up,
)
from simgnn.analysis.left_out.messages import gloo_delays, gloo_rank_counts, gloo_rates, link_shares, nccl_delays
from simgnn.analysis.left_out.work import (
    DENSITY,
    SIDE,
    beyond_sizes,
    carried,
    dense_products,
    derived,
    gpu_models,
    stand_ins,
    streams,
    sums_beyond_sizes,
)
from simgnn.analysis.nccl.measured_tables import read_tables
from simgnn.api.backend import CommandBackend
from simgnn.errors import SimgnnError
from simgnn.graph.load import load_graph
from simgnn.hardware.price.unmeasured import CARRIED
from simgnn.hardware.primitives import PRIMITIVES
from simgnn.hardware.profile.error_model import FOLDER, QUANTILE, error_model, range_of, reference_machine
from simgnn.hardware.profile.library import known_profiles, shipped_folder
from simgnn.hardware.profile.profile import Profile, load_profile
from simgnn.progress import Progress
from simgnn.sim.spread.intervals import EPOCHS
from simgnn.study.validate.suite_runs import rescore
from simgnn.tomlfile import write_toml
from simgnn.units import format_quantity

SUITES = ("testbed", "testbed-xeon")
TRUTH = Path(__file__).parents[1] / "simgnn" / "study" / "truth"
GRAPHS = {
    "Cora": "cora",
    "Coauthor-CS": "coauthor_cs",
    "amazon-computers": "amazon_computers",
    "ogbn-arxiv": "ogbn_arxiv",
}
"""Graphs of the table of sums over edges whose files are in SIMGNN_DATA."""
ONE_SIZE: Mapping[str, Mapping[str, float]] = {
    "matmul": {"flops": 2 * SIDE**3},
    "spmm": {"edges": DENSITY * SIDE**2, "width": SIDE},
    "sparse_matmul": {"nonzeros": DENSITY * SIDE**2, "width": SIDE},
}
"""The one size of the products of CaPGNN Table 1, on which assumed curves of GPUs rest."""
RULE_GPU = "rule: as on CPUs, as nobody measured it on a GPU here"


def measured_machines() -> dict[str, Profile]:
    """Return the profiles of all measured CPUs of the repository."""
    return {
        "vm-epyc-2": load_profile("vm-epyc-2"),
        "testbed-xeon": load_profile(TRUTH / "testbed-xeon" / "profile.toml"),
        reference_machine().meta.name: reference_machine(),
    }


def one_size(primitive: str) -> dict[str, list[str]]:
    """Return the range of an assumed curve of a GPU, in the text of the file."""
    sizes = {name: format_quantity(round(size), range_of(name)) for name, size in ONE_SIZE[primitive].items()}
    return {name: [text, text] for name, text in sizes.items()}


def work_families(shared: Path) -> dict[str, dict[str, Any]]:
    """Fit the families of work: assumed curves of GPUs and CPUs, stand-ins, curves carried from another machine."""
    machines = {name: profile.devices["cpu"] for name, profile in measured_machines().items()}
    name, reference = reference_machine().meta.name, machines[reference_machine().meta.name]
    assumed = load_profile("cpu-100gbe-8").devices["cpu"]
    models = gpu_models(shared / "published" / "capgnn_table1_gpu_ops.csv")
    kernels = shared / "measured" / "kernels"
    mixed = load_profile("mixed-pcie3-8")
    table1 = "CaPGNN Table 1, GPU models left out in turn; predicted from the median efficiency of the others"
    cpus = f"leave-one-machine-out: {', '.join(machines)}; predicted from copies, as profiles derive it"
    found = {
        "work/gpu/matmul": {**constant(models["matmul"], table1), "range": one_size("matmul")},
        "work/gpu/spmm": {**constant(models["spmm"], table1), "range": one_size("spmm")},
        "work/gpu/copy": constant(models["copy"], table1),
        "work/gpu/elementwise": constant(
            streams(kernels / "bandwidth.csv"),
            "measured/kernels/bandwidth.csv, GPUs left out in turn; the share of their memory bandwidth",
        ),
        "work/cpu/matmul": constant(
            [dense_products(reference, name, assumed)],
            f"rule: the errors on {name}, the one measured machine whose clock is known",
        ),
        CARRIED: constant(
            carried(machines),
            f"leave-one-machine-out: {', '.join(machines)}, all work that two of them measured; clocks of two of them "
            "are not known and count as equal",
        ),
    }
    found["work/gpu/sparse_matmul"] = {**found["work/gpu/spmm"], "range": one_size("sparse_matmul")}
    for primitive, errors in derived(machines, assumed).items():
        found[f"work/cpu/{primitive}"] = constant(errors, cpus)
    for primitive, one in stand_ins(reference, name).items():
        found[f"work/cpu/{primitive}"] = constant(
            [one], f"rule: the errors on {name}, the one machine that measured it"
        )
    found["work/cpu/sample"] = found[CARRIED]
    for primitive in PRIMITIVES:
        family = found[f"work/cpu/{primitive}"]
        found.setdefault(f"work/gpu/{primitive}", {**family, "note": f"{RULE_GPU} ({family['note']})"})
    graphs = {label: load_graph(str(shared / "data" / f"{file}.npz")).csr for label, file in GRAPHS.items()}
    sums = sums_beyond_sizes(kernels / "spmm_rtx3090_cusparse.csv", mixed, graphs)
    products = beyond_sizes(kernels, mixed, load_profile("a800-pcie-ib-2x8"))
    found["work beyond its sizes/spmm"] = steps(
        sums,
        (0.0,),
        "measured/kernels/spmm_rtx3090_cusparse.csv, graphs left out in turn, from the size of CaPGNN Table 1",
    )
    found["work beyond its sizes/matmul"] = steps(
        products, (0.0,), "measured/kernels/gemm.csv, tables of a GPU left out in turn, from the size of CaPGNN Table 1"
    )
    return found


def message_families(shared: Path) -> dict[str, dict[str, Any]]:
    """Fit the families of delays, rates and collectives."""
    machines, tables = measured_machines(), read_tables(shared / "measured" / "nccl")
    profiles = [load_profile(name) for name, path in known_profiles().items() if path.parent == shipped_folder()]
    vms = f"leave-one-machine-out: {', '.join(machines)}"
    nccl = "measured/nccl"
    return {
        "delay/gloo": constant(gloo_delays(machines, load_profile("cpu-100gbe-8")), f"{vms}; against what is assumed"),
        "delay/nccl": constant(
            nccl_delays(tables, load_profile("a100-nvlink-4")), f"{nccl}, shortest times by machine; what is assumed"
        ),
        "rate/gloo": constant(gloo_rates(machines, load_profile("cpu-100gbe-8")), f"{vms}; against what is assumed"),
        "rate/link": constant(link_shares(profiles), "share of a link that a message reaches; links left out in turn"),
        "rate/nccl": constant(
            link_shares(profiles), "rule: as rate/link: no bus bandwidth of another collective was measured"
        ),
        "collectives by ranks/nccl": steps(
            without_ranks(tables), BANDS, f"{nccl}, rank counts left out in turn, from every choice of the others"
        ),
        "collectives by ranks a host/nccl": steps(
            without_ranks_per_host(tables), BANDS,
            f"{nccl}, ranks a host left out in turn in both scopes, from every choice of the others",
        ),
        "collectives by ranks/gloo": steps(
            gloo_rank_counts(machines), (0.0,), f"calls of {', '.join(machines)}, rank counts left out in turn"
        ),
        "collectives by size": steps(without_sizes(tables), BANDS, f"{nccl}, ranges of sizes left out in turn"),
    }  # fmt: skip


def epoch_families() -> dict[str, dict[str, Any]]:
    """Fit what epochs on kept testbeds miss beyond their own intervals, topologies left out in turn."""
    stated = error_model().families[EPOCHS].spread if EPOCHS in error_model().families else None
    groups = []
    for suite in SUITES:
        for line in rescore(TRUTH / suite, CommandBackend(Progress())).cases:
            assert line.high_s is not None
            missed = np.array([np.log(line.measured_s / line.predicted_s)])
            # without what an earlier fit added
            own = (np.log(line.high_s / line.predicted_s) / QUANTILE) ** 2 - (stated or 0.0) ** 2
            groups.append(Errors.of(line.case.topology, missed, own=float(np.sqrt(max(own, 0.0)))))
    note = f"kept runs of {' and '.join(SUITES)}, topologies left out in turn on both machines"
    return {EPOCHS: {"spread": _ratio(rounded_up(fitted_rest(groups))), **_told(groups, judge(groups, fit_rest), note)}}


def constant(groups: Sequence[Errors], note: str) -> dict[str, Any]:
    """Return a family of one spread."""
    judged = judge(groups, fit_constant) if len({group.group for group in groups}) > 1 else None
    return {"spread": _ratio(rounded_up(fitted_spread(groups))), **_told(groups, judged, note)}


def steps(groups: Sequence[Errors], bands: Sequence[float], note: str) -> dict[str, Any]:
    """Return a family whose spread grows with the distance from what was measured."""
    fitted = [
        {"size": format_quantity(low, "bytes"), "share": _ratio(rounded_up(share))}
        for low, share in fitted_steps(groups, bands)
    ]
    return {"per_octave": fitted, **_told(groups, judge(groups, fit_steps(bands)), note)}


def _told(groups: Sequence[Errors], judged: Judged | None, note: str) -> dict[str, Any]:
    names = {group.group for group in groups}
    told: dict[str, Any] = {"groups": len(names), "errors": sum(len(group.logs) for group in groups), "note": note}
    if judged is not None:
        told["coverage"] = _ratio(round(judged.coverage, 3))
        told |= {"width": _ratio(round(judged.width, 3)), "narrowest": _ratio(round(judged.narrowest, 3))}
    return told


def _ratio(number: float) -> str:
    return format_quantity(float(f"{number:.6g}"), "ratio")


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit the error model and write its file; exit status 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m tools.fit_errors", description=__doc__)
    parser.add_argument(
        "--shared", type=Path, help="folder with data, measured and published (default: beside SIMGNN_DATA)"
    )
    parser.add_argument("--out", type=Path, default=shipped_folder() / FOLDER / "errors.toml", help="file to write")
    chosen = parser.parse_args(arguments)
    data = os.environ.get("SIMGNN_DATA")
    shared = chosen.shared or (Path(data).parent if data else None)
    try:
        if shared is None:
            raise SimgnnError(
                "--shared: missing; name the folder with data, measured and published, or set SIMGNN_DATA"
            )
        families = {**work_families(shared), **message_families(shared), **epoch_families()}
        today = datetime.datetime.now(tz=datetime.UTC).date()
        made_by = "python -m tools.fit_errors"
        write_toml(
            chosen.out, {"format": 1, "date": today, "made_by": made_by, "families": dict(sorted(families.items()))}
        )
    except SimgnnError as error:
        print(f"simgnn: {error}", file=sys.stderr)
        return 2
    for name, family in sorted(families.items()):
        print(f"{name}: {family['groups']} groups, coverage {family.get('coverage', 'not judged: one group')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
