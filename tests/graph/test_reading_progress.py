"""Readers of whole files report how far they are, by bytes of the file that were read."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from simgnn import progress
from simgnn.graph.load import load_graph
from simgnn.graph.readers import ogb as ogb_reader
from simgnn.progress import CountedFile, Counter, Progress

VERTICES = 60_000


class _Seen(Counter):
    """A counter that keeps the places that it is told."""

    def __init__(self, total: int) -> None:
        super().__init__("", total)
        self.total, self.places = total, [0]

    def at(self, done: int, detail: str = "", total: int | None = None) -> None:
        self.places.append(done)


class _Watched(Progress):
    """Keeps by name what was counted."""

    def __init__(self) -> None:
        super().__init__()
        self.work: dict[str, _Seen] = {}

    @contextmanager
    def counting(self, text: str, total: int, share: bool = False, patient: bool = False) -> Iterator[Counter]:
        self.work[text] = _Seen(total)
        yield self.work[text]


def path_graph() -> tuple[np.ndarray, np.ndarray]:
    return np.arange(VERTICES - 1), np.arange(1, VERTICES)


def npz(folder: Path, packed: bool = False) -> str:
    features = np.random.default_rng(0).standard_normal((VERTICES, 8), dtype=np.float32)
    save = np.savez_compressed if packed else np.savez
    indptr = np.concatenate((np.arange(VERTICES), [VERTICES - 1]))
    save(folder / "g.npz", indptr=indptr, indices=np.arange(1, VERTICES), feat=features)
    return str(folder / "g.npz")


def pyg(folder: Path, packed: bool = True) -> str:
    data = {"edge_index": torch.from_numpy(np.stack(path_graph())), "x": torch.randn(VERTICES, 8)}
    torch.save(data, folder / "g.pt", _use_new_zipfile_serialization=packed)
    return str(folder / "g.pt")


def ogb(folder: Path) -> str:
    raw = folder / "dataset" / "ogbn_arxiv" / "raw"
    raw.mkdir(parents=True)
    rows = np.random.default_rng(0).integers(0, VERTICES, (600_000, 2))
    with gzip.open(raw / "edge.csv.gz", "wt") as stream:
        np.savetxt(stream, rows, "%d", ",")
    (raw / "num-node-list.csv.gz").write_bytes(gzip.compress(f"{VERTICES}\n".encode()))
    return "ogb:ogbn-arxiv"


SOURCES = {
    "npz": npz,
    "packed npz": lambda folder: npz(folder, packed=True),
    "pt": pyg,
    "ogb": ogb,
}


@pytest.mark.parametrize("kind", SOURCES)
def test_progress_is_the_share_of_the_file_that_was_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PIECE_BYTES", 1 << 16)
    # pyarrow reads up to 32 blocks ahead, so the file has many more
    monkeypatch.setattr(ogb_reader, "BLOCK_BYTES", 1 << 16)
    source, watched = SOURCES[kind](tmp_path), _Watched()
    graph = load_graph(source, base=tmp_path, progress=watched)
    assert graph.vertices == VERTICES
    (text,) = [text for text in watched.work if text.endswith(("g.npz", "g.pt", "edge.csv.gz"))]
    seen = watched.work[text]
    assert seen.places == sorted(seen.places)
    assert 0.95 * seen.total <= seen.places[-1] <= seen.total
    assert max(np.diff(seen.places)) <= 0.9 * seen.total, "not all at once"


def test_a_file_of_the_old_format_of_torch_is_read(tmp_path: Path) -> None:
    assert load_graph(pyg(tmp_path, packed=False), progress=_Watched()).vertices == VERTICES


def test_a_counted_file_reads_what_a_file_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PIECE_BYTES", 7)
    content = bytes(range(200))
    (tmp_path / "f").write_bytes(content)
    places: list[int] = []
    with CountedFile(tmp_path / "f", places.append) as stream:
        assert stream.read(3) + stream.read(50) == content[:53]
        buffer = bytearray(60)
        assert stream.readinto(buffer) == 60
        assert buffer == content[53:113]
        assert stream.read() == content[113:]
        assert (stream.read(5), stream.readinto(bytearray(5))) == (b"", 0)
        stream.seek(190)
        assert stream.read(99) == content[190:]
    assert places == sorted(places)
    assert places[-1] == 200
