"""The command line starts fast, explains itself, and never shows a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simgnn.cli import main
from simgnn.cli.main import COMMANDS, invoke
from simgnn.process_end import ended_quietly

HEAVY = ("torch", "dgl", "simpy", "plotly", "pandas", "numba", "scipy", "pyarrow", "numpy", "networkx")
START_LIMIT_S = 0.6


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\nfrom simgnn.cli.main import invoke\nstatus = invoke(['--help'])\n"
        f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules], status)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "LOADED [] 0" in told.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_loads_nothing_heavy_and_gives_an_example(command: str) -> None:
    script = (
        f"import sys\nfrom simgnn.cli.main import invoke\nstatus = invoke(['{command}', '--help'])\n"
        f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules], status)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "LOADED [] 0" in told.stdout
    assert "Example" in told.stdout
    assert f"simgnn {command}" in told.stdout


@pytest.mark.alone
def test_help_starts_within_the_limit() -> None:
    taken = []
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-m", "simgnn.cli.main", "--help"], capture_output=True, check=True)
        after = os.times()
        taken.append(after.children_user + after.children_system - before.children_user - before.children_system)
    # processor time, the best of several: what is measured is our imports, not what else the machine is doing
    assert min(taken) <= START_LIMIT_S


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["simulat"]) == 2
    assert "did you mean 'simulate'" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_fault_of_our_own_is_one_message(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ValueError("off by one")

    monkeypatch.setattr(main, "_load", broken)
    monkeypatch.delenv("SIMGNN_DEBUG", raising=False)
    assert invoke(["systems"]) == 1
    told = capsys.readouterr().err
    assert "internal error of simgnn: ValueError: off by one" in told
    assert "Traceback" not in told
    monkeypatch.setenv("SIMGNN_DEBUG", "1")
    with pytest.raises(ValueError, match="off by one"):
        invoke(["systems"])


def test_systems_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    import json
    import tomllib

    assert invoke(["systems", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"system": "vanilla", "partition": "metis"}.items() <= listed[-1].items()
    assert invoke(["systems", "show", "vanilla"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["communication"]["kind"] == "halo"
    assert invoke(["systems", "list"]) == 0
    assert "vanilla" in capsys.readouterr().out


def test_an_interrupted_command_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("simgnn.api.calibrate.measure_groups", interrupted)
    assert invoke(["calibrate", "--quick"]) == 1
    told = capsys.readouterr().err
    assert "nothing is written" in told
    assert "interrupted" in told


def test_a_profile_and_its_report_are_two_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    same = str(tmp_path / "x.html")
    assert invoke(["calibrate", "--quick", "--out", same, "--report", same]) == 2
    assert "expected two files" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("simgnn.cli.main", "systems", "list"),
        ("simgnn.cli.main", "hardware", "show", "vm-epyc-2", "--json"),
        ("simgnn.cli.main", "hardware", "time", "dgx-a100", "allreduce", "--bytes", "1MiB", "--ranks", "8", "--json"),
        ("simgnn.cli.main", "--help"),
    ],
)
def test_a_command_whose_reader_has_gone_ends_without_a_word(words: tuple[str, ...]) -> None:
    """As ``head`` goes once it has its lines: no traceback, and the status of what SIGPIPE has ended."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([sys.executable, "-m", *words], stdout=write, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_reader_that_has_all_it_wants_changes_no_status() -> None:
    script = (
        "import sys\nfrom simgnn.process_end import ended_quietly\n"
        "sys.exit(ended_quietly(lambda: [print('all', flush=True), sys.stdin.read(), 3][-1]))"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"all\n"
        process.stdout.close()
        process.stdin.close()
        assert process.wait() == 3


def test_a_broken_pipe_to_anything_else_is_a_fault() -> None:
    def broken() -> int:
        raise BrokenPipeError("of a child")

    with pytest.raises(BrokenPipeError, match="of a child"):
        ended_quietly(broken)
    assert ended_quietly(lambda: 3) == 3
