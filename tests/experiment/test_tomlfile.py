"""TOML loading, inheritance, merging, overrides, atomic writing."""

from pathlib import Path

import pytest

from simgnn.errors import ConfigError
from simgnn.tomlfile import deep_merge, inherited, leaves, load_toml, parse_override, write_toml


def no_system(name: str) -> Path | None:
    return None


def test_a_syntax_error_names_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.toml"
    file.write_text("seed = 0\n[train]\nepochs = = 3\n")
    with pytest.raises(ConfigError, match=r"broken\.toml: not valid TOML: .*line 3"):
        load_toml(file)


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_toml(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_toml(tmp_path / "binary.toml")
    with pytest.raises(ConfigError, match="is a folder, expected a regular file"):
        load_toml(tmp_path)


def test_extends_is_relative_to_the_file_and_ancestors_come_first(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "a.toml").write_text("seed = 1\n")
    (tmp_path / "b.toml").write_text('extends = "base/a.toml"\nseed = 2\n')
    layers = inherited(tmp_path / "b.toml", no_system)
    assert [layer.table for layer in layers] == [{"seed": 1}, {"seed": 2}]
    assert layers[0].folder == (tmp_path / "base").resolve()


def test_a_circle_of_extends_is_refused_with_the_chain(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b.toml"\n')
    (tmp_path / "b.toml").write_text('extends = "a.toml"\n')
    with pytest.raises(ConfigError, match=r"circle, .*a\.toml -> .*b\.toml -> .*a\.toml"):
        inherited(tmp_path / "a.toml", no_system)


@pytest.mark.parametrize("parent", ['"nowhere"', "3", '""', '["a", "b"]'])
def test_an_unknown_parent_is_refused(tmp_path: Path, parent: str) -> None:
    (tmp_path / "a.toml").write_text(f"extends = {parent}\n")
    with pytest.raises(ConfigError, match="extends: got"):
        inherited(tmp_path / "a.toml", no_system, ["vanilla"])


def test_a_misspelt_parent_is_told_the_system_that_was_meant(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "vanila"\n')
    with pytest.raises(ConfigError, match=r"did you mean 'vanilla'\?"):
        inherited(tmp_path / "a.toml", no_system, ["default", "vanilla"])


def test_merge_is_deep_and_leaves_its_arguments_alone() -> None:
    base = {"train": {"epochs": 1, "dtype": "float32"}, "seed": 0}
    merged = deep_merge(base, {"train": {"epochs": 2}})
    assert merged == {"train": {"epochs": 2, "dtype": "float32"}, "seed": 0}
    assert base["train"] == {"epochs": 1, "dtype": "float32"}


def test_another_kind_drops_the_options_of_the_old_one() -> None:
    base = {"codec": {"kind": "linear", "bits": 8}, "model": {"kind": "gcn", "layers": 3}}
    over = {"codec": {"kind": "none"}, "model": {"kind": "sage"}}
    merged = deep_merge(base, over, choices=("codec",))
    assert merged == {"codec": {"kind": "none"}, "model": {"kind": "sage", "layers": 3}}
    assert deep_merge(base, {"codec": {"kind": "linear"}}, choices=("codec",))["codec"] == {"kind": "linear", "bits": 8}


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("train.epochs=20", {"train": {"epochs": 20}}),
        ("train.learning_rate=1e-3", {"train": {"learning_rate": 1e-3}}),
        ("model.hidden=[64, 32]", {"model": {"hidden": [64, 32]}}),
        ("model.kind=sage", {"model": {"kind": "sage"}}),
        ('model.kind="sage"', {"model": {"kind": "sage"}}),
        ("communication.resend_inputs=true", {"communication": {"resend_inputs": True}}),
        ("graph.source=data/a=b.npz", {"graph": {"source": "data/a=b.npz"}}),
        ("name=", {"name": ""}),
        ("name=1\nseed=5", {"name": "1\nseed=5"}),
    ],
)
def test_an_override_is_toml_or_a_bare_word(text: str, table: dict[str, object]) -> None:
    assert parse_override(text) == table


@pytest.mark.parametrize("text", ["epochs", "=3", "train..epochs=3", "train.=3", ""])
def test_an_override_without_key_and_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        parse_override(text)


def test_writing_is_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "x.toml"
    write_toml(target, {"a": {"b": 1, "c": None}, "t": (1, 2)})
    assert load_toml(target) == {"a": {"b": 1}, "t": [1, 2]}
    with pytest.raises(TypeError):
        write_toml(target, {"a": object()})
    assert load_toml(target) == {"a": {"b": 1}, "t": [1, 2]}
    assert [path.name for path in tmp_path.iterdir()] == ["x.toml"]


def test_leaves_walk_in_order() -> None:
    assert list(leaves({"a": {"b": 1}, "c": [2]})) == [(("a", "b"), 1), (("c",), [2])]
