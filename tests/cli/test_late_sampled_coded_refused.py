"""Bad input of pipegcn, bnsgcn and adaqp: exit status 2, all faults in one message, and nothing written."""

from pathlib import Path

import pytest

from simgnn.cli.main import invoke
from tests.golden.cases import COMMON, HARDWARE

BATCHES = (
    "batching.kind=sampled", "batching.fanouts=[2,2]", "model.layers=2", "communication.kind=store",
    "placement.kind=store", "schedule.kind=prefetch", "model.order=auto",
)  # fmt: skip
REFUSED: dict[str, tuple[str, int, tuple[str, ...], tuple[str, ...]]] = {
    "a share above 1": ("bnsgcn", 2, ("freshness.p=1.01",), ("freshness.p",)),
    "a share below 0": ("bnsgcn", 2, ("freshness.p=-0.01",), ("freshness.p",)),
    "3 bits": ("adaqp", 2, ("codec.bits=3",), ("codec.bits",)),
    "16 bits": ("adaqp", 2, ("codec.bits=16",), ("codec.bits",)),
    "a word for bits": ("adaqp", 2, ("codec.bits=few",), ("codec.bits",)),
    "gamma of 1": ("pipegcn", 2, ("freshness.smooth_rows=true", "freshness.gamma=1"), ("freshness.gamma",)),
    "gamma below 0": ("pipegcn", 2, ("freshness.smooth_rows=true", "freshness.gamma=-0.5"), ("freshness.gamma",)),
    "a rate below 0": ("pipegcn", 2, ("train.learning_rate=-1",), ("train.learning_rate",)),
    "bits of one rank": ("adaqp", 1, (), ("codec.bits",)),
    "bits of one layer": ("adaqp", 2, ("model.layers=1", "communication.rows=input"), ("codec.bits",)),
    "no bytes between hosts": ("adaqp", 2, ("codec.between_hosts=0",), ("codec.between_hosts",)),
    "messages of fewer than 0 bytes": ("adaqp", 2, ("codec.message_bytes=-1",), ("codec.message_bytes",)),
    "links without bits to choose": (
        "adaqp", 2, ("codec.bits=8", "codec.between_hosts=2", "codec.message_bytes=1"),
        ("codec.between_hosts", "codec.message_bytes"),
    ),
    "late rows of mini-batches": ("pipegcn", 2, BATCHES, ("freshness.kind",)),
    "all faults of pipegcn": (
        "pipegcn", 2, ("freshness.gamma=1", "freshness.cold_start=ones", "train.learning_rate=-1"),
        ("freshness.gamma", "freshness.cold_start", "train.learning_rate"),
    ),
    "all faults of bnsgcn": (
        "bnsgcn", 2, ("freshness.p=2", "freshness.sampling=poisson", "train.epochs=0"),
        ("freshness.p", "freshness.sampling", "train.epochs"),
    ),
    "all faults of adaqp": (
        "adaqp", 2, ("codec.bits=5", "codec.group_size=0", "codec.lam=2", "codec.assign_period=0", "model.layers=0"),
        ("codec.bits", "codec.group_size", "codec.lam", "codec.assign_period", "model.layers"),
    ),
}  # fmt: skip
"""System, ranks, settings, and the keys that the message names."""


@pytest.mark.parametrize("command", ["simulate", "run"])
@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_as_a_whole(
    command: str, case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    system, ranks, settings, keys = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    words = [word for setting in (*COMMON, *settings) for word in ("--set", setting)]
    here = ["--hardware", str(HARDWARE)] if command == "simulate" else []
    assert invoke([command, system, "--ranks", str(ranks), *words, *here, "--out", "out"]) == 2
    message = capsys.readouterr().err
    assert [key for key in keys if f"{key}: got" not in message] == []
    assert "Traceback" not in message
    assert not list(tmp_path.iterdir()), "nothing is half-written"
