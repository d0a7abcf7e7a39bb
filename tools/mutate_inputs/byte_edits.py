"""Edits of a file as bytes or lines of text, and of what stands in its place."""

import gzip
import os
import re
from collections.abc import Callable
from pathlib import Path

from numpy.random import Generator

from tools.mutate_inputs.draws import NUMBERS, WORDS, NoRoomError, one_of, shown

NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
TEXT_SUFFIXES = frozenset({".csv", ".tsv", ".txt", ".mtx", ".toml", ".json"})
HUGE = 2**40


def edit_bytes(path: Path, rng: Generator) -> str:
    """Damage the bytes of a file in one place, or its bits in a few; return what was done."""
    content = path.read_bytes()
    edit = one_of(rng, BYTE_EDITS)
    changed, told = edit(content, rng)
    path.write_bytes(changed)
    return told


def edit_text(path: Path, rng: Generator) -> str:
    """Damage a number, a line or a separator of a text file, packed by gzip or not; return what was done."""
    packed = path.suffix == ".gz"
    if Path(path.stem if packed else path.name).suffix not in TEXT_SUFFIXES:
        raise NoRoomError
    content = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    edit = one_of(rng, TEXT_EDITS)
    changed, told = edit(content, rng)
    path.write_bytes(gzip.compress(changed) if packed else changed)
    return told


def replace_file(path: Path, rng: Generator) -> str:
    """Put something else in the place of a file; return what."""
    what = one_of(rng, tuple(PLACES))
    path.unlink()
    PLACES[what](path)
    return f"replaced by {what}"


def _without_rights(path: Path) -> None:
    path.write_bytes(b"1")
    path.chmod(0)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _sparse(path: Path) -> None:
    """Make a file that claims a terabyte and takes no room."""
    with path.open("wb") as stream:
        stream.truncate(HUGE)


def _folder_of_itself(path: Path) -> None:
    path.mkdir()
    (path / path.name).write_bytes(b"")


PLACES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "an empty file": lambda path: path.write_bytes(b""),
    "an empty folder": lambda path: path.mkdir(),
    "a folder": _folder_of_itself,
    "a pipe": _fifo,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to its folder": lambda path: path.symlink_to("."),
    "a sparse file of 1 TiB": _sparse,
    "a file without rights": _without_rights,
}


def _place(content: bytes, rng: Generator) -> int:
    """Draw a place, as often as not near the start, where headers lie, or the end, where footers do."""
    size = len(content)
    if not size:
        raise NoRoomError
    near = int(rng.integers(3))
    if near == 0:
        return int(rng.integers(size))
    offset = int(rng.integers(min(size, 64)))
    return offset if near == 1 else size - 1 - offset


def _flip(content: bytes, rng: Generator) -> tuple[bytes, str]:
    changed, places = bytearray(content), []
    for _ in range(int(rng.integers(1, 9))):
        place, bit = _place(content, rng), int(rng.integers(8))
        changed[place] ^= 1 << bit
        places.append(f"{place}.{bit}")
    return bytes(changed), f"flipped bits {' '.join(places)}"


def _truncate(content: bytes, rng: Generator) -> tuple[bytes, str]:
    place = _place(content, rng)
    return content[:place], f"cut off at byte {place} of {len(content)}"


def _insert(content: bytes, rng: Generator) -> tuple[bytes, str]:
    place = _place(content, rng)
    more = one_of(rng, (rng.bytes(int(rng.integers(1, 9))), b"\0", b"\xff" * 8, b"\n", b"\xef\xbb\xbf", b"9" * 5000))
    return content[:place] + more + content[place:], f"inserted {shown(more)} at byte {place}"


def _delete(content: bytes, rng: Generator) -> tuple[bytes, str]:
    place, length = _place(content, rng), int(2 ** rng.uniform(0, 9))
    return content[:place] + content[place + length :], f"deleted {length} bytes at byte {place}"


def _overwrite(content: bytes, rng: Generator) -> tuple[bytes, str]:
    place, length = _place(content, rng), int(one_of(rng, (1, 4, 8, 64)))
    filled = one_of(rng, (b"\0" * length, b"\xff" * length, b"\xff" * (length - 1) + b"\x7f", rng.bytes(length)))
    return content[:place] + filled + content[place + length :], f"wrote {shown(filled)} over byte {place}"


def _swap(content: bytes, rng: Generator) -> tuple[bytes, str]:
    a, b, c = sorted(_place(content, rng) for _ in range(3))
    return content[:a] + content[b:c] + content[a:b] + content[c:], f"swapped bytes {a}..{b} and {b}..{c}"


def _repeat(content: bytes, rng: Generator) -> tuple[bytes, str]:
    a, b = sorted((_place(content, rng), _place(content, rng)))
    times = int(one_of(rng, (1, 2, 50)))
    return content[:b] + content[a:b] * times + content[b:], f"repeated bytes {a}..{b} {times} times"


def _number(content: bytes, rng: Generator) -> tuple[bytes, str]:
    found = list(NUMBER.finditer(content))
    where, text = one_of(rng, found), one_of(rng, NUMBERS)
    changed = content[: where.start()] + text.encode() + content[where.end() :]
    return changed, f"number {shown(where.group())} at byte {where.start()} became {shown(text)}"


def _line(content: bytes, rng: Generator) -> tuple[bytes, str]:
    lines = content.splitlines(keepends=True)
    if not lines:
        raise NoRoomError
    at, other = int(rng.integers(len(lines))), int(rng.integers(len(lines)))
    what = one_of(rng, ("removed", "doubled", "swapped", "joined", "emptied", "cut"))
    if what == "removed":
        del lines[at]
    elif what == "doubled":
        lines.insert(at, lines[at])
    elif what == "swapped":
        lines[at], lines[other] = lines[other], lines[at]
    elif what == "joined":
        lines[at] = lines[at].rstrip(b"\r\n")
    elif what == "emptied":
        lines[at] = b"\n"
    else:
        lines[at] = lines[at][: int(rng.integers(len(lines[at])))] + b"\n"
    return b"".join(lines), f"line {at + 1} {what}"


def _separators(content: bytes, rng: Generator) -> tuple[bytes, str]:
    old, new = one_of(rng, ((b",", b";"), (b"\t", b" "), (b"\n", b"\r"), (b"\n", b"\r\n"), (b" ", b""), (b"=", b":"),
                            (b",", b",,"), (b"\n", b"\n\n"), (b'"', b""), (b".", b",")))  # fmt: skip
    if old not in content:
        raise NoRoomError
    return content.replace(old, new), f"every {shown(old)} became {shown(new)}"


def _word(content: bytes, rng: Generator) -> tuple[bytes, str]:
    where = one_of(rng, list(re.finditer(rb"[A-Za-z_]\w*", content)))
    word = one_of(rng, (one_of(rng, WORDS).encode(), b"\xff\xfe", b'"', where.group().upper(), where.group() * 2))
    changed = content[: where.start()] + word + content[where.end() :]
    return changed, f"word {shown(where.group())} at byte {where.start()} became {shown(word)}"


Edit = Callable[[bytes, Generator], tuple[bytes, str]]
BYTE_EDITS: tuple[Edit, ...] = (_flip, _flip, _truncate, _insert, _delete, _overwrite, _overwrite, _swap, _repeat)
TEXT_EDITS: tuple[Edit, ...] = (_number, _number, _number, _line, _line, _separators, _word)
