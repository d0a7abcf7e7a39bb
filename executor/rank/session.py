"""One rank of a run: load its data, run the program epoch by epoch, evaluate, save checkpoints, report."""

import json
import os
import shutil
import sys
import time
import traceback
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from executor.energy.meter import EnergyMeter, energy_file, gauges_of, write_series
from executor.memory.allocator import tune_allocator
from executor.memory.peak import NotedMemory, PeakMemory, check_budget
from executor.rank.assemble import rank_context, warm_up_for
from executor.rank.interpreter import SPAN, Interpreter
from executor.rank.lanes import Workers
from executor.rank.model_inputs import model_facts, tensors_beside
from executor.recording.disk import StorageError, check_run_directory, writing
from executor.recording.epoch_log import EpochLog
from executor.recording.failure import explained, failure_of, write_failure
from executor.recording.metrics import History, observers
from executor.recording.report import FIRST, LAST, TOLD, write_counts, write_report
from executor.recording.side_records import Notes
from executor.recording.sinks import sinks_of
from executor.recording.trace import Recorder, put_aside, warm_up_writer
from executor.recording.trained_model import TrainedModel
from executor.state.buffers import Now
from executor.state.checkpoint import find_checkpoint, load_checkpoint, save_checkpoint
from executor.state.context import Apart
from executor.state.learning_rate import LearningRates
from executor.state.plan import RunPlan
from executor.world.environment import LAUNCHER, NO_STORAGE, TESTBED, threads_per_rank
from executor.world.machines import one_machine_notes
from executor.world.member import join, process_groups, wake_groups
from simgnn.errors import SimgnnError
from simgnn.program.dispatch import Picks
from simgnn.program.drain_points import Stops
from simgnn.record.early_stop import Patience, regular
from simgnn.record.logs import check_log
from simgnn.record.memory import over_budget, result_fields
from simgnn.record.result import EarlyStop
from simgnn.record.rundir import RunDirectory
from simgnn.record.summary import payload_epochs

PROGRESS_S = 1.0
FILLED_LATE = (
    "the caches of epoch {} were filled when the run was resumed for more epochs: bytes and counts of rows hold that, "
    "the trace does not"
)


def run_rank(root: Path, device: str = "auto", resume: bool = False, log: str | None = None) -> int:
    """Run the rank that the process's environment names, and return the exit status."""
    rank = int(os.environ["RANK"])
    session: Session | None = None
    try:
        plan = RunPlan.open(root)
        plan.check_unfinished()
        if resume and TESTBED not in os.environ:
            RunDirectory(root).check_outside_testbeds()
        check_log(log)
        session = Session(plan, device, resume, log=log)
        session.run()
        return 0
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # code of a user may exit
        error = explained(root, failure_of(f"rank {rank}", raised), launched=LAUNCHER in os.environ)
        if not isinstance(error, SimgnnError):  # a bug of ours: the place matters
            traceback.print_exc()
        if RunDirectory(root).plan.is_dir():
            write_failure(root / "trace", rank, error)
        if LAUNCHER not in os.environ:  # else the launcher reports it
            print(f"executor: error on rank {rank}: {error}", file=sys.stderr, flush=True)
        if session is not None:
            session.abandon(error)
        if isinstance(error, StorageError):
            return NO_STORAGE
        return error.exit_status if isinstance(error, SimgnnError) else 1


class Session:
    """Everything that one rank holds during a run. ``schedule`` None: use the plan's schedule. ``span``: number
    of training steps after which records are written to files. ``log``: what is written beside ``losses.csv``."""

    def __init__(
        self,
        plan: RunPlan,
        device: str,
        resume: bool,
        schedule: Picks | None = None,
        span: int = SPAN,
        log: str | None = None,
    ) -> None:
        self.plan, self.span = plan, span
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", plan.ranks))
        torch.set_num_threads(threads_per_rank(plan.threads_per_rank, ranks_here))
        self.allocator = tune_allocator()
        self.world = join(plan.ranks, device, plan.timeout)
        # the idle process has program, groups, threads and code; graph and rows are mapped files until they are copied
        groups = process_groups(plan.program, self.world, plan.timeout)
        self.energy = EnergyMeter(gauges_of(self.world))
        make_context = rank_context(plan, self.world, groups)
        warm_up_for(plan, self.world.device)
        warm_up_writer()
        wake_groups(groups)
        sinks = sinks_of(RunDirectory(plan.root), plan.multilabel, log) if self.world.rank == 0 else []
        # the main thread runs one of the streams
        self._workers = Workers(max(0, sum(stream.servers for stream in plan.program.streams.values()) - 1))
        self.memory = PeakMemory.begin(
            self.world.device, self.allocator, len(self.world.here),
            first=plan.program.hosts.index(plan.program.hosts[self.world.rank]) == self.world.rank,
        )  # fmt: skip
        self.start = 0
        if resume:
            self.start = find_checkpoint(plan.checkpoints, plan.ranks, plan.digest, plan.continues)
        self.history = History()
        self.rates = LearningRates(plan.train, self.history.loss_of, self._validation_of)
        self.model: TrainedModel | None = None
        self.context = make_context()
        counted = payload_epochs(plan.epochs, plan.program.calendar)
        last = range(counted.stop, plan.epochs)
        self.context.apart = {FIRST: Apart(range(1)), TOLD: Apart(counted), LAST: Apart(last)}
        # a user's layers may draw from torch's generator: differently on each rank, alike in every run
        torch.manual_seed(seed_of(plan.seed, self.world.rank))
        self.context.rate_of = self.rates.of
        planned, self._filled_late = None, list[int]()
        if resume:
            state = load_checkpoint(plan.checkpoints, self.start, self.context)
            self.history.load(state["history"])
            self.rates.load_state_dict(state["rates"])
            planned, self._filled_late = state["planned"], state["filled_late"]
            if plan.epochs > self.start:
                self._count_more_epochs()
        self.recorder = self._recorder(resume)
        self.notes = Notes(plan, self.context, self.start, resume)
        observed, self._noted = observers(plan.program, self._trained, self.history.observe_evaluation)
        self.interpreter = Interpreter(
            plan.program, self.context, self.recorder, observed, schedule or plan.schedule, self._workers
        )
        if self.context.network is not None:
            layers, writes = self.context.network.layers, self.world.rank == 0
            beside = tensors_beside(plan, self.world, self.context.written())
            self.model = TrainedModel(plan.root, plan.layers, layers, beside, writes)
            self.model.resumed(self.history.accuracy())
        self.log: EpochLog | None = None
        if self.world.rank == 0:
            self.log = EpochLog(self.history, self.rates.of, sinks)
            self.log.begin(self.start)
        self._progress_s, self._told, self._stop = 0.0, self.start, self.start
        self._evaluated, self._ended = False, self.start
        if plan.batches is not None and planned == self.start < plan.epochs:
            self._fill_caches()

    def _count_more_epochs(self) -> None:
        """In a finished run that trains more epochs, count the payload of its last epoch with those in the middle."""
        middle, last = self.context.apart[TOLD].pairs, self.context.apart[LAST].pairs
        if self.start == 1:  # the only epoch stood for all
            middle.clear()
        for key, (messages, nbytes) in last.items():
            before = middle.setdefault(key, [0, 0])
            before[0], before[1] = before[0] + messages, before[1] + nbytes
        last.clear()

    def _fill_caches(self) -> None:
        """Fill the caches of the next epoch. In the epoch before, the last one that was planned then, nobody did."""
        if self.interpreter.fill_next_epoch(self.start - 1):
            self._filled_late.append(self.start + 1)

    def run(self) -> None:
        plan, world, train = self.plan, self.world, self.plan.train
        every = int(train["eval_every"]) if plan.program.sweep else 0
        keep = int(train["checkpoint_every"])
        self.memory.start()
        self._measure()
        self.energy.start()
        world.barrier()
        self.recorder.start(world.broadcast(time.perf_counter()) + world.clock_offset_s)
        self.history.begin()
        patience = Patience(int(train["patience"]), every)
        ended, done = None, self.start
        if self.start < plan.epochs:  # a run that ended early may lack its result only
            ended = patience.over(self.history.accuracy())
        for epochs in Stops(plan.epochs, every, keep, self.start).spans() if ended is None else ():
            self._stop = epochs.stop
            self.interpreter.train(epochs, self._write_down, self.span)
            self.history.settle()
            done = epochs[-1] + 1
            if done == self.start + 1:
                self._measured()
            if done == plan.epochs or (every and done % every == 0):
                self._evaluate(done - 1)
            ended = patience.over(self.history.accuracy()) if done < plan.epochs else None
            saving = bool(keep) and done % keep == 0 and done < plan.epochs and ended is None
            # a run resumed from the checkpoint finds the times of these epochs in this trace alone
            self._write_down(force=saving)
            if saving:
                self._checkpoint(done)
            self._ended = done
            self._progress(done, last=ended is not None)
            if ended is not None:
                break
        self._finish(done, ended)

    def _validation_of(self, epoch: int) -> float | None:
        """The validation accuracy after an epoch, from 0, if it is one of those that are evaluated regularly."""
        found = self.history.accuracy_of(epoch)
        known = regular([] if found is None else [found], int(self.plan.train["eval_every"]))
        return known[0].validation if known else None

    def _checkpoint(self, done: int) -> None:
        plan = self.plan
        check_run_directory(plan.root)
        progress = {
            "history": self.history.state(), "rates": self.rates.state_dict(done), "planned": plan.epochs,
            "filled_late": self._filled_late,
        }  # fmt: skip
        save_checkpoint(plan.checkpoints, done, plan.digest, self.context, progress, self.world.barrier)

    def _write_down(self, force: bool = False) -> None:
        """Write records to their files; streams in other threads may continue meanwhile."""
        check_run_directory(self.plan.root)
        self.recorder.flush(force)
        self.notes.flush(force)

    def _evaluate(self, epoch: int) -> None:
        assert self.context.network is not None
        measures = not self._evaluated and bool(self.plan.program.sweep) and self.memory.start_again()
        if measures:
            self._measure()
        self.context.network.set_training(False)
        self.interpreter.evaluate(epoch)
        self.context.network.set_training(True)
        if measures:
            self._measured()
        self._evaluated = True
        if self.model is not None:
            self.model.evaluated(self.history.accuracy())

    def _measure(self) -> None:
        """Measure memory after each op, as long as the memory recorder measures."""
        if self.memory.measures:
            self.interpreter.note_in(NotedMemory(self.recorder, self.memory, self._within_budget))

    def _within_budget(self, now: Now, op_id: int) -> None:
        where = f"rank {self.world.rank}, epoch {now.epoch + 1}, op '{self.plan.program.ops[op_id][1].name}'"
        check_budget(self.memory, self.plan.device_bytes, where)

    def _measured(self) -> None:
        check_budget(self.memory, self.plan.device_bytes, f"rank {self.world.rank}, first epoch or evaluation")
        self.interpreter.note_in(self.recorder)
        self.memory.reset()
        self.world.barrier()  # else the first rank's next epoch would wait for memory pages of the last rank

    def _trained(self, now: Now, metrics: torch.Tensor) -> None:
        """Record a step's metrics, and print each finished epoch, but not the last one before the driver stops for an
        evaluation or a checkpoint: that epoch is printed after the stop."""
        self.history.observe(now, metrics)
        # on a GPU metrics may arrive later
        done = len(self.history.losses) if len(self._noted) == 1 else now.epoch + 1
        if now.step == self._noted[-1] and done < self._stop and done - 1 in self.history.losses:
            self._progress(done)

    def abandon(self, cause: BaseException) -> None:
        """Save the trace of a run that failed, unless the ``cause`` is that nothing can be saved."""
        self.energy.stop()
        if isinstance(cause, StorageError):
            return
        try:
            self.recorder.flush()
            self.notes.flush()
            if self.log is not None:
                self.log.write(self._ended)
        except (RuntimeError, StorageError) as error:  # a broken device or a full disk: the cause has been reported
            print(f"executor: rank {self.world.rank}: the rest of the trace is lost ({error})", file=sys.stderr)

    def _recorder(self, resume: bool) -> Recorder:
        folder, rank = self.plan.trace, self.world.rank
        with writing(folder):
            folder.mkdir(exist_ok=True)
        path = folder / f"rank-{rank}.arrow"
        if resume:
            put_aside(path)
        else:
            # files of an earlier run in this folder must not be taken for a part of this one
            kinds = "part-*.arrow", "activity*.arrow", "losses*.arrow", "taken*.arrow", "traffic.json", "energy.npz"
            for old in [old for kind in kinds for old in folder.glob(f"rank-{rank}.{kind}")]:
                old.unlink()
            if rank == 0:
                run = RunDirectory(self.plan.root)
                for folder in (self.plan.checkpoints, run.model, run.tensorboard):
                    shutil.rmtree(folder, ignore_errors=True)
                if TESTBED not in os.environ:
                    run.testbed.unlink(missing_ok=True)
        if rank == 0:
            RunDirectory(self.plan.root).result.unlink(missing_ok=True)
        return Recorder(path, rank, self.world.device, self.start)

    def _progress(self, done: int, last: bool = False) -> None:
        now, last = time.monotonic(), last or done == self.plan.epochs
        if self.log is None or done == self._told or (now - self._progress_s < PROGRESS_S and not last):
            return
        self.log.write(done)
        self._progress_s, self._told = now, done
        text = f"epoch {done}/{self.plan.epochs}: loss {self.history.losses[done - 1]:.4f}"
        evaluated = self.history.accuracy()
        if evaluated and evaluated[-1].validation is not None:
            metric = "validation micro-F1" if self.plan.multilabel else "validation"
            text += f", {metric} {evaluated[-1].validation:.4f}"
        print(text, flush=True)

    def _finish(self, done: int, ended: EarlyStop | None) -> None:
        """Write checkpoint, model and records after ``done`` epochs; ``ended``: why there were not more."""
        plan, world = self.plan, self.world
        memory = self.memory
        held = (
            memory.peak_bytes(), memory.device_bytes(), memory.shared_bytes(), memory.resident_bytes(), memory.baseline,
            memory.capacity_bytes(),
        )  # fmt: skip
        self.memory.close()
        # a run that is ended after the checkpoint finds the times of its last epochs in this trace alone
        self._write_down(force=True)
        # after the peak was read: the copies that it makes are no part of training
        self._checkpoint(done)
        if self.model is not None:
            self.model.finish(done, model_facts(plan))
        if self.log is not None:
            self.log.close()
        self.interpreter.close()
        self._workers.close()
        self.recorder.close()
        self.notes.close()
        gathered = zip(*world.gather([float(number) for number in held]), strict=True)
        self.energy.stop()  # no rank trains any more, no device computes
        names = (
            "peak_memory_bytes", "device_memory_bytes", "shared_memory_bytes", "resident_memory_bytes",
            "idle_memory_bytes", "capacity_bytes",
        )  # fmt: skip
        numbers = {name: [int(number) for number in ranks] for name, ranks in zip(names, gathered, strict=True)}
        fields = result_fields(numbers, plan.program.hosts, world.device.type == "cuda", plan.device_bytes)
        apart = {name: apart.pairs for name, apart in self.context.apart.items()}
        lost = f"the run was resumed: energy of its first {self.start} epochs was not kept" if self.start else ""
        with writing(plan.trace):
            write_counts(plan.trace, world.rank, {"total": self.context.pairs, **apart})
            write_series(energy_file(plan.trace, world.rank), self.energy.series(self.recorder.zero, lost))
        world.barrier()
        for source, near in enumerate(world.near):
            if not near and world.rank in (0, source):
                files = [plan.trace / f"rank-{source}.{kind}" for kind in ("arrow", "traffic.json")]
                files += [energy_file(plan.trace, source), *self.notes.files(source)]
                for path in files:
                    world.fetch_file(path, source)
        if world.rank == 0:
            notes = one_machine_notes(plan.program.hosts, world.hosts)
            notes += over_budget(plan.device_bytes, numbers["device_memory_bytes"])
            notes += [FILLED_LATE.format(epoch) for epoch in self._filled_late]
            with writing(plan.root):
                write_report(
                    plan, "ok", history=self.history, memory=fields, facts=self._facts(), notes=notes, ended=ended
                )
        world.barrier()

    def _facts(self) -> dict[str, Any]:
        return {
            "backend": self.world.backend,
            "device": str(self.world.device.type),
            "threads_per_rank": torch.get_num_threads(),
            "allocator": self.allocator.provenance(),
            "peak_memory": self.memory.peak_method(),
            "resident_memory": self.memory.method,
            "driver": "one thread" if self.interpreter.serial else "one thread a stream",
            "started_at_epoch": self.start,
            "hosts_found": len(set(self.world.hosts)),
            **({"testbed": json.loads(os.environ[TESTBED])["declared"]} if TESTBED in os.environ else {}),
        }


def seed_of(seed: int, rank: int) -> int:
    """Return the seed of a rank's own random draws: 63 bits of a hash, so that no two runs or ranks share a stream."""
    return int.from_bytes(sha256(f"{seed}/{rank}".encode()).digest()[:8], "big") >> 1


def end_process(status: int) -> None:
    """Exit at once, since threads inside a collective with a lost rank would keep the process alive."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
