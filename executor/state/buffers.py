"""The tensors behind a program's buffers: a flat list of slots, so that no op looks a name up while it runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from simgnn.errors import BackendError
from simgnn.program.ops import Access, Buffer
from simgnn.program.program import Program, Template, carried, remembered
from simgnn.program.sizes import Column, Decision, Size

Value = torch.Tensor | tuple[torch.Tensor, ...]
"""What a buffer holds: a tensor (dense or sparse CSR), or the parts of a sampled block."""


@dataclass(frozen=True, slots=True)
class Now:
    """The turn that an op runs in. ``count`` numbers training turns from 0; an evaluation has that of the epoch's last
    turn, and ``step`` -1."""

    epoch: int
    step: int
    count: int


Getter = Callable[[Now], torch.Tensor]
Setter = Callable[[Now, Value], None]

TORCH_TYPES: Mapping[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
}


class BufferStore:
    """Slots of one rank: one for a plain buffer, ``depth`` for a ring. ``constants``: buffers whose tensor the run
    provides and no op replaces (features, flat gradients). They are neither freed nor checkpointed."""

    def __init__(
        self, program: Program, rank: int, device: torch.device, constants: Mapping[str, Value] | None = None
    ) -> None:
        self.program = program
        self.rank = rank
        self.device = device
        self.values: list[Value | None] = []
        self._base: dict[str, int] = {}
        for buffer in program.buffers.values():
            self._base[buffer.name] = len(self.values)
            self.values += [None] * buffer.depth
        self.constants = frozenset(constants or {})
        for name, value in (constants or {}).items():
            if name in self._base:
                self.values[self._base[name]] = value
        self._rooms: dict[str, torch.Tensor] = {}
        self._reserved: dict[str, torch.Tensor] = {}
        self._carried = carried(program) | self.constants

    def slot(self, name: str) -> int:
        return self._base[name]

    def place(self, name: str) -> torch.device:
        """The device that holds a buffer's rows."""
        return self.device if self.program.buffers[name].space == "device" else torch.device("cpu")

    def getter(self, access: Access) -> Getter:
        """A function that returns what an access reads in a turn. In a ring, turns before the run read as zeros."""
        buffer, values, base = self.program.buffers[access.buffer], self.values, self._base[access.buffer]
        if buffer.depth == 1 and not access.steps_back and not access.epochs_back:
            return lambda now: values[base]  # type: ignore[return-value]
        index = self._ring(buffer, access)

        def get(now: Now) -> torch.Tensor:
            found = values[base + index(now)]
            return self.zeros(buffer, now) if found is None else found  # type: ignore[return-value]

        return get

    def setter(self, access: Access) -> Setter:
        """A function that stores a tensor where an access writes in a turn."""
        buffer, values, base = self.program.buffers[access.buffer], self.values, self._base[access.buffer]
        if buffer.depth == 1:
            return lambda now, value: values.__setitem__(base, value)
        index = self._ring(buffer, access)
        return lambda now, value: values.__setitem__(base + index(now), value)

    def _ring(self, buffer: Buffer, access: Access) -> Callable[[Now], int]:
        depth, steps = buffer.depth, self.program.calendar.steps
        if buffer.ring == "epoch":
            back = access.epochs_back
            return lambda now: (now.epoch - back) % depth
        back = access.steps_back + access.epochs_back * steps
        return lambda now: (now.count - back) % depth

    def rows(self, size: Size, now: Now) -> int:
        """A size on this rank in one turn; for a decision its upper bound."""
        if isinstance(size, Decision):
            size = size.bound
        if isinstance(size, Column):
            return int(self.program.sizes.per_rank(size, now.epoch, max(now.step, 0))[self.rank])
        return size

    def zeros(self, buffer: Buffer, now: Now) -> torch.Tensor:
        """The value of a buffer before its first write."""
        return self._zeros(buffer, self.rows(buffer.rows, now))

    def _zeros(self, buffer: Buffer, rows: int) -> torch.Tensor:
        return torch.zeros((rows, buffer.width), dtype=TORCH_TYPES[buffer.dtype], device=self.place(buffer.name))

    def room(self, name: str) -> torch.Tensor:
        """Memory of a plain buffer for the whole run, allocated at the first call, with what a checkpoint restored. A
        lasting buffer has a room for the most rows that it ever gets."""
        if name not in self._rooms:
            buffer, there = self.program.buffers[name], self.values[self._base[name]]
            if buffer.lasting or not isinstance(there, torch.Tensor):
                there = self._zeros(buffer, int(self.program.sizes.most(buffer.rows)[self.rank]))
            self._rooms[name] = there
        return self._rooms[name]

    def reserve(self, name: str) -> None:
        """Allocate a buffer's memory until its first write (:meth:`release`), so that earlier turns take as much memory
        as later ones."""
        if self.values[self._base[name]] is None and name not in self._reserved:
            self._reserved[name] = self.zeros(self.program.buffers[name], Now(0, 0, 0))

    def release(self, name: str) -> None:
        self._reserved.pop(name, None)

    def free_after(self, template: Template) -> list[tuple[int, ...]]:
        """For each op the slots whose value no later op reads, in program order."""
        last: dict[str, int] = {}
        for position, op in enumerate(template.ops):
            for access in op.reads + op.writes:
                last[access.buffer] = position
        result: list[list[int]] = [[] for _ in template.ops]
        for name, position in last.items():
            if name not in self._carried:
                result[position].append(self._base[name])
        return [tuple(slots) for slots in result]

    def state(self) -> dict[str, Value]:
        """What later turns need of this rank: the remembered buffers that ops have written, by name and copy."""
        found = {
            f"{name}#{copy}": self.values[self._base[name] + copy]
            for name in sorted(remembered(self.program) - self.constants)
            for copy in range(self.program.buffers[name].depth)
        }
        return {key: value for key, value in found.items() if value is not None}

    def load_state(self, state: Mapping[str, Value]) -> None:
        """Restore what :meth:`state` returned, in place where a copy has memory already."""
        slots = {
            f"{name}#{copy}": (name, self._base[name] + copy)
            for name, buffer in self.program.buffers.items()
            for copy in range(buffer.depth)
        }
        for key, value in state.items():
            if key not in slots:
                raise BackendError(
                    f"the checkpoint holds a buffer '{key}' that the program does not have: it belongs to another "
                    "program; start without --resume"
                )
            name, at = slots[key]
            there = self.values[at]
            if isinstance(there, torch.Tensor) and isinstance(value, torch.Tensor):
                there.copy_(value)
            else:
                self.values[at] = moved(value, self.place(name))


def moved(value: Value, device: torch.device) -> Value:
    """A buffer's value on a device; not copied where it lies there already."""
    return tuple(part.to(device) for part in value) if isinstance(value, tuple) else value.to(device)
