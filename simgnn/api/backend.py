"""Commands as a study calls them: calibrate, prepare, predict and run the cases of a suite."""

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from simgnn.api.activity import deciding_policy, determined
from simgnn.api.calibrate import calibrate
from simgnn.api.executor_process import call_testbed, check_ended, check_executor, start_executor, start_testbed
from simgnn.api.predict import ChosenProfile, check_declared, predict
from simgnn.api.train import write_run
from simgnn.errors import ConfigError
from simgnn.experiment.schema import Experiment
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import Profile, load_profile
from simgnn.planner.prepare import prepare
from simgnn.progress import Progress
from simgnn.record.activity import decisions_in
from simgnn.record.result import Result, read_result
from simgnn.record.rundir import RunDirectory
from simgnn.study.backend import Counted, Predicted
from simgnn.study.validate.drift_check import canary_seconds


class CommandBackend:
    """Implements :class:`simgnn.study.backend.Backend`, which describes the methods."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._quiet = Progress()
        self._holders: dict[Path, subprocess.Popen[str]] = {}

    def tell(self, text: str) -> None:
        self._progress.stage(text)

    def calibrate(self, ranks: Sequence[int], quick: bool, passes: int, out: Path) -> None:
        calibrate(out, quick=quick, ranks=ranks, passes=passes, progress=self._progress)

    def declare(self, testbed: Path, base: Path, out: Path, measure_load: bool = False) -> None:
        """``measure_load``: also measure how traffic on links delays small messages and takes processor time."""
        words = ["--measure-load"] if measure_load else []
        call_testbed("profile", str(testbed), "--base", str(base), "--out", str(out), *words)

    def check(self, experiment: Experiment) -> None:
        prepared = prepare(experiment, need_graph=True, profile=_profile_of(experiment))
        check_declared(prepared)
        program = prepared.planned.program
        if decisions_in(program) - set(determined(experiment, program)):
            deciding = deciding_policy(experiment)
            raise ConfigError(
                f"{deciding.slot}.kind: got '{deciding.label}', which decides what to send from values that "
                "only training produces; expected a policy that needs no recorded run, since nothing measured may flow "
                "into a prediction"
            )

    def prepare(self, experiment: Experiment, out: Path) -> Counted:
        check_executor()
        prepared = prepare(experiment, need_graph=True, profile=_profile_of(experiment))
        assert experiment.hardware.profile is not None
        write_run(prepared, load_profile(experiment.hardware.profile), out, self._quiet, force=True)
        return Counted.of(prepared)

    def predict(self, experiment: Experiment, profile: Profile, counted: Path | None = None) -> Predicted:
        chosen = ChosenProfile(profile, profile.meta.name, False)
        prediction = predict(experiment, self._quiet, chosen, counted=counted, limits=False)
        machine = Machine.place(profile, prediction.simulation.program.hosts, experiment.hardware.threads)
        return Predicted(prediction.result, prediction.simulation.program, machine)

    def check_testbed(self) -> None:
        call_testbed("status", fine=(0, 1))  # 1: none is up

    def up(self, testbed: Path) -> None:
        said = []
        # a process of its own takes the testbed down, also when this one is killed
        holder = start_testbed("up", str(testbed), "--hold", *_named(testbed), holds=True)
        assert holder.stdout is not None
        try:
            for line in holder.stdout:
                said.append(line)
                if line.startswith("testbed '"):
                    self._holders[testbed] = holder
                    return
        except BaseException:  # Ctrl-C is answered here: it does not reach the holder
            holder.communicate()
            raise
        check_ended(holder, "".join(said), "up")

    def down(self, testbed: Path) -> None:
        holder = self._holders.pop(testbed)
        said, _ = holder.communicate()
        if holder.returncode:  # it was killed: remove what it left
            call_testbed("down", str(testbed), "--orphaned", *_named(testbed))
            self.tell(f"what held the testbed ended with status {holder.returncode}; it is removed\n{said}".rstrip())

    def run(self, directory: Path, testbed: Path | None) -> Result:
        if testbed is None:
            start_executor(directory, [], lambda line: None)
        else:
            call_testbed("run", str(testbed), str(directory), *_named(testbed))
        return read_result(RunDirectory(directory).result)

    def canary(self) -> float:
        return canary_seconds()


def _named(testbed: Path) -> list[str]:
    """Return the option that names a testbed after its folder, so that a leftover testbed is found again."""
    folder = str(testbed.resolve().parent)
    return ["--name", f"validate-{hashlib.sha256(folder.encode()).hexdigest()[:10]}"]


def _profile_of(experiment: Experiment) -> Profile | None:
    """Return the hardware profile that an experiment names; None: it names none."""
    named = experiment.hardware.profile
    return None if named is None else load_profile(named)
