"""Questions to ``simgnn hardware time`` that have no answer: each fault is told, with what would have one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simgnn.cli.commands.hardware_time import read_matrix
from simgnn.cli.main import invoke
from simgnn.errors import ConfigError
from simgnn.hardware.price.operations import read_question
from simgnn.tomlfile import write_toml

DATA = Path(__file__).parent / "data"


SERVER = str(DATA / "invented-server.toml")


MALFORMED = [
    (["alreduce", "--bytes", "1MiB"], "did you mean 'allreduce'"),
    (["allreduce"], "--bytes: missing"),
    (["allreduce", "--bytes", "64"], "--bytes: got '64' without a unit"),
    (["allreduce", "--bytes", "64 Mb"], "--bytes"),
    (["allreduce", "--bytes", "-1 MB"], "--bytes"),
    (["allreduce", "--bytes", "1 MB", "--width", "3"], "--width: 'allreduce' has no such size"),
    (["allreduce", "--bytes", "1 MB", "--ranks", "0"], "--ranks: got 0"),
    (["allreduce", "--bytes", "1 MB", "--ranks", "9"], "--ranks: got 9"),
    (["allreduce", "--bytes", "1 MB", "--backend", "mpi"], "backends.mpi"),
    (["allreduce", "--bytes", "1 MB", "--ranks-per-host", "0"], "--ranks-per-host"),
    (["allreduce", "--bytes", "1 MB", "--threads", "0"], "--threads"),
    (["broadcast", "--bytes", "1 MB", "--root", "8"], "--root: got rank 8"),
    (["send", "--bytes", "1 MB", "--from", "1", "--to", "1"], "--to: got rank 1"),
    (["send", "--bytes", "1 MB", "--from", "x"], "--from: got 'x'"),
    (["send", "--bytes", "1 MB", "--to", "3", "--ranks", "2"], "--ranks: got 2"),
    (["exchange"], "--matrix: missing"),
    (["exchange", "--bytes", "1 B", "--matrix", "MATRIX"], "--matrix or --bytes"),
    (["exchange", "--matrix", "nowhere.csv"], "--matrix: nowhere.csv cannot be read"),
    (["allreduce", "--bytes", "1 MB", "--matrix", "MATRIX"], "--matrix: 'allreduce' takes no matrix"),
    (["aggregate", "--edges", "1.5", "--rows", "many", "--width", "0"], "3 problems"),
    (["aggregate", "--edges", "1e300", "--rows", "1", "--width", "1"], "--edges: got '1e300'"),
    (["aggregate", "--edges", "nan", "--rows", "1", "--width", "1"], "--edges"),
    (["gather", "--rows", "1", "--width", "1"], "no curve of 'gather'"),
]


@pytest.mark.parametrize(("words", "told"), MALFORMED)
def test_bad_input_ends_with_2_and_its_key(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    matrix = tmp_path / "m.csv"
    matrix.write_text("0, 1\n1, 0\n")
    assert invoke(["hardware", "time", SERVER, *(str(matrix) if word == "MATRIX" else word for word in words)]) == 2
    shown = capsys.readouterr()
    assert told in shown.err
    assert "Traceback" not in shown.err
    assert not shown.out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ragged.csv", "0, 1\n1\n"),
        ("words.csv", "0, a\n1, 0\n"),
        ("negative.csv", "0, -1\n1, 0\n"),
        ("fraction.csv", "0, 1.5\n1, 0\n"),
        ("empty.csv", ""),
        ("object.json", '{"a": 1}'),
        ("broken.json", "[[0,"),
        ("flags.json", "[[true]]"),
        ("fake.npy", "no array"),
        ("huge.csv", "0, 1e400\n1, 0"),
    ],
)
def test_malformed_matrices_are_refused(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert invoke(["hardware", "time", SERVER, "exchange", "--matrix", str(path)]) == 2
    assert "--matrix" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("m.npy", np.array([[0.0, np.inf], [1.0, 0.0]]), "row 0, column 1: got inf, expected a whole number of bytes"),
        ("m.npy", np.array([[0.0, 1.0], [np.nan, 0.0]]), "row 1, column 0: got nan, expected a whole number of bytes"),
        ("m.json", "[[0, NaN], [1, 0]]", "row 0, column 1: got nan"),
        ("m.csv", "0,-5\n1,0\n", "row 0, column 1: got -5, expected a whole number of bytes, none negative"),
        ("m.csv", "0,1e300\n1,0\n", "got 1e+300, expected whole numbers of bytes, 0 to"),
        *((name, "", f"{name} is empty, expected P rows of P numbers") for name in ("m.npy", "m.csv", "m.json")),
        ("m.csv", "# only a comment\n", "m.csv is empty"),
    ],
)
def test_what_is_wrong_with_a_matrix_is_said(
    name: str, content: Any, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    else:
        np.save(path, content)
    assert invoke(["hardware", "time", SERVER, "exchange", "--matrix", str(path)]) == 2
    assert told in capsys.readouterr().err


def test_bytes_of_a_matrix_may_have_an_exponent(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("0, 1e9\n2.5e3, 64 KiB\n")
    assert read_matrix(path) == [[0, 10**9], [2500, 65536]]


def test_a_price_beyond_the_clock_is_bad_input(
    table: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table["backends"]["nccl"]["collectives"][0]["hop"]["value"] = "1e20 s"
    table["links"]["infiniband"]["bandwidth"]["value"] = "1e-20 B/s"
    path = tmp_path / "slow.toml"
    write_toml(path, table)
    for op, told in (
        (["allreduce"], "by the hardware profile"),
        (["send", "--from", "0", "--to", "4"], "would get 1e-20 bytes/s"),
    ):
        assert invoke(["hardware", "time", str(path), *op, "--bytes", "1 MB"]) == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["optimizer", "--elements", "1e6", "--ranks", "100000"], "--ranks: got 100,000, expected 1 to 65,536"),
        (["send", "--bytes", "1kB", "--to", "99999"], "--to: got '99999', expected a rank, numbered from 0 to 65,535"),
        (["barrier", "--ranks-per-host", "100000"], "--ranks-per-host: got 100,000, expected 1 to 65,536"),
        (["barrier", "--ranks-per-host", "60000"], "would take 480,000 ranks, expected 1 to 65,536"),
        (["send", "--bytes", "1kB", "--ranks", "8193"], "--ranks: got 8,193, expected at most 8,192 for 'send'"),
        (["exchange", "--bytes", "1kB", "--ranks", "9000"], "--ranks: got 9,000, expected at most 8,192"),
        (["send", "--bytes", "1e30B"], "--bytes: got '1e30B', expected a whole number from 0 to 2^62 (4.6e+18)"),
        (["copy", "--rows", "1e19", "--width", "1"], "expected a whole number from 1 to 2^62 (4.6e+18)"),
    ],
)
def test_more_than_can_be_asked_for_is_refused_with_the_most_that_can(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["hardware", "time", "cpu-100gbe-8", *arguments]) == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_every_fault_of_a_question_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read_question("matmul", {"rows": "0", "widht": "3"}, ranks=-1)
    assert len(caught.value.problems) == 5
