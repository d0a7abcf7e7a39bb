"""Edits of TOML and JSON files that keep their syntax: values, keys and nesting."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w
from numpy.random import Generator

from tools.mutate_inputs.draws import DEPTHS, KEYS, WORDS, NoRoomError, one_of, shown

Node = tuple[Any, Any]
"""A table or list, and the key or place of an entry in it."""
RAW = "@raw{}@"
"""Stands for text that the writers of TOML and JSON would not write, until the file is written."""
RAW_NUMBERS = ("1e400", "-1e400", "9" * 5000, "-" + "9" * 101, "1e-400", "1e308", "-0.0")
VALUES: tuple[Any, ...] = (
    0, 1, -1, 3, 2.0, 0.5, -0.5, 5e-324, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30, float("nan"), float("inf"),
    float("-inf"), True, False, [], {}, [[]], [1, 2, 3], [0.5], ["a"], {"a": 1}, {"kind": "none"}, [{}], "7", "auto",
    "none",
)  # fmt: skip


def edit_tree(path: Path, rng: Generator) -> str:
    """Edit one entry of a TOML or JSON file; return what was done."""
    if path.suffix not in (".toml", ".json"):
        raise NoRoomError
    try:
        text = path.read_text(encoding="utf-8")
        tree = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:  # an earlier edit broke the syntax, or nested it too deep
        raise NoRoomError from error
    changed, told = edited_text(tree, rng, toml=path.suffix == ".toml")
    path.write_text(changed, encoding="utf-8", errors="surrogatepass")
    return told


def edited_text(tree: Any, rng: Generator, toml: bool) -> tuple[str, str]:
    """Edit one entry of a tree; return it as text, and what was done."""
    nodes = _nodes(tree)
    holder, key = one_of(rng, nodes)
    raw: dict[str, str] = {}
    told = one_of(rng, EDITS)(holder, key, rng, raw, toml)
    try:
        text = tomli_w.dumps(tree) if toml else json.dumps(tree, indent=1)
    except (TypeError, ValueError, RecursionError) as error:  # JSON's null in TOML
        raise NoRoomError from error
    for name, replacement in raw.items():
        text = text.replace(json.dumps(name), replacement).replace(name, replacement)
    return text, told


def _nodes(tree: Any) -> list[Node]:
    """List every entry of a tree by the table or list that holds it."""
    found: list[Node] = []
    waiting = [tree]
    while waiting:
        holder = waiting.pop()
        entries = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, value in list(entries):
            found.append((holder, key))
            if isinstance(value, dict | list):
                waiting.append(value)
    return found


def _name(holder: Any, key: Any) -> str:
    return f"entry {shown(key)} ({shown(holder[key])})"


def _raw(raw: dict[str, str], text: str) -> str:
    name = RAW.format(len(raw))
    raw[name] = text
    return name


def _value(holder: Any, key: Any, rng: Generator, raw: dict[str, str], toml: bool) -> str:
    before, value = _name(holder, key), one_of(rng, VALUES if toml else (*VALUES, None))
    holder[key] = value
    return f"{before} became {shown(value)}"


def _number(holder: Any, key: Any, rng: Generator, raw: dict[str, str], toml: bool) -> str:
    before, text = _name(holder, key), one_of(rng, RAW_NUMBERS)
    holder[key] = _raw(raw, text)
    return f"{before} became {shown(text)}"


def _text(holder: Any, key: Any, rng: Generator, raw: dict[str, str], toml: bool) -> str:
    before, word = _name(holder, key), one_of(rng, WORDS)
    holder[key] = word
    return f"{before} became {shown(word)}"


def _like(holder: Any, key: Any, rng: Generator, raw: dict[str, str], toml: bool) -> str:
    """Change a value into one of its kind that differs a little."""
    before, value = _name(holder, key), holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int | float):
        holder[key] = one_of(rng, (-value, value + 1, value - 1, value * 2, float(value), value * 0.5, str(value)))
    elif isinstance(value, str) and value:
        place = int(rng.integers(len(value)))
        cut = (value[:place], value[place:], value[:place] + "x" + value[place + 1 :], value.upper(), value + value)
        numbered = re.sub(r"\d+", lambda found: one_of(rng, ("0", "-1", "9" * 400, "1e999")), value)
        holder[key] = one_of(rng, (*cut, numbered, f" {value} "))
    elif isinstance(value, list):
        longer, shorter = [*value, *value[-1:]], value[:-1]
        holder[key] = one_of(rng, (longer, shorter, value[::-1], [*value, "x"], [value], value * 3, [*value, -1]))
    else:
        holder[key] = [value]
    return f"{before} became {shown(holder[key])}"


def _remove(holder: Any, key: Any, rng: Generator, raw: dict[str, str], toml: bool) -> str:
    before = _name(holder, key)
    del holder[key]
    return f"{before} removed"


def _rename(holder: Any, key: Any, rng: Generator, raw: dict[str, str], toml: bool) -> str:
    if not isinstance(holder, dict):
        raise NoRoomError
    before, new = _name(holder, key), one_of(rng, (*KEYS, f"{key}s", key[:-1], key.upper()))
    entries = [(new if name == key else name, value) for name, value in holder.items()]
    holder.clear()
    holder.update(entries)
    return f"{before} renamed to {shown(new)}"


def _add(holder: Any, key: Any, rng: Generator, raw: dict[str, str], toml: bool) -> str:
    value = one_of(rng, VALUES)
    if isinstance(holder, dict):
        new = one_of(rng, KEYS)
        holder[new] = value
        return f"added {shown(new)} = {shown(value)}"
    holder.insert(key, value)
    return f"added {shown(value)} at place {key}"


def _swap(holder: Any, key: Any, rng: Generator, raw: dict[str, str], toml: bool) -> str:
    other = one_of(rng, list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]
    return f"swapped entries {shown(key)} and {shown(other)}"


def _nest(holder: Any, key: Any, rng: Generator, raw: dict[str, str], toml: bool) -> str:
    before, depth = _name(holder, key), one_of(rng, DEPTHS)
    opened, closed = one_of(rng, (("[", "]"), ("{a = ", "}") if toml else ('{"a":', "}")))
    holder[key] = _raw(raw, opened * depth + "1" + closed * depth)
    return f"{before} became {depth} nested levels of {opened}{closed}"


def _twice(holder: Any, key: Any, rng: Generator, raw: dict[str, str], toml: bool) -> str:
    """Write a key of a JSON table, or of a TOML one, twice."""
    if not isinstance(holder, dict) or isinstance(holder[key], dict | list):
        raise NoRoomError
    before, value = _name(holder, key), json.dumps(holder[key], default=str)
    holder[key] = _raw(raw, f"{value}\n{json.dumps(key)} = {value}" if toml else f"{value}, {json.dumps(key)}: 1")
    return f"{before} written twice"


Edit = Callable[[Any, Any, Generator, dict[str, str], bool], str]
EDITS: tuple[Edit, ...] = (
    _value, _value, _value, _number, _number, _text, _text, _like, _like, _like, _remove, _remove, _rename, _add, _swap,
    _nest, _twice,
)  # fmt: skip
