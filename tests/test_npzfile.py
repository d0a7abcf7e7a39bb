"""Archives that were changed on their way: whatever NumPy and its archives make of it, a ValueError says why."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simgnn.npzfile import npy_is_whole, read_npy, read_npz


def header(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """Another text of the same length in the header of an array, which is parsed before its checksum is known."""
    assert len(old) == len(new)
    return lambda raw: raw.replace(old, new, 1)


def listed(place: int, value: int) -> Callable[[bytes], bytes]:
    """Another byte of what the end of an archive tells of its first member."""

    def change(raw: bytes) -> bytes:
        found = raw.index(b"PK\x01\x02") + place
        return raw[:found] + bytes([value]) + raw[found + 1 :]

    return change


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a header without an end": header(b"(4000,), }", b"(4000,),  "),
    "a header of nothing": header(b"{'descr'", b"%'descr'"),
    "a list as a key": header(b"'fortran_order'", b"['rtran_order']"),
    "keys that have no order": header(b"'fortran_order'", b"3".ljust(15)),
    "a length of too many digits": header(b"(4000,), }" + b" " * 20, b"(4000" + b"0" * 20 + b",), }"),
    "more than any memory holds": header(b"(4000,), }" + b" " * 12, b"(4000" + b"0" * 12 + b",), }"),
    "encrypted": listed(8, 1),
    "an unknown compression": listed(10, 99),
    "another compression": listed(10, 8),
    "lzma": listed(10, 14),
    "bzip2": listed(10, 12),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_a_value_error(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    np.savez(path, big=np.arange(4000))  # longer than what is read at once, so that the checksum comes too late
    whole = path.read_bytes()
    assert read_npz(path)["big"].tolist() == list(range(4000))
    changed = DAMAGE[damage](whole)
    assert len(changed) == len(whole)
    assert changed != whole
    path.write_bytes(changed)
    with pytest.raises(ValueError, match=r"."):
        read_npz(path)


@pytest.mark.parametrize("damage", [name for name, change in DAMAGE.items() if "header" in change.__qualname__])
@pytest.mark.parametrize("mapped", [False, True])
def test_a_damaged_array_is_a_value_error(damage: str, mapped: bool, tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    np.save(path, np.arange(4000))
    assert read_npy(path, mapped=mapped).tolist() == list(range(4000))
    whole = path.read_bytes()
    path.write_bytes(DAMAGE[damage](whole))
    assert path.read_bytes() != whole
    with pytest.raises(ValueError, match=r"."):
        read_npy(path, mapped=mapped)


def test_an_empty_array_is_read_and_an_archive_by_its_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    np.save(path, np.zeros((0, 2), dtype=np.int64))
    assert read_npy(path, mapped=True).shape == (0, 2)
    with path.open("wb") as stream:
        np.savez(stream, one=np.arange(3))
    with pytest.raises(ValueError, match="archive"):
        read_npy(path)


def test_arrays_that_are_longer_than_they_say_are_not_whole(tmp_path: Path) -> None:
    for name, array in (("a", np.arange(99)), ("b", np.zeros(0)), ("c", np.asfortranarray(np.ones((9, 40))))):
        path = tmp_path / f"{name}.npy"
        np.save(path, array)
        assert npy_is_whole(path)
        with path.open("ab") as stream:
            stream.truncate(2**43)
        assert not npy_is_whole(path)
    (tmp_path / "d.npy").write_bytes(b"none")
    with pytest.raises(ValueError, match=r"\S"):
        npy_is_whole(tmp_path / "d.npy")
