"""SHA-256 of a program: of what it does, never of times, hosts' names or paths.

The memory that ops hold beside their buffers is left out: it follows from the rest of the program.
"""

import hashlib
from functools import singledispatch
from typing import Any

import numpy as np

from simgnn.program.program import Program
from simgnn.program.storage import program_to_json


def program_digest(program: Program) -> str:
    """Hex digest; equal programs have equal digests in any process."""
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


@singledispatch
def _feed(value: Any, digest: Any) -> None:
    digest.update(f"{type(value).__name__}:{value!r};".encode())


@_feed.register(dict)
def _(value: dict[str, Any], digest: Any) -> None:
    digest.update(b"{")
    for key in sorted(value):
        _feed(key, digest)
        _feed(value[key], digest)
    digest.update(b"}")


@_feed.register(list)
@_feed.register(tuple)
def _(value: Any, digest: Any) -> None:
    digest.update(b"[")
    for item in value:
        _feed(item, digest)
    digest.update(b"]")
