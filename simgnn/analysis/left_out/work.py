"""Errors of work prices on machines that were left out: GPUs by model, CPUs by machine, sizes beyond the measured."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simgnn.analysis.left_out.errors import Errors, Floats
from simgnn.errors import HardwareError
from simgnn.graph.csr import CSR
from simgnn.graph.locality import reuse_profile
from simgnn.hardware.price.uncertainty import octaves_beyond
from simgnn.hardware.price.unmeasured import scaled_curve
from simgnn.hardware.price.work import features, price_work
from simgnn.hardware.primitives import PRIMITIVES
from simgnn.hardware.profile.devices import Curve, Device
from simgnn.hardware.profile.error_model import FOLDER
from simgnn.hardware.profile.library import shipped_folder
from simgnn.hardware.profile.profile import Profile, load_table
from simgnn.units import parse

SIDE = 11585.0
"""Rows and columns of the matrices of CaPGNN Table 1 (the side that fits its times)."""
DENSITY = 0.004
ITEM_BYTES = 4.0
OPERATIONS = {"MM": "matmul", "SpMM": "spmm", "IDT": "copy", "H2D": "h2d", "D2H": "d2h"}
"""Operations of CaPGNN Table 1 and what they are here."""
DERIVED = ("elementwise", "copy", "gather", "scatter_add", "spmm", "sparse_matmul", "loss", "optimizer", "select",
           "encode", "decode")  # fmt: skip
"""Work whose curves shipped profiles derive from the rate of copies."""
STREAMS = ("stream scale", "stream triad", "stream 3pt", "stream 5pt")
"""Kernels of the streams' table that read and write, as elementwise work does."""
LARGE_COPY = 1 << 26


def rows_of(path: Path) -> list[dict[str, str]]:
    """Read a CSV file of measurements. Raises :class:`HardwareError` if it is missing or empty."""
    if not path.is_file():
        raise HardwareError(f"{path}: no such file; expected the table that the error model is fitted to")
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise HardwareError(f"{path}: no rows")
    return rows


def gpu_peaks() -> Mapping[str, tuple[float, float]]:
    """Return flop/s in float32 and bytes/s of memory of GPUs that others measured, by model."""
    table: Mapping[str, Any] = load_table(shipped_folder() / FOLDER / "gpus.toml")["gpus"]
    return {
        name: (parse(row["fp32"], "flop/s"), parse(row["memory_bandwidth"], "bytes/s")) for name, row in table.items()
    }


def gpu_models(path: Path) -> dict[str, list[Errors]]:
    """Predict each operation of CaPGNN Table 1 on each GPU from the GPUs of other models, as shipped profiles do: peak
    times the median efficiency. Returns by operation the errors of each model, an error for each of its cards."""
    peaks, rows = gpu_peaks(), rows_of(path)
    entries = DENSITY * SIDE * SIDE
    ideal: Mapping[str, Callable[[float, float], float]] = {
        "MM": lambda flops, _: 2.0 * SIDE**3 / flops,
        "SpMM": lambda _, rate: ITEM_BYTES * (entries * SIDE + SIDE * SIDE) / rate,
        "IDT": lambda _, rate: 2.0 * ITEM_BYTES * SIDE * SIDE / rate,
        "H2D": lambda _, __: 1.0,  # all cards hang on equal links
        "D2H": lambda _, __: 1.0,
    }
    found: dict[str, list[Errors]] = {}
    for operation, seconds_at_peak in ideal.items():
        missed: dict[str, list[float]] = {}
        for row in rows:
            if row["operation"] == operation:
                at_peak = seconds_at_peak(*peaks[row["gpu_model"]])
                missed.setdefault(row["gpu_model"], []).append(float(np.log(float(row["time_mean_s"]) / at_peak)))
        middles = {model: float(np.median(logs)) for model, logs in missed.items()}
        found[OPERATIONS[operation]] = [
            Errors.of(model, np.array(logs) - float(np.median([m for name, m in middles.items() if name != model])))
            for model, logs in missed.items()
        ]
    return found


def beyond_sizes(folder: Path, mixed: Profile, pcie: Profile) -> list[Errors]:
    """Predict dense products of many sizes on a GPU from its curve of one size (CaPGNN Table 1): on an RTX 3090 of
    ``mixed``, and on an A100 PCIe, whose peaks are those of the A800 of ``pcie``."""
    ampere = mixed.devices["rtx3090"]
    size = {"flops": (2.0 * SIDE**3, 2.0 * SIDE**3)}
    a100 = pcie.devices["a800"]
    curves = tuple(c.model_copy(update={"range": size}) if c.primitive == "matmul" else c for c in a100.curves)
    dense = {"NVIDIA GeForce RTX 3090": ampere, "RTX 3090": ampere,
             "A100 PCIe 80GB": a100.model_copy(update={"curves": curves})}  # fmt: skip
    products = [row for row in rows_of(folder / "gemm.csv") if row["gpu"] in dense and row["dtype"].startswith("fp32")]
    found = []
    for gpu, device in dense.items():
        mine = [row for row in products if row["gpu"] == gpu]
        sizes = {name: _column(mine, column) for name, column in (("rows", "m"), ("outer", "n"), ("inner", "k"))}
        found.append(_beyond(f"matmul, {gpu}", device, "matmul", sizes, _column(mine, "time_s")))
    return found


def sums_beyond_sizes(path: Path, mixed: Profile, graphs: Mapping[str, CSR]) -> list[Errors]:
    """Predict sums over the edges of ``graphs``, by their names in the table, on an RTX 3090 of ``mixed`` from its
    curve of one size, with the reuse of rows that each graph has."""
    ampere, found = mixed.devices["rtx3090"], []
    rows = [row for row in rows_of(path) if row["dtype"] == "fp32"]
    for name, csr in graphs.items():
        mine = [row for row in rows if row["graph"] == name]
        vertices = np.full(len(mine), float(csr.rows))
        sizes = {"rows": vertices, "sources": vertices, "edges": np.full(len(mine), float(len(csr.indices)))}
        sizes["width"] = _column(mine, "width")
        reuse = reuse_profile(csr)
        found.append(_beyond(f"spmm, {name}", ampere, "spmm", sizes, _column(mine, "time_s"), reuse))
    return found


def _beyond(
    group: str,
    device: Device,
    primitive: str,
    sizes: Mapping[str, Floats],
    seconds: Floats,
    reuse: Floats | None = None,
) -> Errors:
    """Errors of a device's curve at sizes [n] of which it took ``seconds`` [n]."""
    (curve,) = device.curves_of(primitive)
    predicted = price_work(device, group, primitive, sizes, reuse, 1, 1).seconds
    each = [{name: size[at] for name, size in sizes.items()} for at in range(len(seconds))]
    octaves = [octaves_beyond(curve.range, features(primitive, one), one) for one in each]
    return Errors.of(group, np.log(seconds / predicted), np.array(octaves))


def streams(path: Path) -> list[Errors]:
    """Predict passes over memory on each GPU from the share of its memory bandwidth that they reach on the others."""
    peaks, rows = gpu_peaks(), rows_of(path)
    missed: dict[str, list[float]] = {}
    for row in rows:
        if row["gpu"] in peaks and row["kernel"] in STREAMS:
            missed.setdefault(row["gpu"], []).append(
                float(np.log(peaks[row["gpu"]][1] / (1e9 * float(row["gbytes_per_s"]))))
            )
    middles = {gpu: float(np.median(logs)) for gpu, logs in missed.items()}
    return [
        Errors.of(gpu, np.array(logs) - float(np.median([m for name, m in middles.items() if name != gpu])))
        for gpu, logs in missed.items()
    ]


def _column(rows: Sequence[Mapping[str, str]], name: str) -> Floats:
    return np.array([float(row[name]) for row in rows])


def carried(machines: Mapping[str, Device]) -> list[Errors]:
    """Predict the curves of each measured CPU from those of each other one, scaled as carried curves are."""
    found = []
    for target_name, target in machines.items():
        for source_name, source in machines.items():
            if source_name == target_name:
                continue
            for row in PRIMITIVES.values():
                curve = scaled_curve(source, source_name, target, target_name, row.name)
                if curve is None or not target.curves_of(row.name):
                    continue
                predicted = _on_grid(target.model_copy(update={"curves": (curve,)}), target_name, row.name)
                found.append(Errors.of(target_name, np.log(_on_grid(target, target_name, row.name) / predicted)))
    return found


def derived(machines: Mapping[str, Device], assumed: Device) -> dict[str, list[Errors]]:
    """Predict work on each measured CPU as the shipped profiles of CPUs do: from the rate of its copies, by the ratios
    of the curves of ``assumed``. Returns the errors of each machine by primitive."""
    own = _seconds_per_copied_byte(assumed, "assumed")
    found: dict[str, list[Errors]] = {name: [] for name in DERIVED}
    for name, machine in machines.items():
        ratio = _seconds_per_copied_byte(machine, name) / own
        for primitive in DERIVED:
            (rule,) = assumed.curves_of(primitive)
            costs = {feature: cost * (1.0 if feature == "call" else ratio) for feature, cost in rule.costs.items()}
            device = machine.model_copy(update={"curves": (Curve.of(primitive, costs, "assumed"),)})
            errors = np.log(_on_grid(machine, name, primitive) / _on_grid(device, name, primitive))
            found[primitive].append(Errors.of(name, errors))
    return found


def dense_products(machine: Device, name: str, assumed: Device) -> Errors:
    """Predict dense products on a measured CPU as the shipped profiles do, by its clock and their share of the peak."""
    assert machine.clock is not None
    assert assumed.clock is not None
    assert assumed.cores is not None
    (rule,) = assumed.curves_of("matmul")
    slower = assumed.clock.value * assumed.cores.value / machine.clock.value
    ratio = _seconds_per_copied_byte(machine, name) / _seconds_per_copied_byte(assumed, "assumed")
    by = {"call": 1.0, "flops": slower, "bytes": ratio}
    curve = Curve.of("matmul", {feature: cost * by[feature] for feature, cost in rule.costs.items()}, "assumed")
    device = machine.model_copy(update={"curves": (curve,)})
    return Errors.of(name, np.log(_on_grid(machine, name, "matmul") / _on_grid(device, name, "matmul")))


def stand_ins(machine: Device, name: str) -> dict[str, Errors]:
    """Predict work that other work stands in for on a machine that measured both; errors by primitive."""
    found = {}
    for row in PRIMITIVES.values():
        if row.stand_in is not None and machine.curves_of(row.name):
            others = tuple(curve for curve in machine.curves if curve.primitive != row.name)
            bare = machine.model_copy(update={"curves": others})
            errors = np.log(_on_grid(machine, name, row.name) / _on_grid(bare, name, row.name))
            found[row.name] = Errors.of(name, errors)
    return found


def _on_grid(device: Device, name: str, primitive: str) -> Floats:
    """Seconds [n] of one rank with one thread at the sizes at which profiles are compared."""
    return price_work(device, name, primitive, PRIMITIVES[primitive].grid(), None, 1, 1).seconds


def _seconds_per_copied_byte(device: Device, name: str) -> float:
    """Seconds a byte of the copies of one rank; of a curve of one level, at that level."""
    curve = min(device.curves_of("copy"), key=lambda curve: (curve.concurrency, curve.threads))
    level = curve.concurrency, curve.threads
    return float(price_work(device, name, "copy", {"bytes": LARGE_COPY}, None, *level).seconds[0]) / LARGE_COPY
