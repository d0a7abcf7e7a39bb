"""Small valid folders that simgnn itself writes: runs, trained models, statistics, batches, kept ground truth."""

import json
import shutil
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w
from pyarrow import parquet as pq

from simgnn.api.backend import CommandBackend
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.hardware.profile.library import shipped_folder
from simgnn.hardware.profile.profile import load_profile
from simgnn.progress import Progress
from simgnn.record.result import Result
from simgnn.seal import SEAL, digests_of
from simgnn.study.validate import suite_runs
from simgnn.study.validate.ground_truth import DIGEST, TruthFolder
from simgnn.study.validate.suite_file import load_suite
from tools.mutate_inputs.inputs import EXPERIMENT, MINI_BATCHES, Input, carry_out, in_fork, new_folder
from tools.mutate_inputs.settings_inputs import SUITE

TRAINED = EXPERIMENT.replace("[train]\nepochs = 2", "[train]\nepochs = 2\ncheckpoint_every = 1")
SKIPPING = (
    TRAINED.replace('extends = "vanilla"', 'extends = "sancus"')
    + """
[freshness]
rule = "variation-gap"
bound_change = 0.01
"""
)
RECORDS = ("*.json", "*.parquet", "experiment.toml", "plan/*")
DISTDGL = f'extends = "distdgl"\n{MINI_BATCHES}'


def run_inputs(root: Path) -> Iterator[Input]:
    """Make inputs of a prediction and of finished runs, for the commands that compare, replay, resume and use them."""
    folder = new_folder(root, "record", "full", {"e.toml": TRAINED})
    carry_out(folder, ("simulate", "e.toml", "--out", "predicted"), ("run", "e.toml", "--out", "measured"))
    for side in ("predicted", "measured"):
        files = tuple(f"{side}/{name}" for name in RECORDS)
        yield Input("record", f"compare-{side}", folder, ("compare", "predicted", "measured"), files, share=3.0)
    resume = ("run", "e.toml", "--resume", "--epochs", "3", "--out", "measured")
    yield Input("checkpoint", "resume", folder, resume, ("measured/checkpoint*/**/*",), share=3.0)
    yield Input("checkpoint", "resume-plan", folder, resume, ("measured/plan/*", "measured/*.toml", "measured/*.json"))
    about = ("measured/model/*", "measured/plan/plan.json", "measured/experiment.toml", "measured/result.json")
    yield Input("model", "infer", folder, ("infer", "measured", "--out", "scores.parquet"), about)
    for target in ("torch", "pyg"):
        exported = ("export", "measured", "--to", target, "--out", "model.py")
        yield Input("model", f"export-{target}", folder, exported, about)
    folder = new_folder(root, "record", "skipping", {"e.toml": SKIPPING})
    carry_out(folder, ("run", "e.toml", "--out", "recorded"))
    files = tuple(f"recorded/{name}" for name in RECORDS)
    command = ("simulate", "e.toml", "--activity", "recorded")
    yield Input("record", "replay", folder, command, files, share=3.0, unseal=_unseal("recorded"))
    carried = (*command, "--ranks", "3", "--epochs", "4")
    yield Input("record", "replay-carried", folder, carried, files, share=2.0, unseal=_unseal("recorded"))


def batch_inputs(root: Path) -> Iterator[Input]:
    """Make inputs of batches that were drawn ahead, of cached partitions, and of comparisons of mini-batch runs."""
    folder = new_folder(root, "batches", "drawn", {"e.toml": f'extends = "rapidgnn"\n{MINI_BATCHES}'})
    carry_out(folder, ("sample", "e.toml", "--out", "drawn"))
    command = ("simulate", "e.toml", "--set", "batching.storage=drawn")
    yield Input("batches", "simulate", folder, command, ("drawn/**/*",), share=2.0)
    longer = ("sample", "e.toml", "--out", "drawn", "--epochs", "3")
    yield Input("batches", "sample", folder, longer, ("drawn/**/*",))
    folder = new_folder(root, "batches", "cache", {"e.toml": DISTDGL})
    carry_out(folder, ("simulate", "e.toml", "--out", "predicted"))
    yield Input("batches", "cache", folder, ("simulate", "e.toml"), ("cache/**/*",), share=2.0)
    files = tuple(f"predicted/{name}" for name in RECORDS)
    yield Input("batches", "compare", folder, ("compare", "predicted", "predicted"), files)


def statistics_inputs(root: Path) -> Iterator[Input]:
    """Make inputs of statistics files: counted from an edge-cut, a vertex-cut and several partitions, or by hand."""
    of_file = EXPERIMENT.partition("[graph]")[0] + '[graph]\nsource = "stats:stats.toml"\n[model]' + (
        EXPERIMENT.partition("[model]")[2])  # fmt: skip
    for kind, ranks in (("metis", "2"), ("ebv", "2"), ("random", "2,3"), ("random", "32")):
        name = f"{kind}-{ranks.replace(',', '-')}"
        files = {"made.toml": f'{EXPERIMENT}\n[partition]\nkind = "{kind}"\n', "e.toml": of_file}
        folder = new_folder(root, "statistics", name, files)
        words = ("--ranks", ranks, "--no-alternatives", "--stats", "stats.toml")
        carry_out(folder, ("partition", "made.toml", *words))
        command = ("simulate", "e.toml", "--ranks", ranks.partition(",")[0], *_communication(kind))
        more = ("--hardware", "dgx-a100-2") if ranks == "32" else ()
        yield Input("statistics", name, folder, (*command, *more), ("stats*",), unseal=forget_source)
    by_hand = (
        '[graph]\nname = "big"\nvertices = 111_059_956\nedges = 3_231_371_744\nfeature_width = 128\nclasses = 172\n'
        "train_vertices = 1_207_179\nvalidation_vertices = 125_265\ntest_vertices = 214_338\n\n"
        "[partition]\nranks = 16\nreplication_factor = 2.4\nvertex_imbalance = 1.03\nedge_imbalance = 1.6\n"
    )
    folder = new_folder(root, "statistics", "by-hand", {"stats.toml": by_hand, "e.toml": of_file})
    command = ("simulate", "e.toml", "--ranks", "16", "--hardware", "dgx-a100-2")
    yield Input("statistics", "by-hand", folder, command, ("stats.toml",))


def truth_inputs(root: Path) -> Iterator[Input]:
    """Make an input of the kept ground truth of a suite, whose runs were simulated."""
    folder = new_folder(root, "suite", "truth", {"s.toml": SUITE})
    in_fork(lambda: _keep_truth(folder))
    shutil.rmtree(folder / "made")
    command = ("validate", "truth/suite.toml", "--out", "truth", "--rescore")
    yield Input("suite", "truth", folder, command, ("truth/**/*",), share=3.0, unseal=refreeze, scores=True)


class Pretended(CommandBackend):
    """A backend that measures nothing: calibrating copies a shipped profile, and a run takes as long as simulated."""

    def calibrate(self, ranks: Any, quick: bool, passes: int, out: Path) -> None:
        shutil.copyfile(shipped_folder() / "vm-epyc-2.toml", out)

    def run(self, directory: Path, testbed: Path | None) -> Result:
        experiment: Experiment = load_experiment(directory / "experiment.toml")
        assert experiment.hardware.profile is not None
        return self.predict(experiment, load_profile(experiment.hardware.profile)).result

    def canary(self) -> float:
        return 0.1


def _keep_truth(folder: Path) -> str:
    suite_runs.validate(load_suite(folder / "s.toml"), folder / "made", Pretended(Progress()))
    suite_runs.keep(folder / "made", folder / "truth")
    return ""


def _communication(kind: str) -> tuple[str, ...]:
    words = ("partition.kind=ebv", "communication.kind=master-mirror") if kind == "ebv" else (f"partition.kind={kind}",)
    return tuple(word for each in words for word in ("--set", each))


def _unseal(run: str) -> Callable[[Path], None]:
    def unseal(folder: Path) -> None:
        (folder / run / SEAL).unlink(missing_ok=True)

    return unseal


def refreeze(folder: Path) -> None:
    """Renew the digests of the files that predictions were made from, and forget those of the runs."""
    truth = TruthFolder(folder / "truth")
    with suppress(Exception):  # damaged files have no digest to renew
        assert truth.runs.is_file()
        table = pq.read_table(truth.runs)
        metadata = {key: value for key, value in table.schema.metadata.items() if key != DIGEST}
        pq.write_table(table.replace_schema_metadata(metadata), truth.runs)
    if not truth.frozen.is_file():
        return
    with suppress(Exception):
        frozen = json.loads(truth.frozen.read_text())
        known = [truth.root / name for name in frozen["digests"]]
        frozen["digests"] = digests_of(truth.root, [path for path in known if path.stat().st_size < 2**30])
        truth.frozen.write_text(json.dumps(frozen))


def forget_source(folder: Path) -> None:
    """Remove the source and the digests from a statistics file, as if a user had written it."""
    path = folder / "stats.toml"
    if not path.is_file():
        return
    with suppress(Exception):  # damaged files have no digest to remove
        table = tomllib.loads(path.read_text())
        parts = table["partition"]
        for part in parts if isinstance(parts, list) else [parts]:
            part.pop("counted_from", None)
        path.write_text(tomli_w.dumps(table))
