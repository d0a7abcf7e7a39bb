"""Seals of folders: whatever changed is named, what was not sealed does not matter."""

from pathlib import Path

import pytest

from simgnn.errors import ConfigError
from simgnn.seal import SEAL, check_seal, seal_folder


def test_a_sealed_folder_is_checked_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "plan").mkdir()
    names = ["plan/a.json", "b", "c", "d", "e"]
    for name in names:
        (tmp_path / name).write_text(name)
    check_seal(tmp_path, "run again")
    seal_folder(tmp_path, [tmp_path / name for name in [*names, "absent"]])
    (tmp_path / "more").write_text("not sealed")
    check_seal(tmp_path, "run again")
    (tmp_path / "plan" / "a.json").write_text("edited")
    (tmp_path / "b").unlink()
    with pytest.raises(ConfigError, match=r": b, plan/a\.json changed or went missing .*; run again") as raised:
        check_seal(tmp_path, "run again")
    assert raised.value.exit_status == 2
    for name in names:
        (tmp_path / name).write_text("edited")
    with pytest.raises(ConfigError, match="b, c, d and 2 more files"):
        check_seal(tmp_path, "run again")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": 3}'])
def test_a_broken_seal_is_rejected(text: str, tmp_path: Path) -> None:
    (tmp_path / SEAL).write_text(text)
    with pytest.raises(ConfigError, match=SEAL):
        check_seal(tmp_path, "run again")


def test_a_file_larger_than_the_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    seal_folder(tmp_path, [tmp_path / "a"])
    with (tmp_path / "a").open("ab") as stream:
        stream.truncate(2**43)
    with pytest.raises(ConfigError, match=r"a: reading it takes about .* run again"):
        check_seal(tmp_path, "run again")
