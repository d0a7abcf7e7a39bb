"""Records of testbeds that are none, or say what no testbed made: told, and nothing is done by them."""

import json
import os
from pathlib import Path

import pytest

from executor.testbed import lifecycle, network
from executor.testbed.cgroups import find_controller
from executor.testbed.command import main
from executor.testbed.state import FOLDER
from tests.executor.testbed.beds import WHY_NOT, bed, clean, on_file, quotas

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"no testbed here: {WHY_NOT}")
__all__ = ["clean", "quotas"]


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": 1}', '{"format": 1, "cores": 3}', "cut o"])
def test_a_record_that_is_none_is_one_message(text: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    declared = bed()
    path = on_file(declared, tmp_path)
    record = Path(os.environ[FOLDER]) / f"{declared.name}.json"
    record.parent.mkdir(exist_ok=True)
    record.write_text(text)
    for words in (["status"], ["down"], ["up", str(path)], ["run", str(path), "nowhere"], ["exec", str(path), "true"]):
        assert main(words) in (1, 2)
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "then that file" in said or "nowhere" in said
    assert record.read_text() == text
    record.unlink()


DAMAGES: list[dict[str, object]] = [
    {"cores": []},
    {"cores": ["x"]},
    {"name": "other"},
    {"declared": {"hosts": "x"}},
    {"declared": None},
    {"namespaces": ["FOREIGN"]},
    {"namespaces": ["../netns/FOREIGN"]},
    {"namespaces": "FOREIGN"},
    {"cgroups": ["GROUP"]},
    {"base": "FOLDER"},
    {"base": None},
    {"switched": "FOLDER/file"},
    {"holder": "x"},
]


def test_a_damaged_record_touches_nothing_of_others(
    quotas: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What is not this testbed's own stays, there is one message with a remedy, and others are told of as ever."""
    declared, other = bed(slow={"1": 0.5}), bed(1, hosts=1, link=None)
    lifecycle.up(declared)
    lifecycle.up(other)
    path, foreign = str(on_file(declared, tmp_path)), f"simgnn-t{os.getpid()}-foreign"
    group, folder = find_controller().base / foreign, tmp_path / "folder"
    (folder / f"simgnn-{declared.name}" / "rank1").mkdir(parents=True)
    (folder / "file").write_text("kept")
    network.make_namespace(foreign)
    group.mkdir()
    record = Path(os.environ[FOLDER]) / f"{declared.name}.json"
    whole = record.read_text()
    try:
        for damage in DAMAGES:
            text = json.dumps(damage)
            for word, meant in (("FOREIGN", foreign), ("GROUP", group), ("FOLDER", folder), ("NAME", declared.name)):
                text = text.replace(word, str(meant))
            record.write_text(json.dumps({**json.loads(whole), **json.loads(text)}))
            for words in (["status"], ["up", path], ["down", path]):
                assert main(words) == 1
                said = capsys.readouterr()
                assert said.err.count("\n") == 1
                assert "is damaged or of another version" in said.err
                assert f"remove what the testbed made (simgnn-{declared.name}-* of ip netns list" in said.err
                assert (f"testbed '{other.name}': up" in said.out) == (words == ["status"])
        assert network.exists(foreign)
        assert group.is_dir()
        assert (folder / f"simgnn-{declared.name}" / "rank1").is_dir()
        assert (folder / "file").read_text() == "kept"
    finally:
        record.write_text(whole)
        network.remove_namespace(foreign)
        group.rmdir()
    assert lifecycle.status(declared.name)["up"]


def test_a_folder_of_records_that_cannot_be_is_one_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = on_file(bed(), tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(FOLDER, str(tmp_path / "file"))
    assert main(["up", str(path)]) != 0
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setenv(FOLDER, str(tmp_path / "file" / "below"))
    assert main(["exec", str(path), "true"]) != 0
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setenv(FOLDER, str(tmp_path / "state"))
