"""Stores a program as ``program.json`` (templates, buffers, streams) and ``columns.npz`` (sizes); its digest."""

import hashlib
import json
import os
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ProgramError
from simgnn.npzfile import read_npz
from simgnn.outside import check_regular, read_text
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Buffer, Group, Op, Stream
from simgnn.program.program import Program, Publication, Template
from simgnn.program.sizes import Column, Decision, Route, Scratch, SizeTable

FORMAT = 1
JSON_NAME, COLUMNS_NAME = "program.json", "columns.npz"


def program_to_json(program: Program) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Convert a program to a JSON document and the arrays that are stored beside it."""
    document = {
        "format": FORMAT,
        "name": program.name,
        "hosts": list(program.hosts),
        "calendar": _encode(program.calendar),
        "buffers": _encode([*program.buffers.values()]),
        "streams": _encode([*program.streams.values()]),
        "groups": _encode([*program.groups.values()]),
        "publications": _encode(program.publications),
        "templates": _encode([*program.templates.values()]),
        "kept": _encode(program.kept),
    }
    for key, field in (("parts", "part_of"), ("lists", "listed")):
        stated = {name: getattr(route, field) for name, route in program.sizes.routes.items() if getattr(route, field)}
        if stated:
            document[key] = stated
    arrays: dict[str, NDArray[Any]] = {f"column/{name}": column for name, column in program.sizes.columns.items()}
    for name, route in program.sizes.routes.items():
        arrays[f"route/{name}/source"] = route.source
        arrays[f"route/{name}/target"] = route.target
        arrays[f"route/{name}/rows"] = route.rows
        if route.chosen is not None:
            arrays[f"route/{name}/chosen"] = np.packbits(route.chosen)
        if route.slots is not None:
            arrays[f"route/{name}/slots"] = route.slots
    return document, arrays


def save_program(program: Program, folder: Path) -> None:
    """Write both files into an existing folder, each under a temporary name first."""
    document, arrays = program_to_json(program)
    partial = {name: folder / f"{name}.partial" for name in (COLUMNS_NAME, JSON_NAME)}
    with partial[COLUMNS_NAME].open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    partial[JSON_NAME].write_text(json.dumps(document, indent=1))
    for name, path in partial.items():
        os.replace(path, folder / name)


def load_program(folder: Path) -> Program:
    """Read a stored program; raises :class:`ProgramError` if its files are missing, broken or of another format."""
    if (folder / COLUMNS_NAME).exists():
        check_regular(folder / COLUMNS_NAME, ProgramError)
    try:
        document = json.loads(read_text(folder / JSON_NAME, ProgramError, "write the run directory again"))
        arrays = read_npz(folder / COLUMNS_NAME)
    except (OSError, ValueError, RecursionError) as error:
        raise ProgramError(f"cannot read the program in {folder}: {error}; write the run directory again") from error
    found = document.get("format") if isinstance(document, dict) else None
    if found != FORMAT:
        raise ProgramError(f"the program in {folder} has format {found!r}, this version reads {FORMAT}; plan it again")
    try:
        return _program_of(document, arrays)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, AssertionError, RecursionError) as error:
        raise ProgramError(
            f"the program in {folder} is damaged ({type(error).__name__}: {error}); write the run directory again"
        ) from error


def _program_of(document: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Program:
    routes, parts, lists = {}, document.get("parts", {}), document.get("lists", {})
    for key in arrays:
        if key.startswith("route/") and key.endswith("/rows"):
            name = key[len("route/") : -len("/rows")]
            ends = arrays[f"route/{name}/source"], arrays[f"route/{name}/target"]
            whole, chosen = parts.get(name, ""), arrays.get(f"route/{name}/chosen")
            if chosen is not None:
                chosen = np.unpackbits(chosen, count=int(arrays[f"route/{whole}/rows"].sum())).astype(np.bool_)
            slots = arrays.get(f"route/{name}/slots")
            routes[name] = Route(*ends, arrays[key], whole, lists.get(name, ""), chosen, slots)
    columns = {key[len("column/") :]: array for key, array in arrays.items() if key.startswith("column/")}
    templates = {
        item["name"]: Template(item["name"], tuple(_decode(Op, op) for op in item["ops"]))
        for item in document["templates"]
    }
    return Program(
        name=document["name"],
        templates=templates,
        calendar=_decode(Calendar, document["calendar"]),
        buffers={item["name"]: _decode(Buffer, item) for item in document["buffers"]},
        streams={item["name"]: _decode(Stream, item) for item in document["streams"]},
        groups={item["name"]: _decode(Group, item) for item in document["groups"]},
        sizes=SizeTable(len(document["hosts"]), columns, routes),
        hosts=tuple(document["hosts"]),
        publications=tuple(_decode(Publication, item) for item in document.get("publications", ())),
        kept=_decode(Mapping[str, Scratch], document.get("kept", {})),
    )


def _encode(value: Any) -> Any:
    if isinstance(value, Column):
        return {"column": value.name}
    if isinstance(value, Decision):
        return {"decision": value.name, "bound": _encode(value.bound)}
    if is_dataclass(value) and not isinstance(value, type):
        # what has its default value is left out: programs stay readable
        default = {
            one.name: one.default_factory() if callable(one.default_factory) else one.default for one in fields(value)
        }
        return {name: _encode(getattr(value, name)) for name in default if getattr(value, name) != default[name]}
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    return value


_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)
"""Types of a class's fields: resolved once, not for each of thousands of ops."""


def _decode(kind: Any, value: Any) -> Any:
    if isinstance(value, dict) and "column" in value and len(value) == 1:
        return Column(value["column"])
    if isinstance(value, dict) and "decision" in value and "bound" in value:
        return Decision(value["decision"], _decode(int, value["bound"]))
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        options = [option for option in get_args(kind) if is_dataclass(option)]
        if isinstance(value, dict) and options:
            options = [option for option in options if option not in (Column, Decision)]
            return _decode(options[0], value)
        words = [option for option in get_args(kind) if isinstance(option, type) and issubclass(option, StrEnum)]
        return words[0](value) if words and value is not None else value
    if is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{name: _decode(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    if origin is tuple:
        return tuple(_decode(get_args(kind)[0], item) for item in value)
    if isinstance(value, dict):
        inner = get_args(kind)[1] if get_args(kind) else Any
        return {key: _decode(inner, item) for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return kind(value)
    assert origin is not Literal or value in get_args(kind)
    assert kind not in (str, int, bool) or isinstance(value, kind), f"expected {kind.__name__}, got {value!r}"
    return value


def program_digest(program: Program) -> str:
    """Return the hex SHA-256 of a program, the same in any process.

    Names of hosts, times and paths do not count, nor does scratch memory, which follows from the rest."""
    digest = hashlib.sha256()
    document, arrays = program_to_json(program)
    for key in ("name", "kept"):
        document.pop(key)
    for template in document["templates"]:
        for op in template["ops"]:
            op.pop("scratch", None)
    _feed(document, digest)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        _feed([name, str(array.dtype), list(array.shape)], digest)
        digest.update(array.tobytes())
    return digest.hexdigest()


def _feed(value: Any, digest: Any) -> None:
    if isinstance(value, dict):
        digest.update(b"{")
        for key in sorted(value):
            _feed(key, digest)
            _feed(value[key], digest)
        digest.update(b"}")
    elif isinstance(value, list | tuple):
        digest.update(b"[")
        for item in value:
            _feed(item, digest)
        digest.update(b"]")
    else:
        digest.update(f"{type(value).__name__}:{value!r};".encode())
