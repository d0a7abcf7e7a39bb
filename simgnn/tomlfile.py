"""Loads TOML files with precise errors, resolves ``extends``, overrides keys, and writes files atomically."""

import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from simgnn.errors import ConfigError
from simgnn.outside import check_regular, expanded, followed, reason_of
from simgnn.spelling import nearest

Table = dict[str, Any]

MOST_BYTES = 16 * 2**20
MOST_DEPTH, MOST_DIGITS = 64, 100
"""Bounds of what a TOML file may hold. Larger numbers have no meaning, but are first compared with what is expected."""
_KEY = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')"""
_DEEP_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_KEY}(?:[ \t]*+\.[ \t]*+{_KEY}){{{MOST_DEPTH}}}")


@dataclass(frozen=True)
class Layer:
    """One table of settings. ``label`` names the table in messages; relative paths in it start at ``folder``."""

    label: str
    folder: Path
    table: Table


def load_toml(path: Path) -> Table:
    """Load a TOML file. Raises :class:`ConfigError` that names the file and, for a syntax error, the line."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; expected a TOML file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    check_regular(path, ConfigError)
    if size > MOST_BYTES:
        raise ConfigError(f"{path}: has {size:,} bytes, expected a TOML file of at most {MOST_BYTES:,}")
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start}); expected a TOML file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return parse_toml(text, str(path))


def parse_toml(text: str, label: str) -> Table:
    """Parse TOML text. Raises :class:`ConfigError`, which begins with ``label``, for wrong syntax, tables and lists
    nested deeper than ``MOST_DEPTH``, whole numbers longer than ``MOST_DIGITS``, and text that holds a zero byte."""
    try:
        if _DEEP_KEY.search(text):  # which tomllib would take minutes for
            raise RecursionError
        table = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"{label}: not valid TOML: nested too deep; expected at most {MOST_DEPTH} levels") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{label}: not valid TOML: {reason_of(error)}") from None
    except ValueError:  # Python converts only so many digits
        raise ConfigError(f"{label}: a number is too long; expected at most {MOST_DIGITS} digits") from None
    _check_values(table, label)
    return table


def _check_values(table: Table, label: str) -> None:
    """Check nested values without recursion, for these may be nested deeper than functions can call one another."""
    waiting: list[tuple[Any, str, int]] = [(table, "", 0)]
    while waiting:
        value, key, depth = waiting.pop()
        if depth > MOST_DEPTH:
            raise ConfigError(f"{label}: {key:.60}: nested too deep; expected at most {MOST_DEPTH} levels")
        if isinstance(value, Mapping):
            for name, entry in value.items():
                # a key is shown as far as one could read it
                waiting.append((entry, f"{key}.{name:.60}".lstrip("."), depth + 1))
                if "\0" in name:
                    raise ConfigError(f"{label}: {key or 'a key'}: got a name with a zero byte, expected text without")
        elif isinstance(value, list):
            waiting += [(entry, key, depth + 1) for entry in value]
        elif isinstance(value, str) and "\0" in value:
            raise ConfigError(f"{label}: {key}: got {value[:60]!r}, expected text without a zero byte")
        elif isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
            raise ConfigError(f"{label}: {key}: the number is too long; expected at most {MOST_DIGITS} digits")


def inherited(path: Path, find: Callable[[str], Path | None], known: Sequence[str] = ()) -> list[Layer]:
    """Load a file and all files that it extends, ancestors first. Raises :class:`ConfigError` for a circle.

    ``extends`` names a shipped system, which ``find`` looks up, or a path relative to the file.
    """
    layers: list[Layer] = []
    chain: list[Path] = []
    current: Path | None = path
    while current is not None:
        resolved = followed(current)
        if resolved in chain:
            names = " -> ".join(str(link) for link in [*chain[chain.index(resolved) :], resolved])
            raise ConfigError(
                f"{current}: extends: got a circle, {names}; expected a chain that ends: remove one 'extends'"
            )
        chain.append(resolved)
        table = load_toml(current)
        parent = table.pop("extends", None)
        layers.append(Layer(str(current), resolved.parent, table))
        current = None if parent is None else _parent(str(current), resolved.parent, parent, find, known)
    return layers[::-1]


def _parent(label: str, folder: Path, parent: object, find: Callable[[str], Path | None], known: Sequence[str]) -> Path:
    if not isinstance(parent, str) or not parent:
        raise ConfigError(f"{label}: extends: got {parent!r}, expected the name of a system or the path of a TOML file")
    found = find(parent)
    if found is not None:
        return found
    path = folder / expanded(parent)
    if not path.is_file():
        systems = f"a shipped system ({', '.join(known)})" if known else "a shipped system"
        raise ConfigError(
            f"{label}: extends: got '{parent}', expected {systems} or the path of a TOML file relative to {folder}"
            f"{nearest(parent, known)}"
        )
    return path


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any], choices: Collection[str] = ()) -> Table:
    """Return a new table: ``base`` with ``over`` merged into it, table by table. A top-level table named in ``choices``
    holds the options of its ``kind``: if ``over`` picks another kind, the options of the old kind are dropped."""
    merged: Table = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            other_kind = key in choices and "kind" in value and value["kind"] != below.get("kind")
            merged[key] = dict(value) if other_kind else deep_merge(below, value)
        else:
            merged[key] = value
    return merged


def parse_override(text: str) -> Table:
    """Parse ``a.b=value`` as a nested table. The value is read as TOML, or as a string if it is not valid TOML."""
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise ConfigError(f"--set {text}: got no 'key=value', expected for example --set train.epochs=20")
    if len(parts) > MOST_DEPTH:
        raise ConfigError(f"--set {key:.60}...: got {len(parts)} levels, expected at most {MOST_DEPTH}")
    parsed: Any = value.strip()
    with suppress(tomllib.TOMLDecodeError, RecursionError, ValueError):
        table = tomllib.loads(f"value = {parsed}")
        parsed = table["value"] if len(table) == 1 else parsed
    _check_values({"value": parsed}, f"--set {key}")
    return nested(parts, parsed)


def nested(path: Sequence[str], value: Any) -> Table:
    """Return nested tables that hold ``value`` under a key path, which has at least one key."""
    for key in reversed(path):
        value = {key: value}
    table: Table = value
    return table


def leaves(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Iterate over (key path, value) of all entries of nested tables that are not tables themselves."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def without_none(value: Any) -> Any:
    """Copy nested values without None entries, since TOML has no null; tuples become lists."""
    if isinstance(value, Mapping):
        return {key: without_none(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list | tuple):
        return [without_none(entry) for entry in value]
    return value


def write_toml(path: Path, table: Mapping[str, Any]) -> None:
    """Write a table to a temporary TOML file, then rename it, so that readers never see a partial file."""
    write_atomically(path, tomli_w.dumps(without_none(table)))


def write_atomically(path: Path, text: str) -> None:
    """Write text as UTF-8 to a temporary file beside ``path``, then rename it to ``path``."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # mkstemp makes private files; results are to be read by others
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
