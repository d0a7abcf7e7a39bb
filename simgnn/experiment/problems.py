"""Messages about faults of an experiment: key path, value found, values expected, the nearest name, a remedy."""

import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from simgnn.policy import Policy
from simgnn.registry import shipped
from simgnn.spelling import nearest

Origin = Callable[[tuple[str, ...]], str]
Model = TypeVar("Model", bound=BaseModel)


def line(path: Sequence[str], message: str, origin: Origin) -> str:
    """Format one fault: where the key was written (if known), the key path, the message."""
    where = origin(tuple(path))
    return f"{where + ': ' if where else ''}{'.'.join(path)}: {message}"


def shown(value: Any) -> str:
    """Format a value as in TOML, shortened."""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, str):
        text = f"'{value}'"
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(shown(entry) for entry in value) + "]"
    elif isinstance(value, Mapping):
        text = "a table"
    else:
        text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def parse_table(
    model: type[Model], table: Any, path: tuple[str, ...], origin: Origin, problems: list[str]
) -> Model | None:
    """Return a table's checked value, or None after appending its faults to ``problems``."""
    if not isinstance(table, Mapping):
        problems.append(line(path, f"got {shown(table)}, expected a table: [{'.'.join(path)}]", origin))
        return None
    known = tuple(model.model_fields)
    faults: dict[str, str] = {}
    for key, value in table.items():
        if key in known and not _is_one_of_its_kind(value, model.model_fields[key]):
            message = f"got {shown(value)}, expected {expected(model.model_fields[key])}"
            faults[key] = line((*path, key), message, origin)
    checked = {key: _frozen(value) for key, value in table.items() if key not in faults}
    nested: list[str] = []
    for key, value in list(checked.items()):
        tables = _table_classes(model.model_fields[key].annotation) if key in known else ()
        if tables and isinstance(value, Mapping):
            inner = _parse_one_of(tables, value, (*path, key), origin, nested)
            checked = {**checked, key: inner} if inner is not None else {k: v for k, v in checked.items() if k != key}
    try:
        parsed = model.model_validate(checked, strict=True)
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            key, told = _of_whole(known, fault["msg"]) if not fault["loc"] else (str(fault["loc"][0]), None)
            if key not in faults:  # a union reports one fault for each of its members
                told = told or _sentence(model, key, table, dict(fault))
                faults[key] = line((*path, key) if key else path, told, origin)
        parsed = None
    problems.extend([*faults.values(), *nested])
    return None if faults or nested else parsed


def _table_classes(annotation: Any) -> tuple[type[BaseModel], ...]:
    """Return the classes of the tables that a field takes; none if it takes other values too, and reads them itself."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    entries = [entry for entry in get_args(annotation) if entry is not type(None) and not isinstance(entry, FieldInfo)]
    found = [_table_classes(entry) for entry in entries]
    return tuple(one for classes in found for one in classes) if all(found) else ()


def _parse_one_of(
    tables: Sequence[type[BaseModel]], value: Mapping[str, Any], path: tuple[str, ...], origin: Origin,
    problems: list[str],
) -> BaseModel | None:  # fmt: skip
    """Return a table inside a table, of the class that its ``kind`` names if there are several; else like
    :func:`parse_table`."""
    if len(tables) == 1:
        return parse_table(tables[0], value, path, origin, problems)
    by_kind = {kind: one for one in tables for kind in _choices(one.model_fields["kind"].annotation)}
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in by_kind:
        hint = nearest(kind, tuple(by_kind)) if isinstance(kind, str) else ""
        got, names = "none" if kind is None else shown(kind), ", ".join(map(shown, by_kind))
        problems.append(line((*path, "kind"), f"got {got}, expected one of {names}{hint}", origin))
        return None
    return parse_table(by_kind[kind], value, path, origin, problems)


def _is_one_of_its_kind(value: Any, field: FieldInfo) -> bool:
    """Reject values that strict checks would accept: NaN, infinity (unless the field allows it), and true or 1.0 where
    the number 1 is a choice."""
    if isinstance(value, float) and not math.isfinite(value):
        allowed = any(getattr(entry, "allow_inf_nan", None) for entry in field.metadata)
        return allowed and not math.isnan(value)
    alike = [choice for choice in _choices(field.annotation) if choice == value]
    return not alike or any(type(choice) is type(value) for choice in alike)


def _frozen(value: Any) -> Any:
    """Convert lists to tuples, which strict checks of tuple fields need."""
    return tuple(_frozen(entry) for entry in value) if isinstance(value, list) else value


def _of_whole(known: Sequence[str], message: str) -> tuple[str, str]:
    """Split a fault that may begin with a field's name, such as "epsilon: got 0.5, ...", into key and sentence."""
    text = re.sub("^Value error, ", "", message)
    key, colon, rest = text.partition(": ")
    return (key, rest) if colon and key in known else ("", text)


def _sentence(model: type[BaseModel], key: str, table: Mapping[str, Any], fault: Mapping[str, Any]) -> str:
    known = tuple(model.model_fields)
    if fault["type"] == "extra_forbidden":
        return _of_other_kinds(model, key) or f"unknown key{nearest(key, known)}; known keys: {', '.join(known)}"
    field = model.model_fields.get(key)
    if fault["type"] == "value_error" or field is None:
        return f"got {shown(table.get(key))}, {re.sub('^Value error, ', '', fault['msg'])}"
    takes = expected(field)
    if fault["type"] == "missing":
        return f"missing; expected {takes}"
    value = table.get(key)
    names = [choice for choice in _choices(field.annotation) if isinstance(choice, str)]
    hint = nearest(value, names) if isinstance(value, str) else ""
    about = f": {field.description}" if field.description else ""
    example = "" if field.default is None or field.is_required() else f"; for example {key} = {shown(field.default)}"
    return f"got {shown(value)}, expected {takes}{hint}{about}{example}"


def _of_other_kinds(model: type[BaseModel], key: str) -> str | None:
    """Describe an option that only other kinds of the slot have; None: none has it."""
    if not issubclass(model, Policy):
        return None
    having = [kind for kind, other in shipped(model.slot).items() if key in other.model_fields]
    if not having:
        return None
    own = [name for name in model.model_fields if name != "kind"]
    here, takes = model.model_fields["kind"].default or model.__name__, ", ".join(own) or "no options"
    kinds = " or ".join(f"{model.slot}.kind = '{kind}'" for kind in having)
    return f"an option of {kinds} only; '{here}' takes {takes}. Change the kind, or remove {model.slot}.{key}"


def expected(field: FieldInfo) -> str:
    """Describe in words which values a field takes."""
    return _describe(field.annotation, field.metadata)


def _describe(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        flat = [entry for extra in more for entry in (extra.metadata if isinstance(extra, FieldInfo) else [extra])]
        return _describe(inner, [*metadata, *flat])
    if origin in (Union, types.UnionType):
        members = [entry for entry in get_args(annotation) if entry is not type(None)]
        tables = [entry for entry in members if isinstance(entry, type) and issubclass(entry, BaseModel)]
        if len(tables) > 1 and tables == members:
            kinds = [shown(kind) for one in tables for kind in _choices(one.model_fields["kind"].annotation)]
            return f"a table whose kind is one of {', '.join(kinds)}"
        return " or ".join(_describe(entry, metadata if len(members) == 1 else ()) for entry in members)
    if origin is Literal:
        names = get_args(annotation)
        return shown(names[0]) if len(names) == 1 else "one of " + ", ".join(map(shown, names))
    if origin is tuple:
        return f"a list, each entry {_describe(get_args(annotation)[0])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a table"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return words.get(annotation, str(annotation)) + _bounds(metadata)


def _bounds(metadata: Sequence[Any]) -> str:
    parts = []
    for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
        found = [getattr(entry, name) for entry in metadata if getattr(entry, name, None) is not None]
        parts += [f"{sign} {bound}" for bound in found]
    if any(getattr(entry, "min_length", None) for entry in metadata):
        parts.append("that is not empty")
    return " " + " and ".join(parts) if parts else ""


def _choices(annotation: Any) -> tuple[Any, ...]:
    """All values that a field's Literal types allow, at any depth."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(choice for entry in get_args(annotation) for choice in _choices(entry))
