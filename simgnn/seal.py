"""SHA-256 seals: digests that are stored with files when they are written and compared when they are read.

Only a seal detects that files were damaged or edited after they were written. It protects against mishaps, not against
forgery: anyone who edits a file on purpose can delete or renew the seal.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simgnn.errors import ConfigError
from simgnn.memory import check_memory
from simgnn.outside import outside_data
from simgnn.tomlfile import write_atomically

SEAL = "seal.json"
"""File of a sealed folder that maps each file's relative name to its SHA-256."""


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def json_digest(value: Any) -> str:
    """Return the SHA-256 of plain values (dicts, lists, text, numbers) in canonical JSON form, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def digests_of(folder: Path, paths: Iterable[Path]) -> dict[str, str]:
    """Return the digests of those ``paths`` that exist, by name relative to ``folder``."""
    return {path.relative_to(folder).as_posix(): file_digest(path) for path in paths if path.is_file()}


def check_digests(folder: Path, digests: Mapping[str, str], remedy: str) -> None:
    """Raise :class:`ConfigError` if a file of ``folder`` is missing, does not match ``digests``, or is larger than the
    memory. The message ends with ``remedy``, which says what to do."""
    paths = [folder / name for name in digests]
    for path in paths:
        if path.is_file():  # what is larger than the memory is not what was written, and reading it may take hours
            check_memory(path.stat().st_size, f"{path}: reading it", remedy, ConfigError)
    found = digests_of(folder, paths)
    changed = sorted(name for name, digest in digests.items() if found.get(name) != digest)
    if changed:
        more = f" and {len(changed) - 3} more files" if len(changed) > 3 else ""
        raise ConfigError(
            f"{folder}: {', '.join(changed[:3])}{more} changed or went missing after this folder was written; {remedy}"
        )


def seal_folder(folder: Path, paths: Iterable[Path]) -> None:
    """Write the seal of ``folder``, with the digests of those ``paths`` that exist."""
    table = {"format": 1, "files": digests_of(folder, paths)}
    write_atomically(folder / SEAL, json.dumps(table, indent=1) + "\n")


def check_seal(folder: Path, remedy: str) -> None:
    """Raise :class:`ConfigError` if a sealed file of ``folder`` is missing or changed. A folder without a seal passes,
    since earlier versions wrote none."""
    path = folder / SEAL
    if not path.is_file():
        return
    with outside_data(path, "seal", remedy=remedy, error=ConfigError):
        digests = dict(json.loads(path.read_text(encoding="utf-8"))["files"])
        check_digests(folder, digests, remedy)
