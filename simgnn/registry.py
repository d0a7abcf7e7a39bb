"""Finds the class of a policy by its ``kind``, and reports what a user's own policy raises.

A shipped policy is a file in the folder of its slot. Others are named ``package.module:Class``, or by an entry point
``SLOT.KIND`` of the group ``simgnn.policies``. Only :func:`policy_class` imports code that an experiment names;
whoever reads a run directory or a statistics file uses :func:`shipped`, which never does.
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
    """The shipped choices of a slot, by kind in alphabetical order."""
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
    """Kinds of a slot that an experiment may name, those of installed packages included."""
    prefix = f"{slot}."
    installed = {name.removeprefix(prefix) for name in entry_points(group=GROUP).names if name.startswith(prefix)}
    return [*shipped(slot), *sorted(installed - shipped(slot).keys())]


def is_kind(slot: str, kind: object) -> bool:
    """Whether ``kind`` may name a policy of a slot; a user's own code is not imported to find out."""
    return isinstance(kind, str) and (kind in shipped(slot) or ":" in kind or kind in available(slot))


def policy_class(slot: str, kind: object) -> type[Policy]:
    """The class of a policy. Imports its module, so ``kind`` must come from what a user asked to run.

    Raises :class:`ConfigError`, without the file and the key, for a kind that names no module or no class, a module
    that cannot be imported, and a class that is no policy of the slot.
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
    """Whether a policy is the user's own, not a shipped one."""
    return policy.label not in shipped(policy.slot)


def source_digest(policy: Policy) -> str:
    """SHA-256 of the file that a user's own policy is written in; "" for a shipped one."""
    if not is_external(policy):
        return ""
    return hashlib.sha256(Path(inspect.getfile(type(policy))).read_bytes()).hexdigest()


def folder_of(policy: Policy) -> str:
    """The folder on the import path that a policy's class was found in, for other processes to find it too."""
    module = sys.modules[type(policy).__module__]
    return str(Path(inspect.getfile(module)).resolve().parents[module.__name__.count(".")])


def add_to_path(folder: str) -> None:
    """Search a folder for modules after all others, so that it hides none of them."""
    if folder not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()


def _imported(kind: str, module: str, name: str) -> Any:
    """The class ``name`` of a user's ``module``."""
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
    classes = [key for key, value in vars(loaded).items() if inspect.isclass(value)]
    what = "has no class" if found is None else "holds no class under the name"
    raise ConfigError(f"got '{kind}', but {loaded.__file__} {what} '{name}'{nearest(name, classes)}")


def _summary(error: BaseException) -> str:
    """The kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _checked(slot: str, kind: str, found: Any) -> type[Policy]:
    if not issubclass(found, SLOTS[slot]):
        of = getattr(found, "slot", None) if issubclass(found, Policy) else None
        other = "no policy" if of is None else f"a policy of slot {of}"
        raise ConfigError(
            f"got '{kind}', which is {other}, expected one of slot {slot}: derive it from the base of the slot "
            "(simgnn.policy, simgnn.emit)"
        )
    policy: type[Policy] = found
    if inspect.isabstract(policy):
        missing = ", ".join(sorted(policy.__abstractmethods__))
        raise ConfigError(f"got '{kind}', a class that lacks what every {slot} defines: {missing}")
    if policy.model_fields["kind"].annotation is not str:
        raise ConfigError(
            f"got '{kind}', a class whose field 'kind' names another policy; write kind: str = \"\" in the class"
        )
    return policy


@contextmanager
def reported(policies: Iterable[Policy]) -> Iterator[None]:
    """Turn errors that a user's own policies raise inside the block into :class:`ConfigError`, which names the file,
    the class and the method."""
    try:
        yield
    except SimgnnError:
        raise
    except Exception as error:
        sentence = blamed(policies, error)
        if sentence is None:
            raise
        raise ConfigError(sentence) from error


def blamed(policies: Iterable[Policy], error: BaseException) -> str | None:
    """A sentence on which of the user's policies raised an error, and where; None if none of their files took part."""
    files = {inspect.getfile(sys.modules[type(one).__module__]): one for one in policies if is_external(one)}
    steps = [step for step in traceback.walk_tb(error.__traceback__) if step[0].f_code.co_filename in files]
    if not steps:  # the simulator's event loop raises a copy of what an event raised
        return None if error.__cause__ is None else blamed(files.values(), error.__cause__)
    frame, line = steps[-1]
    code, policy = frame.f_code, files[frame.f_code.co_filename]
    where = f"({code.co_filename}:{line})"
    return f"{policy.slot}.kind = '{policy.label}': {code.co_qualname} raised {_summary(error)} {where}"
