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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

from simgnn.errors import ConfigError, SimgnnError
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
    """Return the SHA-256 of the file that defines a user's policy; "" for a shipped policy."""
    return hashlib.sha256(Path(inspect.getfile(type(policy))).read_bytes()).hexdigest() if is_external(policy) else ""


def folder_of(policy: Policy) -> str:
    """Return the folder on the import path that holds a policy's package, so that other processes can import it."""
    module = sys.modules[type(policy).__module__]
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
        raise ConfigError(f"got '{kind}', but importing '{module}' raised {_summary(error)}") from error
    found = getattr(loaded, name, None)
    if inspect.isclass(found):
        return found
    near = nearest(name, [key for key, value in vars(loaded).items() if inspect.isclass(value)])
    what = "has no class" if found is None else "holds no class under the name"
    raise ConfigError(f"got '{kind}', but {getattr(loaded, '__file__', module)} {what} '{name}'{near}")


def _summary(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _checked(slot: str, kind: str, found: Any) -> type[Policy]:
    if not issubclass(found, SLOTS[slot]):
        of = getattr(found, "slot", None) if issubclass(found, Policy) else None
        other = "no policy" if of is None else f"a policy of slot {of}"
        raise ConfigError(
            f"got '{kind}', which is {other}, expected a policy of slot {slot}: derive it from the slot's base class "
            "(simgnn.policy, simgnn.emit)"
        )
    policy: type[Policy] = found
    if policy.__init__ is not Policy.__init__:
        raise ConfigError(f"got '{kind}', a class with an __init__; declare its options as fields of the class")
    if inspect.isabstract(policy):
        missing = ", ".join(sorted(policy.__abstractmethods__))
        raise ConfigError(f"got '{kind}', a class without what every {slot} policy must define: {missing}")
    if policy.model_fields["kind"].annotation is not str:
        raise ConfigError(
            f"got '{kind}', a class whose field 'kind' names another policy; write kind: str = \"\" in the class"
        )
    return policy


@contextmanager
def reported(policies: Iterable[Policy]) -> Iterator[None]:
    """Turn errors of users' policies inside the block into :class:`ConfigError`, which names file, class and method."""
    try:
        yield
    except SimgnnError:
        raise
    except Exception as error:
        own = [one for one in policies if is_external(one)]
        sentence = blamed(own, error)
        if sentence is None and own and isinstance(error, TypeError | AttributeError):
            sentence = (
                f"{own[0].slot}.kind = '{own[0].label}': {_summary(error)}. A method probably returned a value of "
                f"another type than its base class states ({', '.join(inspect.getfile(type(one)) for one in own)})"
            )
        if sentence is None:
            raise
        raise ConfigError(sentence) from error


def blamed(policies: Iterable[Policy], error: BaseException) -> str | None:
    """Describe which user's policy raised an error, and where; None if no user's file is in the traceback."""
    files = {inspect.getfile(sys.modules[type(one).__module__]): one for one in policies if is_external(one)}
    steps = [step for step in traceback.walk_tb(error.__traceback__) if step[0].f_code.co_filename in files]
    if not steps:  # the simulator's event loop raises a copy of what an event raised
        return None if error.__cause__ is None else blamed(files.values(), error.__cause__)
    frame, line = steps[-1]
    code, policy = frame.f_code, files[frame.f_code.co_filename]
    where = f"({code.co_filename}:{line})"
    return f"{policy.slot}.kind = '{policy.label}': {code.co_qualname} raised {_summary(error)} {where}"
