"""Edits of files of arrays that keep the file's format: .npy, .npz, .pt and .safetensors."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from tools.mutate_inputs.draws import KEYS, NoRoomError, one_of, shown
from tools.mutate_inputs.tree_edits import edited_text

Array = NDArray[Any]
EXTREMES = (-1, 0, 1, 2**31 - 1, 2**31, 2**40, 2**63 - 1, -(2**63), np.nan, np.inf, -np.inf, 1e300, 0.5)
DTYPES = ("<i8", "<i4", "<u8", "<i2", "|i1", "|u1", "<f4", "<f8", "<f2", ">i8", ">f4", "?", "<c16", "<M8[s]", "<U4",
          "|S3", "|V8", "O")  # fmt: skip
HEADERS = (
    "{'descr': '<i8', 'fortran_order': False, 'shape': (4000000000000000,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000), }",
    "{'descr': '|i1', 'fortran_order': True, 'shape': (99999999999999999999,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
    "{'descr': [('a', '<i8'), ('b', '<f4')], 'fortran_order': False, 'shape': (3,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 0), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (0,) * 9, }",
    "{'descr': '<i8', 'fortran_order': 1, 'shape': [3]}",
    "{'descr': '<i8', 'shape': (3,)}",
    "{" * 3000,
    "(" * 200,
)
"""Headers of .npy files that claim too much, or are none."""


def edit_arrays(path: Path, rng: Generator) -> str:
    """Edit one array of a file, or its name or header; return what was done."""
    kind = path.suffix
    if kind not in EDITED or not path.stat().st_size:
        raise NoRoomError
    try:
        return EDITED[kind](path, rng)
    except (ValueError, EOFError, OSError, KeyError, RuntimeError, TypeError, zipfile.BadZipFile) as error:
        raise NoRoomError from error  # an earlier edit broke the file, or the drawn one does not suit the array


def edited(array: Array, rng: Generator) -> tuple[Array, str]:
    """Change type, shape or values of an array; return it, and what was done."""
    with np.errstate(all="ignore"):
        return one_of(rng, ARRAY_EDITS)(array, rng)


def _values(array: Array, rng: Generator) -> tuple[Array, str]:
    if not array.size:
        raise NoRoomError
    value = one_of(rng, EXTREMES)
    kind = array.dtype
    if kind.kind in "iu" and not np.iinfo(kind).min <= value <= np.iinfo(kind).max:
        kind = np.dtype(np.float64) if value != value or abs(value) > 2**62 else np.dtype(np.int64)
    changed = array.astype(kind).copy()
    whole = rng.random() < 0.2
    where: Any = ... if whole else np.unravel_index(int(rng.integers(array.size)), array.shape)
    changed[where] = value
    return changed, f"{'all values' if whole else 'a value'} became {value} as {kind}"


def _dtype(array: Array, rng: Generator) -> tuple[Array, str]:
    dtype = np.dtype(one_of(rng, DTYPES))
    return (array.astype(dtype) if dtype.kind != "V" else np.zeros(array.shape, dtype)), f"type became {dtype}"


def _shape(array: Array, rng: Generator) -> tuple[Array, str]:
    size = array.size
    shapes: list[Array] = [array.ravel(), array.reshape(-1, 1), array.reshape(1, -1), array[..., None], array.T]
    shapes += [array[:0], np.empty((0, 3), array.dtype), array.reshape(size, *[1] * 30), np.array(0, array.dtype)]
    shapes += [array[: len(array) // 2], np.concatenate((array, array[:1])), np.concatenate((array, array))]
    shapes += [np.stack((array, array)), np.zeros((len(array), 0), array.dtype)]
    changed = one_of(rng, shapes)
    return changed, f"shape {list(array.shape)} became {list(changed.shape)[:4]}"


def _order(array: Array, rng: Generator) -> tuple[Array, str]:
    turned = one_of(rng, (array[::-1], np.asfortranarray(array), np.sort(array, axis=0), rng.permutation(array)))
    return turned, "order of the rows changed"


def _npy(path: Path, rng: Generator) -> str:
    if rng.random() < 0.25:
        header = one_of(rng, HEADERS)
        path.write_bytes(_headed(header))
        return f"header became {shown(header)}"
    changed, told = edited(np.load(path, allow_pickle=False), rng)
    np.save(path, changed, allow_pickle=True)
    return told


def _headed(header: str) -> bytes:
    text = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(64)


def _npz(path: Path, rng: Generator) -> str:
    with np.load(path, allow_pickle=False) as archive:
        arrays: dict[str, Array] = dict(archive)
    name = one_of(rng, list(arrays))
    what = one_of(rng, ("edit", "edit", "edit", "edit", "remove", "rename", "add", "header", "swap", "twice", "bomb"))
    told = f"array {shown(name)} {what}"
    more: dict[str, bytes] = {}
    if what == "edit":
        arrays[name], told = edited(arrays[name], rng)
        told = f"array {shown(name)}: {told}"
    elif what == "remove":
        del arrays[name]
    elif what == "rename":
        new = one_of(rng, (*(key for key in KEYS if len(key) < 1000 and "\0" not in key), f"{name}s"))
        arrays[new] = arrays.pop(name)
    elif what == "add":
        arrays[one_of(rng, ("feat", "labels", "weights", "train_mask", "y", "x"))] = arrays[name]
    elif what == "header":
        header = one_of(rng, HEADERS)
        del arrays[name]
        more[f"{name}.npy"] = _headed(header)
        told += f" {shown(header)}"
    elif what == "swap":
        other = one_of(rng, list(arrays))
        arrays[name], arrays[other] = arrays[other], arrays[name]
        told += f" with {shown(other)}"
    elif what == "twice":
        more[f"{name}.npy"] = _headed(HEADERS[6])
    else:
        claimed = "{'descr': '|i1', 'fortran_order': False, 'shape': (300000000,), }"
        more["feat.npy"] = _headed(claimed) + bytes(300_000_000)
        arrays.pop("feat", None)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as written:
        for key, array in arrays.items():
            stream = io.BytesIO()
            np.save(stream, array, allow_pickle=True)
            written.writestr(f"{key}.npy", stream.getvalue())
        for file, content in more.items():
            written.writestr(file, content)
    return told


class _Code:
    """Pickles as a call, which no reader may make."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return print, ("a file ran code",)


ODD_OBJECTS: tuple[Any, ...] = (
    None, 1, -1, 2**70, 1.5, float("nan"), "text", b"bytes", [1, 2], [], {}, {"a": 1}, (1, 2), {1, 2}, [None], True,
    _Code(),
)  # fmt: skip


def _torch_file(path: Path, rng: Generator) -> str:
    held = torch.load(path, weights_only=True)
    holder, key = one_of(rng, _entries(held))
    before = f"entry {shown(key)}"
    value = holder[key]
    what = one_of(rng, ("value", "remove", "rename", "object", "object"))
    if what == "remove":
        del holder[key]
    elif what == "rename" and isinstance(holder, dict):
        holder[one_of(rng, (*KEYS, 3, ("a", "b", "c"), None))] = holder.pop(key)
    elif what == "value" and isinstance(value, torch.Tensor):
        holder[key], told = _tensor(value, rng)
        before = f"{before}: {told}"
    else:
        holder[key] = one_of(rng, ODD_OBJECTS)
        before = f"{before} became {shown(holder[key])}"
    torch.save(held, path)
    return f"{before} {what}"


def _entries(held: Any) -> list[tuple[Any, Any]]:
    found, waiting = [], [held]
    while waiting:
        holder = waiting.pop()
        for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            found.append((holder, key))
            if isinstance(value, dict | list):
                waiting.append(value)
    return found


def _tensor(value: torch.Tensor, rng: Generator) -> tuple[torch.Tensor, str]:
    kind = int(rng.integers(6))
    if kind == 0 and value.dim() == 2:
        return value.to_sparse(), "sparse"
    if kind == 1:
        return value.to("meta"), "without data"
    if kind == 2:
        return value.to(one_of(rng, (torch.bfloat16, torch.complex64, torch.bool, torch.float16))), "other type"
    changed, told = edited(value.numpy(), rng)
    return torch.from_numpy(np.ascontiguousarray(changed)), told


def _safetensors(path: Path, rng: Generator) -> str:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + length], content[8 + length :]
    if rng.random() < 0.2:
        claimed = one_of(rng, (0, 1, length - 1, length + 1, 10**8, 2**40, 2**63, 2**64 - 1))
        path.write_bytes(claimed.to_bytes(8, "little") + header + data)
        return f"length of the header became {claimed}"
    if rng.random() < 0.4:
        if len(data) < 8:
            raise NoRoomError
        at = int(rng.integers(len(data) // 4)) * 4
        value = one_of(rng, (np.nan, np.inf, -np.inf, 1e38, 0.0))
        path.write_bytes(content[: 8 + length + at] + np.float32(value).tobytes() + data[at + 4 :])
        return f"number at byte {at} of the data became {value}"
    text, told = edited_text(json.loads(header), rng, toml=False)
    packed = text.encode("utf-8", "surrogatepass")
    path.write_bytes(len(packed).to_bytes(8, "little") + packed + data)
    return f"header: {told}"


ARRAY_EDITS: tuple[Callable[[Array, Generator], tuple[Array, str]], ...] = (_values, _values, _dtype, _shape, _order)
EDITED: dict[str, Callable[[Path, Generator], str]] = {
    ".npy": _npy, ".npz": _npz, ".pt": _torch_file, ".safetensors": _safetensors,
}  # fmt: skip
