"""Bad input: exit status 2, one line a fault with key path and expectation, no traceback, nothing written."""

from pathlib import Path

import pytest

from simgnn.cli.main import invoke

GOOD = 'extends = "vanilla"\n[graph]\nsource = "synthetic:communities"\nvertices = 200\nedges = 800\n'

FILES = {
    "not toml": ("seed = = 1\n", ["not valid TOML", "line 1"]),
    "unclosed table": ("[train\nepochs = 1\n", ["not valid TOML", "line 1"]),
    "a key twice": ("seed = 1\nseed = 2\n", ["not valid TOML", "line 2"]),
    "unknown section": ("[trainn]\nepochs = 1\n", ["trainn: unknown key", "did you mean 'train'"]),
    "unknown key": ("[train]\nepoch = 1\n", ["train.epoch: unknown key", "did you mean 'epochs'"]),
    "section is no table": ("train = 3\n", ["train: got 3, expected a table: [train]"]),
    "slot is no table": ('codec = "none"\n', ["codec: got 'none', expected a table: [codec]"]),
    "section is an array of tables": ("[[model]]\nlayers = 2\n", ["model: got", "expected a table"]),
    "text for a number": ('[train]\nepochs = "ten"\n', ["train.epochs: got 'ten', expected a whole number >= 1"]),
    "digits as text": ('[train]\nepochs = "10"\n', ["train.epochs: got '10', expected a whole number"]),
    "fraction for a count": ("[train]\nepochs = 1.5\n", ["train.epochs: got 1.5, expected a whole number"]),
    "true for a count": ("[model]\nlayers = true\n", ["model.layers: got true, expected a whole number"]),
    "date for a count": ("[train]\nepochs = 2026-01-01\n", ["train.epochs: got 2026-01-01"]),
    "zero epochs": ("[train]\nepochs = 0\n", ["train.epochs: got 0, expected a whole number >= 1"]),
    "negative rate": ("[train]\nlearning_rate = -1\n", ["train.learning_rate: got -1, expected a number >= 0"]),
    "rate that is no number": ("[train]\nlearning_rate = nan\n", ["train.learning_rate: got nan, expected a number"]),
    "infinite rate": ("[train]\nlearning_rate = inf\n", ["train.learning_rate: got inf, expected a number >= 0"]),
    "negative decay": ("[train]\nweight_decay = -0.1\n", ["train.weight_decay: got -0.1, expected a number >= 0"]),
    "momentum of one": ('[train]\noptimizer = "sgd"\nmomentum = 1.0\n', ["train.momentum: got 1.0", "< 1"]),
    "momentum with adam": ("[train]\nmomentum = 0.9\n", ["train.momentum: got 0.9", "only sgd has momentum"]),
    "unknown optimizer": ('[train]\noptimizer = "adm"\n', ["train.optimizer: got 'adm'", "did you mean 'adam'"]),
    "unknown dtype": ('[train]\ndtype = "float16"\n', ["train.dtype: got 'float16', expected one of 'float32'"]),
    "no time to wait": ("[train]\ntimeout = 0\n", ["train.timeout: got 0, expected a number > 0"]),
    "negative seed": ("seed = -1\n", ["seed: got -1, expected a whole number >= 0"]),
    "seed too large": ("seed = 99999999999999999999\n", ["seed: got 99999999999999999999"]),
    "empty name": ('name = ""\n', ["name: got '', expected text that is not empty"]),
    "name that is a path": ('name = "a/../b"\n', ["name: got 'a/../b', expected a name of a folder"]),
    "unknown model": ('[model]\nkind = "gnc"\n', ["model.kind: got 'gnc', expected one of gcn, sage, gin"]),
    "heads that do not share a width": (
        '[model]\nkind = "gat"\nhidden = 30\n',
        ["model.hidden: got 30 with model.heads = 4, expected multiples"],
    ),
    "heads of another model": ("[model]\nheads = 2\n", ["model.heads: got 2 with model.kind = 'gcn', expected none"]),
    "attention before its transform": (
        '[model]\nkind = "gat"\norder = "aggregate-first"\n',
        ["model.order: got 'aggregate-first' with model.kind = 'gat'"],
    ),
    "no layers": ("[model]\nlayers = 0\n", ["model.layers: got 0, expected a whole number >= 1"]),
    "hidden of zero": ("[model]\nhidden = 0\n", ["model.hidden: got 0, expected a whole number >= 1"]),
    "hidden of text": ('[model]\nhidden = ["a"]\n', ["model.hidden: got ['a'], expected a whole number"]),
    "hidden list too long": ("[model]\nhidden = [8, 8]\n", ["model.hidden: got 2 widths, expected 1"]),
    "unknown order": ('[model]\norder = "aggregate"\n', ["model.order: got 'aggregate'", "'aggregate-first'"]),
    "gin transforms last": (
        '[model]\nkind = "gin"\norder = "transform-first"\n',
        ["model.order: got 'transform-first'", "not linear"],
    ),
    "unknown kind": ('[partition]\nkind = "mets"\n', ["partition.kind: got 'mets'", "did you mean 'metis'"]),
    "kind is a number": ("[partition]\nkind = 3\n", ["partition.kind: got 3, expected one of block-row"]),
    "kind not built yet": (
        '[placement]\nkind = "host-offload"\n',
        ["placement.kind: got 'host-offload'", "device"],
    ),
    "option of another kind": (
        '[partition]\nkind = "random"\nimbalance = 1.1\n',
        ["partition.imbalance: an option of partition.kind = 'metis' or", "'random' takes"],
    ),
    "imbalance below one": ("[partition]\nimbalance = 0.9\n", ["partition.imbalance: got 0.9, expected a number > 1"]),
    "unknown balance": ('[partition]\nbalance = ["rows"]\n', ["partition.balance: got ['rows']", "vertices"]),
    "empty balance": ("[partition]\nbalance = []\n", ["partition.balance: got []"]),
    "vertex-cut with halo": ('[partition]\nkind = "ebv"\n', ["partition.kind: got 'ebv'", "divides vertices"]),
    "constraints and imbalance": (
        '[partition]\nbalance = ["vertices", "edges"]\nimbalance = 1.1\n',
        ["partition.imbalance: got 1.1", "DGL's METIS sets its own"],
    ),
    "unknown rows": ('[communication]\nrows = "all"\n', ["communication.rows: got 'all', expected one of 'auto'"]),
    "text for true": ('[communication]\nresend_inputs = "yes"\n', ["communication.resend_inputs", "true or false"]),
    "transformed rows sent twice": (
        '[communication]\nrows = "transformed"\nresend_inputs = true\n',
        ["communication.resend_inputs: got true", "no input rows are sent"],
    ),
    "rows transformed too late": (
        '[communication]\nrows = "transformed"\n[model]\norder = "aggregate-first"\n',
        ["communication.rows: got 'transformed'", "aggregated before"],
    ),
    "no hosts": ("[cluster]\nhosts = 0\n", ["cluster.hosts: got 0, expected a whole number >= 1"]),
    "far too many ranks": ("[cluster]\nranks_per_host = 1000000\n", ["cluster.ranks_per_host: got 1000000"]),
    "threads of zero": ("[hardware]\nthreads_per_rank = 0\n", ["hardware.threads_per_rank: got 0", "'auto'"]),
    "unknown parent": ('extends = "vanila"\n', ["extends: got 'vanila', expected a shipped system"]),
    "its own parent": ('extends = "bad.toml"\n', ["extends: got a circle", "bad.toml -> "]),
    "empty source": ('[graph]\nsource = ""\n', ["graph.source: got '', expected text that is not empty"]),
    "number as source": ("[graph]\nsource = 3\n", ["graph.source: got 3, expected text"]),
    "one class": ("[graph]\nclasses = 1\n", ["graph.classes: got 1, expected a whole number >= 2"]),
    "options with statistics": (
        '[graph]\nsource = "stats:x.toml"\nvertices = 3\n',
        ["graph.vertices: got 3", "a statistics file"],
    ),
}

OVERRIDES = {
    "no value": (["--set", "train.epochs"], ["--set train.epochs", "expected for example --set train.epochs=20"]),
    "no key": (["--set", "=3"], ["--set =3", "key=value"]),
    "unknown key": (["--set", "train.epoch=3"], ["--set: train.epoch: unknown key", "did you mean 'epochs'"]),
    "bad value": (["--set", "train.epochs=few"], ["--set: train.epochs: got 'few', expected a whole number"]),
    "too deep": (["--set", "train.epochs.x=3"], ["train.epochs: got a table, expected a whole number"]),
    "extends": (["--set", "extends=vanilla"], ["--set extends", "inside an experiment file"]),
    "no ranks": (["--ranks", "0"], ["--ranks: cluster.ranks_per_host: got 0, expected a whole number >= 1"]),
    "negative ranks": (["--ranks", "-3"], ["--ranks: cluster.ranks_per_host: got -3"]),
    "no epochs": (["--epochs", "0"], ["--epochs: train.epochs: got 0, expected a whole number >= 1"]),
    "text for ranks": (["--ranks", "two"], ["--ranks", "integer"]),
    "unknown option": (["--rank", "2"], ["--rank"]),
    "activity": (["--activity", "somewhere"], ["--activity: got somewhere", "finished `simgnn run`"]),
    "unknown profile": (["--hardware", "nowhere-9000"], ["nowhere-9000"]),
    "more ranks than vertices": (["--ranks", "300"], ["cluster.ranks_per_host: got 300 ranks", "at most 200"]),
}

GRAPHS = {
    "no such file": ("absent.npz", {}, ["absent.npz"]),
    "unknown kind of file": ("graph.xyz", {"graph.xyz": b"1"}, ["graph.xyz"]),
    "unknown generator": ("synthetic:comunities", {}, ["synthetic:communities"]),
    "unknown scheme": ("gdl:x.bin", {}, ["gdl:x.bin"]),
    "empty edge list": ("graph.csv", {"graph.csv": b""}, ["graph.csv"]),
    "a vertex that is no number": ("graph.csv", {"graph.csv": b"0,1\n1,two\n"}, ["graph.csv"]),
    "a negative vertex": ("graph.csv", {"graph.csv": b"0,1\n1,-2\n"}, ["-2"]),
    "not an archive": ("graph.npz", {"graph.npz": b"not a zip file"}, ["graph.npz"]),
    "not a matrix": ("graph.mtx", {"graph.mtx": b"hello\n"}, ["graph.mtx"]),
    "not a table": ("graph.parquet", {"graph.parquet": b"hello"}, ["graph.parquet"]),
    "no labels": ("graph.csv", {"graph.csv": b"0,1\n1,2\n"}, ["no features", "stand_in_features"]),
    "data set that is not there": ("ogb:ogbn-nowhere", {}, ["ogbn-nowhere"]),
    "option that a file has not": ("graph.csv", {"graph.csv": b"0,1\n"}, ["graph.feature_width"]),
}


def check(arguments: list[str], expected: list[str], out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in out.parent.rglob("*") if path.is_file()}
    assert invoke([*arguments, "--out", str(out)]) == 2
    told = capsys.readouterr()
    # the library of the command line draws its own usage errors in a box
    message = " ".join(told.err.replace("│", " ").split())
    for part in expected:
        assert part in message
    assert "Traceback" not in told.err
    assert told.out == ""
    assert {path: path.read_bytes() for path in out.parent.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", ["simulate", "run"])
def test_a_malformed_experiment_is_refused(
    name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, expected = FILES[name]
    (tmp_path / "bad.toml").write_text(text)
    check([command, str(tmp_path / "bad.toml")], expected, tmp_path / "out", capsys)


@pytest.mark.parametrize("name", OVERRIDES)
def test_a_malformed_command_line_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, expected = OVERRIDES[name]
    (tmp_path / "good.toml").write_text(GOOD)
    check(["simulate", str(tmp_path / "good.toml"), *arguments], expected, tmp_path / "out", capsys)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_malformed_graph_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, files, expected = GRAPHS[name]
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    width = "feature_width = 4\n" if expected == ["graph.feature_width"] else ""
    (tmp_path / "e.toml").write_text(f'[graph]\nsource = "{source}"\n{width}')
    check(["run", str(tmp_path / "e.toml"), "--ranks", "2"], expected, tmp_path / "out", capsys)


def test_an_unknown_experiment_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = [
        "EXPERIMENT: got 'vanila', expected a TOML file or the name of a shipped system",
        "did you mean 'vanilla'",
    ]
    check(["simulate", "vanila"], expected, tmp_path / "out", capsys)


@pytest.mark.parametrize(
    ("name", "meant"), [("nope.toml", ""), ("vanila.toml", "did you mean 'vanilla'"), ("no/e", "")]
)
def test_an_experiment_file_that_is_missing_is_called_missing(
    name: str, meant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = [f"EXPERIMENT: got '{name}', but {tmp_path / name} does not exist", meant]
    check(["simulate", name], expected, tmp_path / "out", capsys)


def test_training_on_statistics_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "stats.toml").write_text('[graph]\nsource = "stats:x.toml"\n')
    expected = ["graph.source: got 'stats:", "not trained on"]
    check(["run", str(tmp_path / "stats.toml"), "--ranks", "2"], expected, tmp_path / "out", capsys)


def test_a_folder_that_is_not_a_run_directory_is_never_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.toml").write_text(GOOD)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    check(["simulate", str(tmp_path / "good.toml")], ["--out: got", "which is not empty"], tmp_path / "out", capsys)
    check(
        ["simulate", str(tmp_path / "good.toml"), "--force"], ["not an earlier run directory"], tmp_path / "out", capsys
    )
    (tmp_path / "file").write_text("mine")
    check(["simulate", str(tmp_path / "good.toml")], ["which is a file"], tmp_path / "file", capsys)
