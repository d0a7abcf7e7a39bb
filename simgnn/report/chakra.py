"""A program with the times of a prediction or run as execution traces of MLCommons Chakra: one file for each rank,
which network simulators of others replay.

A file holds length-delimited protobuf messages: the metadata, then the nodes of one training epoch. The messages
are declared here, with the field numbers of Chakra's schema (et_def.proto, version 0.0.4 of the format), so that
protobuf alone is needed. Work is a compute node with its duration; a collective one node on each of its ranks;
an exchange, fetch or peer read a send node for each peer that gets bytes and a receive node for each that brings some,
with the same tag. A node depends on the nodes of the ops that its op waits for, and on those of the op before it on its
stream. Headers and waits are not nodes: they follow from the replay.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.program.calendar import Turn
from simgnn.program.kinds import COLLECTIVE_KINDS, PAIRWISE_KINDS, OpKind
from simgnn.program.program import Program
from simgnn.program.sizes import IntArray
from simgnn.sim.engine.compiled import Compiled, CompiledOp, compile_program
from simgnn.sim.engine.sent_bytes import handed_bytes, sent_by
from simgnn.sim.engine.turn_sizes import Activity, Sizes

VERSION = "0.0.4"
COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
"""Types of nodes, as Chakra numbers them."""
COMM_TYPE: Mapping[OpKind, int] = MappingProxyType(
    {OpKind.ALLREDUCE: 0, OpKind.ALLGATHER: 2, OpKind.BROADCAST: 5, OpKind.BARRIER: 9}
)
"""Collectives, as Chakra numbers them."""
MICROSECONDS = 1e6
Trace = Mapping[str, NDArray[Any]]


@dataclass
class Node:
    """A node of a rank's trace. ``ctrl``: the node before it on its stream; ``data``: nodes of the ops it waits for."""

    number: int
    name: str
    kind: int
    duration_s: float
    data: list[int]
    ctrl: list[int]
    attributes: dict[str, int | bool | str] = field(default_factory=dict)


def rank_nodes(program: Program, trace: Trace, epoch: int, activity: Activity | None = None) -> list[list[Node]]:
    """Return the nodes of each rank in a training epoch. ``trace``: columns of ``TRACE_SCHEMA``; ``activity``: the
    decisions of the run. Raises :class:`ConfigError` for an epoch that the trace lacks."""
    compiled, sizes = compile_program(program), Sizes(program, activity or {})
    mine = (trace["epoch"] == epoch) & (trace["step"] >= 0)
    if not mine.any():
        raise ConfigError(f"--epoch: got {epoch + 1}, which the trace does not hold; expected one of its epochs")
    table = {name: trace[name][mine] for name in ("rank", "step", "op_id", "issued_s", "started_s", "ended_s")}
    order = np.lexsort((table["op_id"], table["step"]))
    rows = zip(*(table[name][order].tolist() for name in table), strict=True)
    makers = [_Maker(compiled, sizes, epoch, rank) for rank in range(program.ranks)]
    for rank, step, op_id, issued_s, started_s, ended_s in rows:
        makers[rank].add(step, op_id, ended_s - issued_s, ended_s - started_s)
    return [maker.nodes for maker in makers]


class _Maker:
    """Makes the nodes of one rank, op by op in the order of steps and of the program."""

    def __init__(self, compiled: Compiled, sizes: Sizes, epoch: int, rank: int) -> None:
        self.nodes: list[Node] = []
        self._sizes, self._epoch, self._rank = sizes, epoch, rank
        self._ops = {op.op_id: (op, name) for name, template in compiled.templates.items() for op in template.ops}
        self._of_op: dict[tuple[int, str], list[int]] = {}
        self._last: dict[str, list[int]] = {}

    def add(self, step: int, op_id: int, lasted_s: float, transfer_s: float) -> None:
        """Add an op that took ``lasted_s`` from its issue, of which ranks transferred for ``transfer_s``."""
        compiled, template = self._ops[op_id]
        op = compiled.op
        parents = [node for name, back in compiled.parents for node in self._of_op.get((step - back, name), [])]
        data, ctrl = sorted(set(parents)), self._last.get(op.stream, [])
        turn = Turn(self._epoch, step, template)
        made: list[int] = []
        if op.kind in PAIRWISE_KINDS:
            for kind, peer, nbytes in self._messages(compiled, turn):
                ends = (self._rank, peer) if kind == SEND else (peer, self._rank)
                sizes: dict[str, Any] = {
                    "comm_size": nbytes,
                    "comm_src": ends[0],
                    "comm_dst": ends[1],
                    "comm_tag": self._tag(step, op_id),
                }
                made.append(self._node(op.name, kind, transfer_s, data, ctrl, sizes))
        elif op.kind in COLLECTIVE_KINDS:
            nbytes = int(handed_bytes(self._sizes, compiled, turn).max(initial=0))
            team = compiled.members[int(compiled.team[self._rank])]
            told: dict[str, Any] = {
                "comm_type": COMM_TYPE[op.kind],
                "comm_size": nbytes,
                "pg_name": ",".join(map(str, team)),
            }
            if op.kind is OpKind.BROADCAST and op.root is not None:
                told["root"] = op.root
            made.append(self._node(op.name, COLLECTIVE, transfer_s, data, ctrl, told))
        else:
            made.append(self._node(op.name, COMPUTE, lasted_s, data, ctrl, {}))
        self._of_op[step, op.name] = made or data
        if made:
            self._last[op.stream] = made

    def _node(
        self, name: str, kind: int, seconds: float, data: list[int], ctrl: list[int], told: dict[str, Any]
    ) -> int:
        number = len(self.nodes) + 1
        attributes = {"is_cpu_op": False, **told}
        self.nodes.append(Node(number, name, kind, seconds, list(data), list(ctrl), attributes))
        return number

    def _tag(self, step: int, op_id: int) -> int:
        """A number of the call that both ends know."""
        return step * len(self._ops) + op_id

    def _messages(self, compiled: CompiledOp, turn: Turn) -> Iterator[tuple[int, int, int]]:
        """Yield (type, peer, bytes) of all messages that the rank sends and receives."""
        nbytes: IntArray = sent_by(self._sizes, compiled, turn).nbytes
        for kind, row in ((SEND, nbytes[self._rank]), (RECEIVE, nbytes[:, self._rank])):
            for peer in np.flatnonzero(row).tolist():
                yield kind, peer, int(row[peer])


def write_chakra(nodes: Sequence[Sequence[Node]], folder: Path, facts: Mapping[str, str]) -> list[Path]:
    """Write the nodes of each rank to ``folder``/trace.RANK.et, which must be new. ``facts``: of the metadata.

    Raises :class:`ConfigError` without protobuf."""
    messages = _messages()
    paths = []
    for rank, of_rank in enumerate(nodes):
        path = folder / f"trace.{rank}.et"
        with path.open("xb") as file:
            metadata = messages["GlobalMetadata"](version=VERSION)
            for name, text in {**facts, "rank": str(rank)}.items():
                metadata.attr.add(name=name, string_val=text)
            _delimited(file, metadata)
            for one in of_rank:
                _delimited(file, _message(messages["Node"], one))
        paths.append(path)
    return paths


def _message(make: Any, node: Node) -> Any:
    message = make(
        id=node.number, name=node.name, type=node.kind, ctrl_deps=node.ctrl, data_deps=node.data,
        duration_micros=round(node.duration_s * MICROSECONDS),
    )  # fmt: skip
    for name, value in node.attributes.items():
        which = "bool_val" if isinstance(value, bool) else "int64_val" if isinstance(value, int) else "string_val"
        message.attr.add(name=name, **{which: value})
    return message


def _delimited(file: Any, message: Any) -> None:
    """Write a message behind its length, a base-128 varint."""
    content = message.SerializeToString()
    length = len(content)
    while length > 127:
        file.write(bytes([length & 127 | 128]))
        length >>= 7
    file.write(bytes([length]))
    file.write(content)


@cache
def _messages() -> Mapping[str, Any]:
    """Declare the messages of Chakra's schema that traces use, with their field numbers."""
    try:
        # protobuf: an extra, loaded when a trace is written
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise ConfigError(
            "--to chakra: needs protobuf, which is not installed: pip install 'simgnn[chakra]'"
        ) from error

    kinds = descriptor_pb2.FieldDescriptorProto
    package = "ChakraProtoMsg"
    file = descriptor_pb2.FileDescriptorProto(name="simgnn_chakra.proto", package=package, syntax="proto3")

    def message(name: str, fields: Mapping[str, tuple[int, int, bool, str]], one_of: str = "") -> None:
        made = file.message_type.add(name=name)
        if one_of:
            made.oneof_decl.add(name=one_of)
        for called, (number, kind, repeated, of) in fields.items():
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            added = made.field.add(name=called, number=number, type=kind, label=label)
            if of:
                added.type_name = f".{package}.{of}"
            if one_of and called.endswith("_val"):
                added.oneof_index = 0

    text, whole, flag = kinds.TYPE_STRING, kinds.TYPE_UINT64, kinds.TYPE_BOOL
    values = {"int64_val": (9, kinds.TYPE_INT64, False, ""), "bool_val": (27, flag, False, "")}
    message(
        "AttributeProto", {"name": (1, text, False, ""), **values, "string_val": (29, text, False, "")}, one_of="value"
    )
    attribute = (kinds.TYPE_MESSAGE, True, "AttributeProto")
    message("GlobalMetadata", {"version": (1, text, False, ""), "attr": (2, *attribute)})
    types = file.enum_type.add(name="NodeType")
    names = ("INVALID", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL")
    for number, name in enumerate(names):
        types.value.add(name=f"{name}_NODE", number=number)
    message(
        "Node",
        {
            "id": (1, whole, False, ""),
            "name": (2, text, False, ""),
            "type": (3, kinds.TYPE_ENUM, False, "NodeType"),
            "ctrl_deps": (4, whole, True, ""),
            "data_deps": (5, whole, True, ""),
            "duration_micros": (7, whole, False, ""),
            "attr": (10, *attribute),
        },
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in ("AttributeProto", "GlobalMetadata", "Node")
    }
