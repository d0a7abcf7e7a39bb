"""Judges a disturbed run: what it printed, which files it left behind, and whether two runs came to the same end."""

import csv
import hashlib
import json
import re
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError, safe_open

from simgnn.record.rundir import RunDirectory
from tools.faults.draw import Fault, Kind

CAUSE: Mapping[Kind, str] = {
    "rank-killed": r"^simgnn: run: rank {rank} was killed by SIGKILL",
    "rank-stopped": r"^simgnn: run: .*rank {rank} did not answer",
    "disk-full": r"^simgnn: run: .*(No space left on device|is full).* bytes are free there",
    "directory-deleted": r"^simgnn: run: .*the run directory .* is gone",
    "launcher-terminated": r"^simgnn: interrupted$",
    "launcher-interrupted": r"^simgnn: interrupted$",
    "executor-killed": r"^simgnn: run: the executor was killed by SIGKILL",
}
"""What the screen must say of each fault. A launcher that was killed says nothing."""
MESSAGE = re.compile(r"^simgnn: (?:run: |interrupted|internal error|\[Errno|--|\d+ problems|/)", re.MULTILINE)
"""How lines begin that tell why a run ended, unlike lines of progress."""
NOTHING_SAVED = re.compile(r"^simgnn: run: --resume: there is no complete checkpoint in .*start without --resume", re.M)
NO_RUN = re.compile(r"^simgnn: --resume: got .*, which is not a run directory", re.M)
FINISHED = re.compile(r"^simgnn: .*holds a finished run", re.M)
SAME = ("status", "epochs", "loss", "accuracy", "bytes_sent", "bytes_sent_first_epoch", "messages")
"""Fields of a result that a resumed run shares with one that nobody disturbed."""
UNFINISHED = (".*.tmp", "*.partial-*", ".rendezvous-*", ".plan.*", ".lock", "rank-*.failure.json", ".*.json.*")
"""Names of drafts, locks and notes that a run removes before it ends."""


def screen_faults(fault: Fault, said: str, status: int) -> list[str]:
    """Return what is wrong with what a disturbed run printed, and with its exit status."""
    faults = []
    if "Traceback" in said or "internal error" in said:
        faults.append("the screen shows a traceback or an internal error")
    if status == 0:
        faults.append("its exit status is 0")
    messages = [line for line in said.splitlines() if MESSAGE.match(line)]
    if fault.kind in CAUSE:
        cause = CAUSE[fault.kind].format(rank=fault.rank)
        if not any(re.search(cause, line) for line in messages):
            faults.append(f"the screen does not name the cause ({cause}): {messages or said.splitlines()[-3:]}")
    if len(messages) != (fault.kind in CAUSE):
        faults.append(f"{len(messages)} messages: {messages}")
    return faults


BROKEN = (OSError, ValueError, KeyError, EOFError, pa.ArrowException, zipfile.BadZipFile, SafetensorError)
"""What readers raise on files that are cut off or broken."""


def damaged(folder: Path) -> list[str]:
    """Return the files of a run directory that are cut off or broken. Drafts do not count, whose names begin with a
    full stop, and neither do the traces of the ranks: a rank appends to them, and whole batches count."""
    faults = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")):
        check = CHECKS.get(path.suffix)
        if check is None or ".partial-" in path.name:
            continue
        try:
            check(path)
        except BROKEN as error:
            faults.append(f"{path.relative_to(folder)} is damaged ({type(error).__name__}: {error})")
    return faults


def _check_csv(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    rows = list(csv.reader(text.splitlines()))
    if not text.endswith("\n") or len({len(row) for row in rows}) != 1:
        raise ValueError("its last line is cut off")


def _check_zip(path: Path) -> None:
    with zipfile.ZipFile(path) as file:
        if broken := file.testzip():
            raise ValueError(f"{broken} in it is broken")


def _check_tensors(path: Path) -> None:
    with safe_open(path, framework="np") as file:
        for name in file.keys():  # noqa: SIM118  (the file itself cannot be iterated over)
            file.get_tensor(name)


CHECKS: Mapping[str, Callable[[Path], Any]] = {
    ".csv": _check_csv,
    ".json": lambda path: json.loads(path.read_text(encoding="utf-8")),
    ".npz": _check_zip,
    ".parquet": pq.read_table,
    ".pt": _check_zip,
    ".safetensors": _check_tensors,
    ".toml": lambda path: tomllib.loads(path.read_text(encoding="utf-8")),
}


def unfinished(folder: Path) -> list[str]:
    """Return the drafts, locks and notes in a run directory that its run should have removed."""
    found = {path for pattern in UNFINISHED for path in folder.rglob(pattern)}
    return [f"{path.relative_to(folder)} was left behind" for path in sorted(found)]


def outcome(folder: Path) -> dict[str, Any]:
    """Return what a finished run came to: losses and accuracies of all epochs, its result, digests of its weights."""
    run = RunDirectory(folder)
    result = json.loads(run.result.read_text(encoding="utf-8"))
    with run.losses.open(encoding="utf-8", newline="") as file:
        rows = [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]
    weights = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in run.model.glob("*.safetensors")}
    return {"losses.csv": rows, "weights": weights, **{name: result[name] for name in SAME}}


def other_outcome(mine: Mapping[str, Any], undisturbed: Mapping[str, Any]) -> list[str]:
    """Return in what a run differs from one that nobody disturbed."""
    return [f"{name} differs from that of the undisturbed run{_first_difference(mine[name], undisturbed[name])}"
            for name in undisturbed if mine[name] != undisturbed[name]]  # fmt: skip


def _first_difference(mine: Any, undisturbed: Any) -> str:
    if not isinstance(mine, list) or not isinstance(undisturbed, list):
        return ""
    if len(mine) != len(undisturbed):
        return f" ({len(mine)} instead of {len(undisturbed)} entries)"
    place = next(place for place, value in enumerate(mine) if value != undisturbed[place])
    return f" (entry {place + 1}: {mine[place]} instead of {undisturbed[place]})"
