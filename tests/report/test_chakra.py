"""Execution traces of Chakra, read back with the schema of the package mlc-chakra: nodes, edges, bytes, durations."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simgnn
from simgnn.cli.main import invoke
from simgnn.program.kinds import PAIRWISE_KINDS
from simgnn.program.program import Program
from simgnn.program.storage import load_program
from simgnn.record.rundir import TRACE_SCHEMA, RunDirectory, read_table

PROFILE = "cpu-100gbe-8"
SYSTEMS = {"vanilla": "exchanges", "cagnet": "broadcasts", "distdgl": "fetches, several steps"}


def read_trace(path: Path) -> tuple[Any, list[Any]]:
    """The metadata and nodes of a file, by Chakra's own generated classes."""
    schema = pytest.importorskip("chakra.schema.protobuf.et_def_pb2", reason="needs mlc-chakra")
    found = list(pieces(path.read_bytes()))
    metadata = schema.GlobalMetadata()
    metadata.ParseFromString(found[0])
    nodes = []
    for piece in found[1:]:
        node = schema.Node()
        node.ParseFromString(piece)
        nodes.append(node)
    return metadata, nodes


def pieces(data: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(data):
        length = shift = 0
        while True:
            byte = data[place]
            place += 1
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        yield data[place : place + length]
        place += length


def attributes(node: Any) -> dict[str, Any]:
    return {one.name: getattr(one, one.WhichOneof("value")) for one in node.attr}


def check_traces(folder: Path, directory: Path, epoch: int) -> None:
    """Compare the traces of an epoch with the trace of the run directory."""
    run = RunDirectory(directory)
    program: Program = load_program(run.plan)
    table = read_table(run.trace, TRACE_SCHEMA).to_pandas()
    table = table[(table["epoch"] == epoch) & (table["step"] >= 0)]
    ops = [op for _, op in program.ops]
    sent, received = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for rank in range(program.ranks):
        metadata, nodes = read_trace(folder / f"trace.{rank}.et")
        assert metadata.version
        mine = table[table["rank"] == rank]
        kinds = [ops[op_id].kind for op_id in mine["op_id"]]
        plain = [kind not in PAIRWISE_KINDS for kind in kinds]
        others = [node for node in nodes if node.type not in (5, 6)]
        assert len(others) == sum(plain), "a node for each op that is no message"
        numbers = [node.id for node in nodes]
        assert len(set(numbers)) == len(numbers)
        for node in nodes:
            assert all(before in numbers and before < node.id for before in [*node.data_deps, *node.ctrl_deps])
        lasted = np.where(
            [ops[op_id].kind.value in ("allreduce", "broadcast", "allgather", "barrier") for op_id in mine["op_id"]],
            mine["ended_s"] - mine["started_s"], mine["ended_s"] - mine["issued_s"],
        )  # fmt: skip
        told = sum(node.duration_micros for node in others) / 1e6
        assert told == pytest.approx(lasted[np.array(plain, dtype=bool)].sum(), abs=0.5e-6 * max(len(others), 1) + 1e-9)
        for node in nodes:
            found = attributes(node)
            if node.type in (5, 6):
                pair = (found["comm_src"], found["comm_dst"])
                assert rank == pair[0 if node.type == 5 else 1]
                (sent if node.type == 5 else received)[pair] += found["comm_size"]
    assert sent == received
    by_rank = Counter[int]()
    for (source, _), nbytes in sent.items():
        by_rank[source] += nbytes
    counted = table.groupby("rank")["bytes_sent"].sum()
    assert [by_rank[rank] for rank in range(program.ranks)] == counted.tolist()


@pytest.mark.parametrize("system", SYSTEMS)
def test_traces_hold_all_work_and_all_bytes(system: str, tmp_path: Path) -> None:
    sizes = {"graph.vertices": 600, "graph.edges": 4000, "train.epochs": 3}
    directory = tmp_path / "predicted"
    simgnn.simulate(system, ranks=3, hardware=PROFILE, set=sizes, out=directory)
    assert invoke(["export", str(directory), "--to", "chakra", "--epoch", "2", "--out", str(tmp_path / "traces")]) == 0
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == [f"trace.{rank}.et" for rank in range(3)]
    check_traces(tmp_path / "traces", directory, 1)


def test_traces_of_a_run_and_what_is_refused(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = tmp_path / "run", tmp_path / "traces"
    simgnn.run(small, ranks=2, out=run)
    assert invoke(["export", str(run), "--to", "chakra", "--out", str(out), "--epoch", "3"]) == 0
    check_traces(out, run, 2)
    capsys.readouterr()
    refused = {
        "which is not empty": ["export", str(run), "--to", "chakra", "--out", str(out)],
        "does not hold": ["export", str(run), "--to", "chakra", "--out", f"{tmp_path}/x", "--epoch", "99"],
        "--weights, --force": ["export", str(run), "--to", "chakra", "--out", f"{tmp_path}/x", "--force"],
        "expected it with --to chakra": [
            "export",
            str(run),
            "--to",
            "pyg",
            "--out",
            "m.py",
            "--epoch",
            "1",
        ],
    }
    for told, words in refused.items():
        assert invoke(words) == 2
        assert told in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
