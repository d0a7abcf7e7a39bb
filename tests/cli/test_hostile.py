"""Hostile files: exit status 2 and one message that names the file, before memory or time is taken."""

import gzip
import io
import json
import os
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from simgnn.cli.main import invoke
from simgnn.record.rundir import OPS_SCHEMA, TRACE_SCHEMA, RunDirectory, read_table, write_table

Make = Callable[[Path], object]


@cache
def bomb() -> bytes:
    """An archive of an array of 300 MiB of zeros."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("labels.npy", "w") as stream:
        header = b"{'descr': '|i1', 'fortran_order': False, 'shape': (314572800,), }".ljust(117) + b"\n"
        stream.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        for _ in range(300):
            stream.write(bytes(1 << 20))
    return content.getvalue()


def claiming(path: Path) -> None:
    """An array whose header claims a million times what follows."""
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (500000000, 2), }".ljust(117) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8000))


def inside(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        claiming(path.with_suffix(".one"))
        archive.write(path.with_suffix(".one"), "indptr.npy")


def parquet_of(columns: dict[str, object], metadata: dict[str, str]) -> Make:
    return lambda path: pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)


def small_npz(path: Path, **more: object) -> None:
    np.savez(path, indptr=np.array([0, 1, 2]), indices=np.array([1, 0]), **more)


def beside(path: Path, facts: str) -> None:
    small_npz(path, labels=np.array([0, 1]))
    path.with_suffix(".json").write_text(facts)


MTX = "%%MatrixMarket matrix coordinate pattern general\n"
SOURCES: dict[str, tuple[str, Make, str]] = {
    "a pipe": ("g.csv", lambda path: os.mkfifo(path), "is a pipe"),
    "a device": ("g.npz", lambda path: path.symlink_to("/dev/zero"), "is a device"),
    "a loop of links": ("g.npz", lambda path: path.symlink_to(path), "g.npz"),
    "rows of a matrix": (
        "g.mtx",
        lambda path: path.write_text(MTX + "1000000000 1000000000 1\n1 2\n"),
        "leave out empty",
    ),
    "entries of a matrix": (
        "g.mtx",
        lambda path: path.write_text(MTX + "9 9 4000000000\n1 2\n"),
        "4,000,000,000 entries",
    ),
    "a packed matrix": (
        "g.mtx.gz",
        lambda path: path.write_bytes(gzip.compress(f"{MTX}9 9 {'9' * 12}\n1 2\n".encode())),
        "can hold",
    ),
    "a number of 5,000 digits in a matrix": (
        "g.mtx",
        lambda path: path.write_text(MTX + "9" * 5000 + " 9 1\n1 2\n"),
        "",
    ),
    "more entries than declared": ("g.mtx", lambda path: path.write_text(MTX + "9 9 1\n1 2\n2 3\n"), "holds 2"),
    "an entry outside": ("g.mtx", lambda path: path.write_text(MTX + "9 9 1\n1 10\n"), "must lie in 1..9"),
    "an entry that is no number": (
        "g.mtx",
        lambda path: path.write_text(MTX + "9 9 1\n1 nan\n"),
        "g.mtx: not a readable",
    ),
    "an entry of words": ("g.mtx", lambda path: path.write_text(MTX + "9 9 1\n1 two\n"), "g.mtx: not a readable"),
    "a zip bomb": ("g.npz", lambda path: path.write_bytes(bomb()), "unpacks to 0.3 GiB"),
    "a zip bomb of PyG": ("g.pt", lambda path: path.write_bytes(bomb()), "unpacks to 0.3 GiB"),
    "an array that is too short": ("g.npz", inside, "declares shape [500000000, 2]"),
    "a list that is too short": ("g.npy", claiming, "not a readable .npy file"),
    "classes as text": ("g.npz", lambda path: beside(path, '{"num_classes": "many"}'), "g.json: num_classes"),
    "classes without end": ("g.npz", lambda path: beside(path, '{"num_classes": 1e400}'), "g.json: num_classes"),
    "classes of 5,000 digits": ("g.npz", lambda path: beside(path, f'{{"num_classes": {"9" * 5000}}}'), "g.json"),
    "lists of lists": ("g.npz", lambda path: beside(path, "[" * 100_000), "g.json: not a readable JSON file (nested"),
    "vertices that are no number": ("g.parquet", parquet_of({"src": [0], "dst": [1]}, {"vertices": "²"}), "metadata"),
    "vertices of 5,000 digits": (
        "g.parquet",
        parquet_of({"src": [0], "dst": [1]}, {"vertices": "9" * 5000}),
        "metadata 'vertices'",
    ),
    "more vertices than memory": (
        "g.parquet",
        parquet_of({"src": [0], "dst": [1]}, {"vertices": "9" * 15}),
        "GiB are free",
    ),
    "an id of 5,000 digits": ("g.csv", lambda path: path.write_text(f"0,{'9' * 5000}\n"), "not an edge list"),
    "no line ends": ("g.csv", lambda path: path.write_bytes(b"7" * (70 << 20)), "expected a table"),
    "a home of nobody": ("~nobody-at-all/g.csv", lambda path: None, "graph.source: "),
    "a damaged folder": ("saved", lambda path: path.mkdir(), "expected graph.json"),
}


def check(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(arguments) == 2
    message = capsys.readouterr().err
    assert told in message
    assert "Traceback" not in message
    assert "internal error" not in message


@pytest.mark.parametrize("name", SOURCES)
def test_hostile_graphs_are_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, make, told = SOURCES[name]
    make(tmp_path / file)
    (tmp_path / "e.toml").write_text(f'[graph]\nsource = "{file}"\n')
    check(["simulate", str(tmp_path / "e.toml"), "--ranks", "2", "--out", str(tmp_path / "out")], told, capsys)


def saved(path: Path, **changed: object) -> None:
    path.mkdir()
    facts: dict[str, object] = {"format": "simgnn-graph-1", "name": "g", "classes": 0, "symmetric": True}
    facts |= dict.fromkeys(("multilabel", "synthetic_features", "synthetic_labels"), False)
    (path / "graph.json").write_text(json.dumps(facts))
    arrays = {"indptr": np.array([0, 1, 2]), "indices": np.array([1, 0], np.int32)} | changed
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)


@pytest.mark.parametrize(
    "changed",
    [
        {"indices": np.array([1, 7], np.int32)},
        {"indptr": np.array([0, 9, 2])},
        {"indptr": np.array([0.5, 1, 2])},
        {"indptr": np.array([])},
        {"features": np.ones((3, 1), np.float32)},
        {"labels": np.array([0, 10**9])},
        {"labels": np.array([0, 1]), "train_mask": np.array([True])},
        {"features_shape": np.array([2, 2])},
    ],
)
def test_saved_graphs_are_checked_like_others(
    changed: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path / "g", **changed)
    (tmp_path / "e.toml").write_text('[graph]\nsource = "g"\n')
    check(["simulate", str(tmp_path / "e.toml"), "--ranks", "2"], str(tmp_path / "g"), capsys)


TOML = {
    "a deep key": ".".join("a" * 30_000) + " = 1\n",
    "a deep header": f"[{'.'.join('a' * 30_000)}]\n",
    "a deep list": f"seed = {'[' * 30_000}{']' * 30_000}\n",
    "a deep table": f"seed = {'{a = ' * 1_000}1{'}' * 1_000}\n",
    "a long number": f"seed = {'9' * 5_000}\n",
    "a number longer than any": f"seed = {'9' * 4_000}\n",
    "a long number in base 16": f"seed = 0x{'f' * 5_000}\n",
    "a zero byte in a path": '[graph]\nsource = "a\\u0000.csv"\n',
    "a parent in a home of nobody": 'extends = "~nobody-at-all/e.toml"\n',
    "a zero byte in a key": '"a\\u0000b" = 1\n',
    "a zero byte in a parent": 'extends = "a\\u0000b"\n',
    "a zero byte in a profile": '[hardware]\nprofile = "./a\\u0000b.toml"\n',
}


@pytest.mark.parametrize("name", TOML)
def test_hostile_experiments_are_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "e.toml").write_text(TOML[name])
    check(["simulate", str(tmp_path / "e.toml")], str(tmp_path / "e.toml"), capsys)


@pytest.mark.parametrize(
    "override",
    [".".join("a" * 30_000) + "=1", f"seed={'9' * 5_000}", f"seed={'[' * 30_000}", 'graph.source="a\\u0000.csv"'],
)
def test_hostile_overrides_are_refused(override: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(["simulate", "vanilla", "--set", override], "--set", capsys)


@pytest.mark.parametrize("command", [["hardware", "check"], ["validate"]])
def test_pipes_are_not_read(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "p.toml")
    check([*command, str(tmp_path / "p.toml")], "p.toml", capsys)


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predicted")
    small = ["graph.vertices=60", "graph.edges=200", "train.epochs=2", "model.hidden=4"]
    overrides = [word for setting in small for word in ("--set", setting)]
    assert invoke(["simulate", "vanilla", "--ranks", "2", *overrides, "--out", str(folder / "run")]) == 0
    return folder / "run"


def without(run: RunDirectory) -> str:
    write_table(read_table(run.ops).drop_columns(["kind"]), run.ops)
    return "ops.parquet: expected one column kind"


def of_text(run: RunDirectory) -> str:
    table = read_table(run.trace)
    write_table(table.set_column(3, "op_id", pa.array(["x"] * table.num_rows)), run.trace)
    return "trace.parquet: not a readable Parquet file"


def not_finite(run: RunDirectory) -> str:
    table = read_table(run.trace)
    place = TRACE_SCHEMA.names.index("ended_s")
    write_table(table.set_column(place, "ended_s", pa.array([np.inf] * table.num_rows)), run.trace)
    return "trace.parquet: column 'ended_s' has cells that are empty or not finite"


def twice(run: RunDirectory) -> str:
    table = read_table(run.trace)
    write_table(pa.concat_tables([table, table]), run.trace)
    return "trace.parquet: several rows have the same rank, epoch, step, op_id"


def twice_an_op(run: RunDirectory) -> str:
    table = read_table(run.ops, OPS_SCHEMA)
    write_table(pa.concat_tables([table, table]), run.ops)
    return "ops.parquet: several rows have the same op_id"


def a_pipe(run: RunDirectory) -> str:
    run.result.unlink()
    os.mkfifo(run.result)
    return "result.json: is a pipe"


def deep(run: RunDirectory) -> str:
    run.result.write_text("[" * 100_000)
    return "result.json"


def huge(run: RunDirectory) -> str:
    with run.result.open("wb") as file:  # takes no place on the disk
        file.truncate(1 << 40)
    return "result.json: reading it takes about 1024.0 GiB of memory"


@pytest.mark.parametrize("damage", [without, of_text, not_finite, twice, twice_an_op, a_pipe, deep, huge])
def test_hostile_records_are_refused(
    damage: Callable[[RunDirectory], str], predicted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in predicted.iterdir():
        if path.is_file():
            (other / path.name).write_bytes(path.read_bytes())
    told = damage(RunDirectory(other))
    check(["compare", str(predicted), str(other)], told, capsys)
