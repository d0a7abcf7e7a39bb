"""``python -m executor testbed ...``: the command line of the testbed."""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from executor.testbed import lifecycle
from executor.testbed.declaration import Declaration
from executor.testbed.network import require_tools
from executor.testbed.state import recorded_names
from simgnn.errors import ConfigError, HardwareError, SimgnnError
from simgnn.outputs import check_output_file, make_parent
from simgnn.record.logs import check_log

USAGE = """\
python -m executor testbed up TESTBED.toml [--hold]   make its hosts (network namespaces), links and quotas
python -m executor testbed run TESTBED.toml DIR       train what `simgnn run --prepare --out DIR` wrote, inside it
python -m executor testbed exec TESTBED.toml -- CMD   run CMD once a rank, with torchrun's variables (micro-benchmarks)
python -m executor testbed status [TESTBED.toml]      what is up (exit status 1: not up, or not as the file says)
python -m executor testbed profile TESTBED.toml [--base PROFILE] --out FILE [--measure-load]
                                                      hardware profile of what is declared
python -m executor testbed down [TESTBED.toml] [--orphaned]
                                                      remove all that was made, ending what runs in it

A testbed is a real cluster on one Linux machine. TESTBED.toml:

hosts = 2
ranks_per_host = 2
link = "200 Mbit/s"      # of each host, in each direction; none with hosts = 1
burst = "4 KiB"          # bytes that pass at full speed after a pause; default: 0.2 ms of the rate, at least this
queue = "fair"           # in front of a link: connections in turn, as most Linux hosts have it; "fifo": all in one line
slow = { 3 = 0.5 }       # rank 3 has half the processor time that it would have
name = "testbed"         # distinguishes several testbeds of one machine; --name NAME of any command overrides it

`up` replaces one of the same name that another file declared, and says so; `run` and `exec` reject it.
`up --hold` keeps running and takes down what it made when its standard input ends, that is with the process that
started it, however that ends. Until then others may `run` and `exec` in it, but not replace it. If it is killed,
`status` no longer counts what it leaves as up, the next `up` makes it anew, and `down --orphaned` removes only that.
All but `profile` without --measure-load need root and iproute2. `run`, `exec` and --measure-load bring a testbed up
that is not up, and take it down again. --measure-load adds to the profile what is measured inside, in half a minute:
how long a small message waits behind large ones on the link between hosts, and the processor time of a byte across it.
"""

Found = TypeVar("Found")
COMMANDS = ("up", "run", "exec", "status", "down", "profile")


def main(arguments: Sequence[str]) -> int:
    """Run one testbed command; return the exit status."""
    options = _parse(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has the latter ignored
            signal.signal(number, _interrupted)
    try:
        return _carry_out(options)
    except SimgnnError as error:
        return _report([error])
    except KeyboardInterrupt:
        print("executor: interrupted", file=sys.stderr)
        return 130


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m executor testbed", usage=USAGE)
    parsers = parser.add_subparsers(dest="command", required=True)
    commands = {name: parsers.add_parser(name, usage=USAGE) for name in COMMANDS}
    for name, command in commands.items():
        optional = name in ("status", "down")
        command.add_argument("testbed", type=Path, nargs="?" if optional else None, metavar="TESTBED.toml")
        command.add_argument("--name", help="instead of the one in the file")
    commands["up"].add_argument("--hold", action="store_true", help="stay; take it down when standard input ends")
    commands["down"].add_argument("--orphaned", action="store_true", help="only what a killed `up --hold` left")
    commands["run"].add_argument("directory", type=Path, metavar="DIR")
    commands["run"].add_argument("--resume", action="store_true", help="go on from the last checkpoint in DIR")
    commands["run"].add_argument("--log", help="also write event files into DIR/tensorboard: tensorboard")
    commands["exec"].add_argument("words", nargs="+", metavar="CMD")
    commands["status"].add_argument("--json", action="store_true", dest="as_json")
    profile = commands["profile"]
    profile.add_argument("--base", help="calibration of this machine; default: the last one")
    profile.add_argument("--out", type=Path, required=True, help="profile to write")
    load = "measure, inside the testbed, the effect of messages that fill its links (root, half a minute)"
    profile.add_argument("--measure-load", action="store_true", help=load)
    return parser.parse_args(arguments)


def _carry_out(options: argparse.Namespace) -> int:
    if options.name is not None and options.testbed is None:
        raise ConfigError(f"--name: got '{options.name}' without a TESTBED.toml; add the file that it is for")
    declared = None if options.testbed is None else Declaration.load(options.testbed, options.name)
    if options.command == "status":
        return _status(_names(declared), declared, options.as_json)
    if options.command == "down":
        return _down(_names(declared), options.orphaned)
    assert declared is not None
    if options.command == "profile":
        return _profile(declared, options.base, options.out, options.measure_load)
    if options.command == "up":
        return _up(declared, options.hold)
    # NumPy and pyarrow: loaded when a run starts
    from executor.testbed.runs import execute, run

    if options.command == "exec":
        return execute(declared, options.words)
    check_log(options.log)
    passed = [*(["--resume"] if options.resume else []), *(["--log", options.log] if options.log else [])]
    return run(declared, options.directory, ["--device", "cpu", *passed])


def _up(declared: Declaration, holds: bool) -> int:
    def print_result(found: lifecycle.Made) -> None:
        before = " (it was before, and stays)" if holds else " (it was before)"
        lines = [f"testbed '{declared.name}' is up" + ("" if found.made else before)]
        if found.differs:
            lines = [f"{lines[0]}; the one that was up is replaced, it differed:", *(f"  {it}" for it in found.differs)]
        print("\n".join(lines), flush=True)

    if holds:
        lifecycle.hold(declared, print_result)
    else:
        print_result(lifecycle.up(declared))
    return 0


def _down(names: Sequence[str], orphaned: bool) -> int:
    """Take all testbeds down, even after one fails. Prints at the end, since the reader may be gone."""

    def take_down(name: str) -> str | None:
        if orphaned:
            return f"testbed '{name}' is down: what held it had ended" if lifecycle.remove_orphan(name) else None
        return f"testbed '{name}' is down" + ("" if lifecycle.down(name) else " (it was not up)")

    found, faults = _for_each(names, take_down)
    lines = [line for line in found if line is not None]
    if lines:
        print("\n".join(lines))
    return _report(faults)


def _for_each(names: Sequence[str], act: Callable[[str], Found]) -> tuple[list[Found], list[SimgnnError]]:
    found, faults = [], []
    for name in names:
        try:
            found.append(act(name))
        except SimgnnError as error:
            faults.append(error)
    return found, faults


def _report(faults: Sequence[SimgnnError]) -> int:
    for fault in faults:
        print(f"executor: error: {fault}", file=sys.stderr)
    return max((fault.exit_status for fault in faults), default=0)


def _profile(declared: Declaration, base: str | None, out: Path, with_load: bool) -> int:
    # NumPy and pydantic: loaded when a profile is described
    from executor.testbed.profile import WIRE, describe
    from executor.testbed.runs import check_measurable, measure_load
    from simgnn.hardware.profile.library import calibration_path
    from simgnn.hardware.profile.profile import load_profile, save_profile

    check_output_file(out, "--out")
    if with_load:
        check_measurable(declared)
    if base is None and not calibration_path().is_file():
        raise HardwareError("--base: not given, and this machine was never calibrated; run simgnn calibrate first")
    machine = load_profile(base or calibration_path())
    found = describe(declared, machine)
    if with_load:
        found = describe(declared, machine, measure_load(declared, found.links[WIRE].bandwidth.value))
    make_parent(out)
    save_profile(found, out)
    print(f"written to {out}; simulate on it with --hardware {out}")
    return 0


def _names(declared: Declaration | None) -> list[str]:
    """Return the name of the declared testbed; without a declaration, all recorded names."""
    require_tools()
    return recorded_names() if declared is None else [declared.name]


def _status(names: Sequence[str], declared: Declaration | None, as_json: bool) -> int:
    found, faults = _for_each(names, lambda name: lifecycle.status(name, declared))
    if as_json:
        print(json.dumps(found, indent=2))
    elif not found and not faults:
        print("no testbed is up")
    else:
        for entry in found:
            print("\n".join(_lines(entry)))
    if faults:
        return _report(faults)
    return 0 if found and all(entry["up"] and not entry["differs"] for entry in found) else 1


def _lines(entry: Mapping[str, Any]) -> list[str]:
    state = "up" if entry["up"] else "not up"
    lines = [f"testbed '{entry['name']}': {state}{', in use' if entry.get('in_use') else ''}"]
    lines += [f"  fault: {fault}" for fault in entry["faults"]]
    if entry["faults"]:
        lines.append("  remove what is left with: python -m executor testbed down")
    lines += [f"  not as this file declares it: {difference}" for difference in entry["differs"]]
    declared = entry.get("declared", {})
    for host in entry["hosts"]:
        link = ""
        if host["address"]:
            link = f", {host['address']}, {declared['link']}, burst {declared['burst']}, {declared['queue']} queue"
        lines.append(f"  host {host['number']}: {host['namespace']}, cores {','.join(map(str, host['cores']))}{link}")
        for rank in entry["ranks"]:
            if rank["host"] == host["number"]:
                quota = rank["quota_cores"]
                limit = "" if quota is None else f", {rank['share']:.0%} of full speed: {quota:g} cores"
                lines.append(f"    rank {rank['rank']}{limit}")
        if host["processes"]:
            lines.append(f"    processes {', '.join(map(str, host['processes']))}")
    return lines


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt
