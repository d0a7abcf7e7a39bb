"""Small valid experiments, hardware profiles, matrices of messages, and suites."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from simgnn.hardware.profile.library import shipped_folder
from simgnn.study.validate.suite_file import SUITES
from tools.mutate_inputs.inputs import EXPERIMENT, MINI_BATCHES, Input, carry_out, new_folder

RICH = """\
extends = "base.toml"
name = "rich"

[graph]
stand_in_features = 6
symmetrise = true

[model]
kind = "gat"
layers = 3
hidden = [4, 8]
heads = 2
dropout = 0.25

[train]
epochs = 2
optimizer = "sgd"
momentum = 0.9
weight_decay = [0.1, 0.0, 0.0]
clip_norm = 1.0
patience = 3
learning_rate_schedule = { kind = "step", step_size = 2, gamma = 0.5 }

[partition]
kind = "metis"
balance = ["vertices", "edges"]

[cluster]
hosts = 2
ranks_per_host = 1

[hardware]
profile = "./p.toml"
threads_per_rank = 1
"""
BASE = """\
extends = "vanilla"

[graph]
source = "g.csv"
classes = 3
"""
SUITE = """\
kind = "runs"
name = "mine"
description = "small"
extends = "vanilla"
repeats = 2
epochs = 3
ranks = [2]
hold_out = ["graph"]

[calibration]
ranks = [2]
quick = true

[[graphs]]
name = "small"
set.graph = { source = "synthetic:communities", vertices = 300, edges = 1500 }

[[graphs]]
name = "other"
set.graph = { source = "synthetic:rmat", vertices = 512, edges = 2000 }

[[partitions]]
name = "random"
set.partition = { kind = "random" }

[[experiments]]
name = "narrow"
set.model = { kind = "gcn", hidden = 8 }

[[experiments]]
name = "wide"
set.model = { kind = "sage", hidden = 16 }

[[topologies]]
name = "here"

[bars]
median_error = 1.0

[[sensitivity]]
primitive = "*"
share = 0.01
"""


def toml_inputs(root: Path) -> Iterator[Input]:
    """Make inputs of experiments, full-graph and of mini-batches, as they are written and as a run records them."""
    folder = new_folder(root, "toml", "full", {"e.toml": EXPERIMENT})
    yield Input("toml", "full", folder, ("simulate", "e.toml"), ("e.toml",), share=2.0)
    carry_out(folder, ("simulate", "e.toml", "--out", "made"))
    resolved = (folder / "made" / "experiment.toml").read_text()
    folder = new_folder(root, "toml", "resolved", {"e.toml": resolved})
    yield Input("toml", "resolved", folder, ("simulate", "e.toml"), ("e.toml",), share=3.0)
    folder = new_folder(root, "toml", "partition", {"e.toml": EXPERIMENT + '[partition]\nkind = "ebv"\ngamma = 0.1\n'})
    yield Input("toml", "partition", folder, ("partition", "e.toml"), ("e.toml",))
    profile = (shipped_folder() / "cpu-25gbe-4.toml").read_text()
    rich = {"e.toml": RICH, "base.toml": BASE, "g.csv": "0,1\n1,2\n2,3\n3,4\n4,5\n5,0\n", "p.toml": profile}
    folder = new_folder(root, "toml", "rich", rich)
    yield Input("toml", "rich", folder, ("simulate", "e.toml"), ("e.toml", "base.toml"), share=2.0)
    for system in ("distdgl", "rapidgnn"):
        folder = new_folder(root, "toml", system, {"e.toml": f'extends = "{system}"\n{MINI_BATCHES}'})
        yield Input("toml", system, folder, ("simulate", "e.toml"), ("e.toml",))
    yield Input("toml", "sample", folder, ("sample", "e.toml", "--out", "made"), ("e.toml",))


def profile_inputs(root: Path) -> Iterator[Input]:
    """Make inputs of hardware profiles for every command that reads one, and of a matrix of messages."""
    times = {
        "allreduce": ("--bytes", "64MiB"),
        "send": ("--bytes", "1MiB"),
        "aggregate": ("--edges", "1e6", "--rows", "1e5", "--width", "64"),
    }
    for name in ("cpu-25gbe-4", "dgx-a100-2", "mixed-pcie3-8", "vm-epyc-2"):
        text = (shipped_folder() / f"{name}.toml").read_text()
        folder = new_folder(root, "profile", name, {"p.toml": text, "e.toml": EXPERIMENT})
        commands: dict[str, tuple[str, ...]] = {
            "check": ("hardware", "check", "p.toml"),
            "show": ("hardware", "show", "p.toml"),
            "diff": ("hardware", "diff", "p.toml", name),
            "simulate": ("simulate", "e.toml", "--hardware", "./p.toml"),
        }
        commands |= {op: ("hardware", "time", "p.toml", op, *sizes) for op, sizes in times.items()}
        for what, command in commands.items():
            share = 3.0 if what in ("check", "simulate") else 1.0
            yield Input("profile", f"{name}-{what}", folder, command, ("p.toml",), share)
    matrix = np.arange(16).reshape(4, 4) * 1000
    stream = io.BytesIO()
    np.save(stream, matrix)
    text = "".join(",".join(map(str, row)) + "\n" for row in matrix.tolist())
    for suffix, content in ((".npy", stream.getvalue()), (".json", json.dumps(matrix.tolist())), (".csv", text)):
        folder = new_folder(root, "profile", f"matrix{suffix}", {f"m{suffix}": content})
        command = ("hardware", "time", "cpu-25gbe-4", "exchange", "--matrix", f"m{suffix}")
        yield Input("profile", f"matrix{suffix}", folder, command, (f"m{suffix}",), share=2.0)


def suite_inputs(root: Path) -> Iterator[Input]:
    """Make inputs of suites of all three kinds. None runs anything: the folder of the first holds another suite, which
    is noticed once the suite has been read; the tables that the others are scored against are not there."""
    other = SUITE.replace('name = "mine"', 'name = "another"').replace("repeats = 2", "repeats = 3")
    profile = (shipped_folder() / "vm-epyc-2.toml").read_text()
    files = {"s.toml": SUITE, "there/suite.toml": other, "there/profile.toml": profile}
    folder = new_folder(root, "suite", "runs", files)
    yield Input("suite", "runs", folder, ("validate", "s.toml", "--out", "there"), ("s.toml",), share=3.0, sound=2)
    yield Input(
        "suite", "runs-stored", folder, ("validate", "s.toml", "--out", "there"), ("there/suite.toml",), sound=2
    )
    for name in ("published", "nccl"):
        folder = new_folder(root, "suite", name, {"s.toml": (SUITES / f"{name}.toml").read_text()})
        yield Input("suite", name, folder, ("validate", "s.toml"), ("s.toml",), sound=2)
