"""Files beside the graph's own in ``[graph]``: paths, tables of splits, and keys that nothing reads."""

import tomllib
from pathlib import Path

import pytest
import tomli_w

from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment

TEXT = """
[graph]
source = "e.csv"
features = "x/x.npy"
labels = "y.csv"
splits = { train = "s/train.csv", val = "s/val.csv" }
"""


def test_paths_start_at_the_file_and_survive_a_round_trip(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(TEXT)
    graph = load_experiment(tmp_path / "mine.toml").graph
    splits = {"train": f"{tmp_path}/s/train.csv", "validation": f"{tmp_path}/s/val.csv"}
    assert graph.options() == {"features": f"{tmp_path}/x/x.npy", "labels": f"{tmp_path}/y.csv", "splits": splits}
    other = load_experiment(tmp_path / "mine.toml", ['graph.features="z.npy"'])
    assert other.graph.features == str(Path.cwd() / "z.npy")
    again = Experiment.from_table(tomllib.loads(tomli_w.dumps(other.to_table())))
    assert again == other


def test_shares_keep_their_seed(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[graph]\nsplits = { train = 0.6, valid = 0.2, test = 0.2, seed = 3 }\n")
    splits = {"train": 0.6, "validation": 0.2, "test": 0.2, "seed": 3}
    assert load_experiment(tmp_path / "mine.toml").graph.options() == {"splits": splits}


@pytest.mark.parametrize(
    "keys",
    [
        "splits = 3",
        "splits = { train = 0.6, test = 0.6 }",
        "splits = { test = 0.6 }",
        "splits = { train = 0.6, test = 'test.csv' }",
        "splits = { train = 'train.csv', seed = 1 }",
        "splits = { train = 0.5, seed = -1 }",
        "splits = { train = nan }",
        "splits = { train = true }",
        "splits = { train = 0.5, val = 0.1, valid = 0.1 }",
        "splits = { train = 0.5, rest = 0.5 }",
        "splits = ''",
        "features = ''",
        "feature_columns = []\nfeatures = 'x.csv'",
        "feature_columns = ['a']",
        "label_column = 'a'",
        "id_column = 'a'",
        "id_column = 'a'\nfeatures = 'x.npy'\nsplits = { train = 0.5, test = 0.5 }",
        "source_column = 0",
        "ids = 'text'",
    ],
)
def test_faults_name_their_key(keys: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f"[graph]\n{keys}\n")
    with pytest.raises(ConfigError) as caught:
        load_experiment(tmp_path / "mine.toml")
    assert f"graph.{keys.split(' = ')[0]}: got " in str(caught.value)
    assert "<class" not in str(caught.value)
