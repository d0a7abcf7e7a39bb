"""Runs inside a real testbed: their numbers, and how they end: by ``down``, a signal, or a rank that dies."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from executor.launch.launcher import launch
from executor.testbed import lifecycle, network, runs
from executor.testbed.declaration import Declaration, namespace_of
from executor.testbed.runs import run
from executor.testbed.state import Record
from simgnn.cli.main import invoke
from simgnn.errors import BackendError, ConfigError
from simgnn.process_end import with_lifeline
from simgnn.record.result import read_result
from tests.executor.runs import prepared_run, small_graph
from tests.executor.testbed.beds import LIMIT_S, WHY_NOT, bed, clean, command, on_file, quotas

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"no testbed here: {WHY_NOT}")
__all__ = ["clean", "quotas"]
ROOT = Path(runs.__file__).parents[2]
ALONE = {"hosts": 1, "ranks_per_host": 1}


def test_a_run_gives_the_numbers_of_a_normal_run(tmp_path: Path) -> None:
    graph, declared = small_graph(), bed(slow={})
    inside = prepared_run(graph, tmp_path / "inside", 2, hosts=2)
    beside = prepared_run(graph, tmp_path / "beside", 2)
    done = subprocess.run(
        command("run", on_file(declared, tmp_path), inside), capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    assert not lifecycle.status(declared.name)["up"], "it was not up before"
    normal = [sys.executable, "-m", "executor", "run", str(beside)]
    assert subprocess.run(normal, capture_output=True, timeout=LIMIT_S).returncode == 0
    results = [read_result(folder / "result.json") for folder in (inside, beside)]
    assert results[0].loss == results[1].loss
    assert results[0].accuracy == results[1].accuracy
    assert results[0].bytes_sent == results[1].bytes_sent
    assert results[0].environment["testbed"] == declared.to_table()
    assert (results[0].hosts, results[0].environment["hosts_found"]) == (2, 2)
    assert not results[0].notes, "its hosts are apart"
    assert Declaration.load(inside / "testbed.toml") == Declaration.parse(declared.to_table(), "bed")
    with pytest.raises(ConfigError, match="holds a finished run"):
        run(declared, inside, [])


def test_a_run_prepared_for_other_hosts_is_refused(tmp_path: Path) -> None:
    declared = bed()
    with pytest.raises(ConfigError, match=r"prepared for 2 ranks on 1 host\(s\), expected 2 host\(s\) of 1"):
        run(declared, prepared_run(small_graph(), tmp_path / "run", 2), [])
    assert Record.read(declared.name) is None


@pytest.mark.slow
def test_the_command_prints_the_result_and_resumes_where_the_run_was_trained(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    declared = Declaration.parse({**ALONE, "name": bed().name}, "bed")
    root = prepared_run(small_graph(), tmp_path / "run", 1, "train.epochs=2")
    file = str(on_file(declared, tmp_path))
    assert invoke(["testbed", "run", file, str(root), "--resume"]) == 2
    assert "was not trained inside a testbed" in capfd.readouterr().err
    assert invoke(["testbed", "run", str(tmp_path / "no.toml"), str(root)]) == 2
    told = capfd.readouterr().err
    assert f"{tmp_path}/no.toml: no such file" in told
    assert "starts" not in told
    assert invoke(["testbed", "run", file, str(root)]) == 0
    told = capfd.readouterr()
    assert f"training: {root} inside {file}" in told.err
    for quantity in ("epoch", "test accuracy"):
        assert quantity in told.out
    assert f"written to {root}" in " ".join(told.err.split())
    assert (root / "trace.perfetto.json").is_file()
    experiment = str(root / "experiment.toml")
    assert invoke(["testbed", "run", file, str(root), "--resume"]) == 2
    assert "holds a finished run" in capfd.readouterr().err
    # outside, epochs would take other times
    longer = ["run", experiment, "--epochs", "4", "--resume", "--out", str(root)]
    for words in (longer, ["run", experiment, "--resume", "--out", str(root)]):
        assert invoke(words) == 2
        said = capfd.readouterr().err
        assert f"simgnn testbed run {root}/testbed.toml {root} --resume" in said
        assert "starts" not in said
    assert read_result(root / "result.json").epochs == 2, "nothing was changed"
    assert invoke([*longer, "--prepare"]) == 0
    assert f"start it: simgnn testbed run {root}/testbed.toml {root} --resume" in " ".join(
        capfd.readouterr().err.split()
    )
    with pytest.raises(ConfigError, match="was trained inside a testbed"):
        launch(root, ["--resume"])
    other = Declaration.parse({**ALONE, "slow": {"0": 0.5}}, "bed")
    with pytest.raises(ConfigError, match=r"a testbed with slow = .*, expected slow = {}, as in .*testbed\.toml"):
        run(other, root, ["--resume"])
    assert invoke(["testbed", "run", str(root / "testbed.toml"), str(root), "--resume", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["epochs"], found["environment"]["started_at_epoch"], found["directory"]) == (4, 2, str(root))


@pytest.mark.slow
def test_a_run_that_begins_anew_outside_is_no_longer_of_the_testbed(tmp_path: Path) -> None:
    root = prepared_run(small_graph(), tmp_path / "run", 1, "train.epochs=2")
    on_file(bed(), tmp_path).rename(root / "testbed.toml")  # as if it had been interrupted there
    done = subprocess.run([sys.executable, "-m", "executor", "run", str(root)], capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 0
    assert not (root / "testbed.toml").exists()


@pytest.mark.slow
def test_slow_ranks_wait_without_spinning_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quotas: None
) -> None:
    """A quota is shared by the threads of a rank: one that spins takes the time of the one that it waits for."""
    declared = bed(slow={"1": 0.5})
    # one write a line: two ranks share the pipe
    tell = (
        "import json, os\n"
        "told = [os.environ['RANK'], os.environ.get('OMP_WAIT_POLICY')]\n"
        "os.write(1, (json.dumps(told) + '\\n').encode())\n"
    )
    words = command("exec", on_file(declared, tmp_path), "--", sys.executable, "-c", tell)
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    said = [
        subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **more}).stdout
        for more in ({}, {"OMP_WAIT_POLICY": "active"}, {"GOMP_SPINCOUNT": "1000"})
    ]
    assert [dict(map(json.loads, text.splitlines())) for text in said] == [
        {"0": None, "1": "passive"},
        {"0": "active", "1": "active"},
        {"0": None, "1": None},
    ]


def test_a_slow_rank_with_other_threads_than_its_quota_is_for_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread on a quota of half of two cores would not be slow at all."""
    monkeypatch.setattr(runs, "usable_cores", lambda: (0, 1))
    declared = Declaration.parse({**ALONE, "name": bed().name, "slow": {"0": 0.5}}, "bed")
    root = prepared_run(small_graph(), tmp_path / "run", 1, "hardware.threads_per_rank=1")
    with pytest.raises(ConfigError, match=r"hardware\.threads_per_rank: got 1, expected 2, or none: rank 0"):
        run(declared, root, [])
    assert Record.read(declared.name) is None


@pytest.mark.parametrize("name", ["no-such-command", "./a-text"])
def test_a_command_that_cannot_be_started_is_told_as_that(tmp_path: Path, name: str) -> None:
    (tmp_path / "a-text").write_text("not a program")
    done = subprocess.run(
        command("exec", on_file(bed(), tmp_path), "--", name), capture_output=True, text=True, timeout=LIMIT_S,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        f"executor: error: CMD: got '{name}', expected a program in PATH, or the path of an executable file\n"
    )


def test_a_program_that_the_kernel_refuses_is_not_called_a_namespace(tmp_path: Path) -> None:
    program = tmp_path / "a-program"
    program.write_bytes(b"\x7fELF, but no more")
    program.chmod(0o755)
    done = subprocess.run(
        command("exec", on_file(bed(ranks_per_host=1), tmp_path), "--", program), capture_output=True, text=True,
        timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"'{program}' cannot be started (Exec format error)" in done.stderr
    assert "entering" not in done.stderr


class Running:
    """Something inside a testbed that goes on until it is ended: two idle ranks, or the training of ``root``."""

    def __init__(self, declared: Declaration, folder: Path, root: Path | None = None, *, follows: bool = False) -> None:
        # one write a line: two ranks share the pipe, and unbuffered prints would mingle
        sleep = ["--", sys.executable, "-c", "import os, time; os.write(1, b'epoch\\n'); time.sleep(1000)"]
        words = (
            ["exec", on_file(declared, folder), *sleep] if root is None else ["run", on_file(declared, folder), root]
        )
        self.process = subprocess.Popen(
            command(*words), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            stdin=subprocess.PIPE if follows else None,
            env={**(with_lifeline() if follows else os.environ), "PYTHONUNBUFFERED": "1"},
            # whoever starts the tests in the background of a shell has Ctrl-C ignored, and children inherit that
            preexec_fn=lambda: [signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGHUP)],
        )  # fmt: skip
        assert self.process.stdout is not None
        for _ in range(2 if root is None else 1):
            assert "epoch" in self.process.stdout.readline()
        self.ranks = psutil.Process(self.process.pid).children()

    def all_gone(self) -> bool:
        gone, _ = psutil.wait_procs(self.ranks, timeout=10)
        return len(gone) == len(self.ranks) == 2

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, said


def test_down_ends_a_run_and_its_testbed(tmp_path: Path) -> None:
    declared = bed()
    lifecycle.up(declared)
    running = Running(declared, tmp_path)
    found = lifecycle.status(declared.name)
    assert found["in_use"]
    assert sorted(p for host in found["hosts"] for p in host["processes"]) == sorted(r.pid for r in running.ranks)
    with pytest.raises(BackendError, match=f"is in use by process {running.process.pid}"):
        lifecycle.up(declared)
    assert lifecycle.down(declared.name) is True
    assert running.end()[0] == 128 + signal.SIGTERM
    assert running.all_gone()


def test_a_killed_run_leaves_what_down_removes_and_no_ranks(tmp_path: Path) -> None:
    declared = bed()
    running = Running(declared, tmp_path)
    running.process.kill()
    running.process.communicate()
    assert running.all_gone(), "ranks end with their launcher"
    assert network.exists(namespace_of(declared.name, 0))
    assert lifecycle.down(declared.name) is True
    assert not network.exists(namespace_of(declared.name, 0))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_an_interrupted_run_takes_its_testbed_down(tmp_path: Path, sent: signal.Signals) -> None:
    declared = bed()
    running = Running(declared, tmp_path)
    running.process.send_signal(sent)
    status, said = running.end()
    assert status == 130
    assert said.strip().splitlines()[-1] == "executor: interrupted; ending all ranks"
    assert running.all_gone()
    assert Record.read(declared.name) is None
    assert not network.exists(namespace_of(declared.name, 0))


def test_a_run_whose_starter_has_gone_takes_its_testbed_down(tmp_path: Path) -> None:
    """What the starter held ends with it, and so does all that would read what is said."""
    declared = bed()
    running = Running(declared, tmp_path, follows=True)
    for end in (running.process.stdin, running.process.stdout, running.process.stderr):
        assert end is not None
        end.close()
    running.process.wait(LIMIT_S)
    assert running.all_gone()
    assert Record.read(declared.name) is None
    assert not network.exists(namespace_of(declared.name, 0))


def test_a_testbed_is_held_until_its_holder_lets_go(tmp_path: Path) -> None:
    """``validate`` holds it so: runs inside leave it up, and the end of standard input takes it down with them."""
    declared = bed()
    holder = subprocess.Popen(
        command("up", on_file(declared, tmp_path), "--hold"), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == f"testbed '{declared.name}' is up\n"
    running = Running(declared, tmp_path)
    assert lifecycle.status(declared.name)["up"]
    holder.communicate(timeout=LIMIT_S)
    assert holder.returncode == 0
    assert running.end()[0] == 128 + signal.SIGTERM
    assert running.all_gone()
    assert Record.read(declared.name) is None
    assert not network.exists(namespace_of(declared.name, 0))


def test_one_rank_that_dies_ends_all(tmp_path: Path) -> None:
    declared = bed()
    running = Running(declared, tmp_path)
    running.ranks[1].kill()
    assert running.end()[0] == 128 + signal.SIGKILL
    assert running.all_gone()
    assert Record.read(declared.name) is None


@pytest.mark.slow
def test_one_rank_of_a_run_that_dies_ends_all(tmp_path: Path) -> None:
    declared = bed()
    endless = ("train.epochs=1000000", "train.eval_every=0")
    running = Running(declared, tmp_path, prepared_run(small_graph(), tmp_path / "run", 2, *endless, hosts=2))
    running.ranks[1].kill()
    status, said = running.end()
    assert status == 1
    assert "was killed by SIGKILL" in said
    assert running.all_gone()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"
    assert Record.read(declared.name) is None
