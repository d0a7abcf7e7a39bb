"""Turns validation errors of pydantic into messages: key path, value found, what was expected, nearest name."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from simgnn.errors import ConfigError
from simgnn.spelling import nearest
from simgnn.units import example

UNREADABLE = "unreadable"
"""Type of a fault that only follows from another fault and is not reported."""
_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "tuple_type": "a list",
    "list_type": "a list",
    "date_from_datetime_parsing": "a date, such as 2026-01-31",
    "date_type": "a date, such as 2026-01-31",
    "date_parsing": "a date, such as 2026-01-31",
    "date_from_datetime_inexact": "a date, such as 2026-01-31",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "finite_number": "a finite number",
    "string_too_short": "text that is not empty",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], table: object, label: object) -> Model:
    """Parse a table, or JSON text, as ``model``. Raises :class:`ConfigError` with every fault, each after ``label``."""
    try:
        return model.model_validate_json(table) if isinstance(table, str) else model.model_validate(table)
    except ValidationError as error:
        raise ConfigError([f"{label}: {line}" for line in sentences(model, error)]) from None


def sentences(model: type[BaseModel], error: ValidationError) -> list[str]:
    """Return one line for each fault that pydantic found in a table of ``model``."""
    lines: list[str] = []
    for fault in error.errors(include_url=False):
        # a list or a table may be too short only because of faults in its entries, which are reported
        short = fault["type"] == "too_short" and len(fault["input"]) >= fault["ctx"]["min_length"]
        if fault["type"] == UNREADABLE or short:
            continue
        path = tuple(part for part in fault["loc"] if part != "[key]")
        where = ".".join(map(str, path))
        lines += [f"{where}: {text}" if where else text for text in _describe(model, path, dict(fault)).split("\n")]
    return list(dict.fromkeys(lines))


def _describe(model: type[BaseModel], path: Sequence[int | str], fault: Mapping[str, Any]) -> str:
    kind = fault["type"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):  # of a model, of a dataclass
        known = _keys(model, path[:-1])
        return f"unknown key{nearest(str(path[-1]), known)}; known keys: {', '.join(known)}"
    if kind == "missing":
        return f"missing{_expected(model, path)}"
    if kind == "value_error":
        return str(fault["msg"]).removeprefix("Value error, ")
    if kind == "json_invalid":
        return f"not valid JSON: {fault['ctx']['error']}"
    got = _shown(fault["input"])
    if kind == "literal_error":
        choices = _choices(_annotation(model, path))
        listed = ", ".join(map(repr, choices)) or fault["ctx"]["expected"]
        names = [choice for choice in choices if isinstance(choice, str)]
        hint = nearest(fault["input"], names) if isinstance(fault["input"], str) else ""
        return f"got {got}, expected one of {listed}{hint}"
    if kind == "string_pattern_mismatch":
        return f"got {got}, expected a name: a letter, then letters, digits, or one of _ . + -"
    if kind in ("too_short", "too_long"):
        words, most = ("at least", "min_length") if kind == "too_short" else ("at most", "max_length")
        count = fault["ctx"][most]
        got = "an empty table" if isinstance(fault["input"], Mapping) and not fault["input"] else got
        return f"got {got}, expected {words} {count} entr{'y' if count == 1 else 'ies'}"
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        return f"got {got}, expected {words} {fault['ctx'][name]}"
    return f"got {got}, expected {_EXPECTED.get(kind, fault['msg'])}"


def _expected(model: type[BaseModel], path: Sequence[int | str]) -> str:
    """Describe what a missing key should hold, as the end of a message; "" if unknown."""
    annotation = _annotation(model, path)
    if _is_model(annotation):
        required = (name for name, field in annotation.model_fields.items() if field.is_required())
        return f"; expected a table with {', '.join(required)}"
    choices = _choices(annotation)
    if choices:
        return f"; expected one of {', '.join(map(repr, choices))}"
    parent = _annotation(model, path[:-1])
    field = parent.model_fields.get(str(path[-1])) if _is_model(parent) else None
    for entry in () if field is None else field.metadata:
        if hasattr(entry, "dimension"):
            return f"; expected text such as '{example(entry.dimension)}'"
    return ""


def _annotation(model: type[BaseModel], path: Sequence[int | str]) -> Any:
    here: Any = model
    for part in path:
        here = _unwrap(here)
        if _is_model(here):
            field = here.model_fields.get(str(part))
            here = None if field is None else field.annotation
        elif get_origin(here) is dict:
            here = get_args(here)[1]
        elif get_origin(here) is tuple:
            here = get_args(here)[0]
        else:
            return None
    return _unwrap(here)


def _unwrap(annotation: Any) -> Any:
    while True:
        arguments = get_args(annotation)
        if hasattr(annotation, "__metadata__"):
            annotation = arguments[0]
        elif type(None) in arguments:
            annotation = next(entry for entry in arguments if entry is not type(None))
        else:
            return annotation


def _keys(model: type[BaseModel], path: Sequence[int | str]) -> tuple[str, ...]:
    here = _annotation(model, path)
    if isinstance(here, type) and is_dataclass(here):
        return tuple(field.name for field in fields(here))
    return tuple(here.model_fields) if _is_model(here) else ()


def _choices(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f"'{value}'" if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
