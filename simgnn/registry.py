"""Finds the class of a policy by its ``kind``, and reports errors of users' own policies.

A shipped policy is a file in the folder of its slot. A user's policy is named ``package.module:Class``, or by an entry
point ``SLOT.KIND`` of the group ``simgnn.policies``. Only :func:`policy_class` imports code that an experiment names.
Code that reads run directories or statistics files calls :func:`shipped`, which imports none.
"""

import hashlib
import importlib
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

from simgnn.errors import ConfigError, PolicyError, ProgramError, SimgnnError
from simgnn.outside import fault_of_import, summary_of
from simgnn.policy import SLOTS, Policy
from simgnn.spelling import nearest

GROUP = "simgnn.policies"
"""Group of the entry points that add policies."""
PARTITIONERS = "simgnn.partition.partitioners"


@cache
def shipped(slot: str) -> Mapping[str, type[Policy]]:
    """Return the shipped policies of a slot by kind, in alphabetical order."""
    package = importlib.import_module(PARTITIONERS if slot == "partition" else f"simgnn.policies.{slot}")
    found: dict[str, type[Policy]] = {}
    for module in pkgutil.iter_modules(package.__path__):
        loaded = importlib.import_module(f"{package.__name__}.{module.name}")
        for member in vars(loaded).values():
            if inspect.isclass(member) and issubclass(member, Policy) and member.__module__ == loaded.__name__:
                kind = member.model_fields["kind"].default
                if kind:
                    found[kind] = member
    return MappingProxyType(dict(sorted(found.items())))


def available(slot: str) -> list[str]:
    """List the kinds that an experiment may name for a slot, including those of installed packages."""
    prefix = f"{slot}."
    installed = {name.removeprefix(prefix) for name in entry_points(group=GROUP).names if name.startswith(prefix)}
    return [*shipped(slot), *sorted(installed - shipped(slot).keys())]


def is_kind(slot: str, kind: object) -> bool:
    """Return whether ``kind`` can name a policy of a slot, without importing users' code."""
    return isinstance(kind, str) and (kind in shipped(slot) or ":" in kind or kind in available(slot))


def policy_class(slot: str, kind: object) -> type[Policy]:
    """Import and return the class of a policy. ``kind`` must come from what a user asked to run.

    Raises :class:`ConfigError` for a kind without a module or class, a module that cannot be imported, and a class that
    is no policy of the slot. The caller adds file and key to the message.
    """
    if isinstance(kind, str) and kind in shipped(slot):
        return shipped(slot)[kind]
    if isinstance(kind, str):
        for entry in entry_points(group=GROUP, name=f"{slot}.{kind}"):
            return _checked(slot, kind, _imported(kind, entry.module, entry.attr))
        module, colon, name = kind.partition(":")
        if colon and all(part.isidentifier() for part in (*module.split("."), name)):
            return _checked(slot, kind, _imported(kind, module, name))
    known = available(slot)
    hint = nearest(kind, known) if isinstance(kind, str) else ""
    raise ConfigError(
        f"got {kind!r}, expected one of {', '.join(known)}, or a class of your own as package.module:Class{hint}"
    )


def is_external(policy: Policy) -> bool:
    """Return whether a policy is defined by a user, not shipped."""
    return policy.label not in shipped(policy.slot)


def source_digest(policy: Policy) -> str:
    """Return the SHA-256 of a user's policy's file and of loaded modules in its folder; "" for a shipped policy."""
    if not is_external(policy):
        return ""
    folder, loaded = Path(file_of(type(policy))).parent, [*sys.modules.values()]
    files = sorted({getattr(module, "__file__", None) or "" for module in loaded})
    return hashlib.sha256(b"".join(Path(at).read_bytes() for at in files if Path(at).parent == folder)).hexdigest()


def folder_of(owner: type[Any]) -> str:
    """Return the folder on the import path that holds a class's package, so that other processes can import it."""
    module = sys.modules[owner.__module__]
    return str(Path(inspect.getfile(module)).resolve().parents[module.__name__.count(".")])


def add_to_path(folder: str) -> None:
    """Append a folder to the module search path, so that it hides no other module."""
    if folder not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()


def _imported(kind: str, module: str, name: str) -> Any:
    """Import a user's ``module`` and return its class ``name``."""
    try:
        loaded = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's module raises
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            raise ConfigError(
                f"got '{kind}', but there is no module '{missing}'; put it beside the experiment file, or its folder "
                "on PYTHONPATH"
            ) from error
        raise ConfigError(f"got '{kind}', but importing '{module}' raised {fault_of_import(error)}") from error
    found = getattr(loaded, name, None)
    if inspect.isclass(found):
        return found
    near = nearest(name, [key for key, value in vars(loaded).items() if inspect.isclass(value)])
    what = "has no class" if found is None else "holds no class under the name"
    raise ConfigError(f"got '{kind}', but {getattr(loaded, '__file__', module)} {what} '{name}'{near}")


def file_of(found: type[Any]) -> str:
    """Return the file that defines a class, for messages."""
    return getattr(sys.modules[found.__module__], "__file__", None) or found.__module__


def _checked(slot: str, kind: str, found: Any) -> type[Policy]:
    """Return a user's class. Raises :class:`ConfigError` for what keeps it from being a policy of the slot."""
    fault = ""
    if not issubclass(found, SLOTS[slot]):
        of = getattr(found, "slot", None) if issubclass(found, Policy) else None
        fault = (
            f"which is {'no policy' if of is None else f'a policy of slot {of}'}, expected a policy of slot {slot}: "
            "derive it from the slot's base class (simgnn.policy, simgnn.emit)"
        )
    elif found.__init__ is not Policy.__init__:
        fault = "a class with an __init__; declare its options as fields of the class"
    elif found.label is not Policy.label:
        fault = "a class with a label of its own; the label of a policy is its kind"
    elif inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        fault = f"a class without what every {slot} policy must define: {missing}"
    elif found.model_fields["kind"].annotation is not str:
        fault = "a class whose field 'kind' names another policy; write kind: str = \"\" in the class"
    if fault:
        raise ConfigError(f"got '{kind}', {fault} ({file_of(found)})")
    policy: type[Policy] = found
    return policy


class _BlamedError(ConfigError):
    """Raised by :func:`reported`, so that blocks around it do not report the error once more."""


@contextmanager
def reported(policies: Iterable[Policy | tuple[type[Policy], str]]) -> Iterator[None]:
    """Turn errors of users' policies inside the block into :class:`ConfigError` with the policy's kind, class and file.

    ``policies``: those in use, or class and kind of one that is not made yet. An error is theirs if it passed through
    their file, if the program is not valid, or if simgnn itself fails in a way that no other input explains."""
    try:
        yield
    except _BlamedError:
        raise
    except (Exception, SystemExit) as error:
        pairs = [one if isinstance(one, tuple) else (type(one), one.kind) for one in policies]
        own = {found: f"{found.slot}.kind = '{kind}'" for found, kind in pairs if kind not in shipped(found.slot)}
        problems = _blamed(own, error) if own else ()
        if not problems:
            raise
        raise _BlamedError(problems) from error


def _blamed(own: Mapping[type[Policy], str], error: BaseException) -> Sequence[str]:
    """Describe an error of users' policies (class -> key and kind); empty if the error is none of theirs."""
    for kind, method, where in _calls(own, error):
        if isinstance(error, SimgnnError):
            return [f"{problem} ({method}, {where})" for problem in error.problems]
        return [f"{kind}: {method} raised {summary_of(error)} ({where})"]
    if isinstance(error, PolicyError):
        return error.problems
    if isinstance(error, ProgramError):
        fault = error.problems[0] + (f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else "")
    elif isinstance(error, SimgnnError | OSError | ImportError | MemoryError | SystemExit):
        return ()
    else:
        fault = f"{summary_of(error)}; a method probably returned another value than its base class states"
    classes = ", ".join(f"{found.__qualname__} in {file_of(found)}" for found in own)
    return [f"{' with '.join(own.values())}: {fault} ({classes})"]


def _calls(own: Mapping[type[Policy], str], error: BaseException) -> Iterator[tuple[str, str, str]]:
    """Yield the calls of users' code that an error passed through, innermost first: kind, method, file and line."""
    bases = {base: kind for found, kind in own.items() for base in found.__mro__ if issubclass(base, Policy)}
    files = {file_of(base): kind for base, kind in bases.items() if not base.__module__.startswith("simgnn.")}
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        code = frame.f_code
        if code.co_filename in files:
            yield files[code.co_filename], code.co_qualname, f"{code.co_filename}:{line}"
    if error.__cause__ is not None:  # the simulator's event loop raises a copy of what an event raised
        yield from _calls(own, error.__cause__)
