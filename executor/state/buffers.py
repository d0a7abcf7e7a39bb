"""The tensors of a program's buffers, in a flat list of slots, so that no op looks up a name while it runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from simgnn.errors import BackendError, ConfigError
from simgnn.program.ops import Access, Buffer, Part
from simgnn.program.program import Program, Template, carried, remembered
from simgnn.program.sizes import Column, Decision, Size

Value = torch.Tensor | tuple[torch.Tensor, ...]
"""What a buffer holds: a tensor (dense or sparse CSR), or the parts of a sampled block. The edges that an epoch keeps
are an object of the model's (:class:`executor.layers.kept.KeptHalo`), which ops hand on as they found it."""


@dataclass(frozen=True, slots=True)
class Now:
    """The turn that an op runs in: a training step, or one of an evaluation (``step`` negative). ``count`` numbers
    training steps of the run from 0; an evaluation counts on from its epoch's last step, whose number is that of its
    own first step."""

    epoch: int
    step: int
    count: int


Getter = Callable[[Now], torch.Tensor]
Setter = Callable[[Now, Value | None], None]

TORCH_TYPES: Mapping[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
}


class BufferStore:
    """The tensors of one rank's buffers: one slot for a plain buffer, ``depth`` slots for a ring of copies.
    ``constants``: buffers whose tensor no op replaces, or only by that of another one (features, flat gradients); never
    freed or checkpointed. ``mapped``: memory of all copies of other buffers, as zeros, into which rows are copied."""

    def __init__(
        self, program: Program, rank: int, device: torch.device, constants: Mapping[str, Value] | None = None,
        mapped: Mapping[str, Sequence[torch.Tensor]] | None = None,
    ) -> None:  # fmt: skip
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
        names = (mapped or {}).keys() - self.constants
        self._mapped = {self._base[name] + copy: one for name in names for copy, one in enumerate((mapped or {})[name])}
        self._rooms: dict[str, torch.Tensor] = {}
        self._reserved: dict[str, torch.Tensor] = {}
        self._carried = carried(program) | self.constants | names
        accesses = (access for _, op in program.ops for access in op.reads + op.writes)
        self._in_place = names | {access.buffer for access in accesses if access.part is not None}

    def slot(self, name: str) -> int:
        return self._base[name]

    def place(self, name: str) -> torch.device:
        """The device that holds a buffer's rows."""
        return self.device if self.program.buffers[name].space == "device" else torch.device("cpu")

    def getter(self, access: Access) -> Getter:
        """Return a function that reads a buffer in a turn. In a ring, copies never written read as zeros. A range of
        rows is a view of them; listed rows are gathered."""
        if access.part is not None:
            memory, rows = self.memory(access), self.selection(access.part)
            return lambda now: picked(memory(now), rows(now))
        buffer, values, base = self.program.buffers[access.buffer], self.values, self._base[access.buffer]
        if buffer.depth == 1 and not access.steps_back and not access.epochs_back:
            return lambda now: values[base]  # type: ignore[return-value]
        index = self._ring(buffer, access)

        def get(now: Now) -> torch.Tensor:
            found = values[base + index(now)]
            return self.zeros(access, now) if found is None else found  # type: ignore[return-value]

        return get

    def setter(self, access: Access) -> Setter:
        """Return a function that stores a tensor as the value of a buffer in a turn; None drops the value. A part of a
        buffer gets the tensor's rows, on whatever device these lie."""
        if access.part is not None:
            return self._part_setter(access, access.part)
        buffer, values, base = self.program.buffers[access.buffer], self.values, self._base[access.buffer]
        index = self._ring(buffer, access)
        if base in self._mapped:
            return lambda now, value: self._copy_in(base + index(now), access.buffer, value)
        if self._in_place:
            return lambda now, value: values.__setitem__(at := base + index(now), self._apart(value, at))
        if buffer.depth == 1:
            return lambda now, value: values.__setitem__(base, value)
        return lambda now, value: values.__setitem__(base + index(now), value)

    def _copy_in(self, slot: int, name: str, value: Value | None) -> None:
        """Copy the rows of a buffer into its mapping; a value that is dropped stays there."""
        if value is None:
            return
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            raise BackendError(
                f"buffer '{name}' lies in a mapping, which holds dense rows alone; prepare the run again"
            )
        rows = self._mapped[slot][: len(value)]
        self.values[slot] = rows
        if rows.data_ptr() != value.data_ptr():
            rows.copy_(value.reshape(rows.shape))

    def _apart(self, value: Value | None, slot: int) -> Value | None:
        """Return the value of a slot, copied if it is a view of another buffer of which ops write parts, or one in a
        mapping: these change its rows in place, whereas other buffers get another tensor when they are written."""
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        place = value.untyped_storage().data_ptr()
        for name in self._in_place:
            begin = self._base[name]
            for at in range(begin, begin + self.program.buffers[name].depth):
                held = self.values[at]
                if at != slot and isinstance(held, torch.Tensor) and held.untyped_storage().data_ptr() == place:
                    return value.clone()
        return value

    def changed_rows(self, access: Access) -> Getter:
        """Return a function that gives the rows of a buffer, or a range of them, to change in place."""
        if access.part is not None and access.part.places:
            raise BackendError(f"listed rows of buffer '{access.buffer}' cannot be changed in place by this kind of op")
        return self.getter(access)

    def selection(self, part: Part) -> Callable[[Now], slice | torch.Tensor]:
        """Return a function of the turn that selects the rows of a part: a range of rows, or their list."""
        first, rows = (self._by_step(size) for size in (part.first, part.rows))

        def span(now: Now) -> slice:
            begin = first(now)
            return slice(begin, begin + rows(now))

        if not part.places:
            return span
        listed = self.getter(Access(part.places))
        return lambda now: listed(now)[span(now)].flatten()

    def memory(self, access: Access) -> Getter:
        """Return a function that gives the whole copy of a buffer of which an access touches a part. It lies there from
        the first such access on, zeros at first."""
        buffer, values, base = self.program.buffers[access.buffer], self.values, self._base[access.buffer]
        index = self._ring(buffer, access)

        def memory(now: Now) -> torch.Tensor:
            at = base + index(now)
            if values[at] is None:
                there = self._mapped.get(at)
                values[at] = self._zeros(buffer, self.rows(buffer.rows, now)) if there is None else there
            return values[at]  # type: ignore[return-value]

        if width := 0 if access.part is None else access.part.width:
            return lambda now: narrowed(memory(now), width)
        return memory

    def _part_setter(self, access: Access, part: Part) -> Setter:
        memory, rows = self.memory(access), self.selection(part)

        def put(now: Now, value: Value | None) -> None:
            assert isinstance(value, torch.Tensor), f"a part of buffer '{access.buffer}' cannot be dropped or sparse"
            whole, chosen = memory(now), rows(now)
            count = chosen.stop - chosen.start if isinstance(chosen, slice) else len(chosen)
            if len(value) != count:
                raise BackendError(
                    f"epoch {now.epoch + 1}, step {now.step + 1}: {len(value)} rows for a part of buffer "
                    f"'{access.buffer}' that has {count}; prepare the run again"
                )
            value = value.reshape(count, *whole.shape[1:])
            if isinstance(chosen, slice):
                whole[chosen].copy_(value, non_blocking=value.device.type == "cpu" and value.is_pinned())
            else:
                whole.index_copy_(0, chosen, value.to(whole.device))

        return put

    def _by_step(self, size: int | Column) -> Callable[[Now], int]:
        """Return a function that looks up a size on this rank in a turn."""
        column = self.program.sizes.columns[size.name] if isinstance(size, Column) else None
        if column is None or column.ndim == 1:
            constant = size if isinstance(size, int) else int(self.program.sizes.columns[size.name][self.rank])
            return lambda now: constant
        if column.ndim == 2:
            numbers = column[self.rank].tolist()
            return lambda now: int(numbers[now.step])
        return lambda now: self.rows(size, now)

    def _ring(self, buffer: Buffer, access: Access) -> Callable[[Now], int]:
        depth, steps = buffer.depth, self.program.calendar.steps
        if buffer.ring == "epoch":
            back = access.epochs_back
            return lambda now: (now.epoch - back) % depth
        back = access.steps_back + access.epochs_back * steps
        return lambda now: (now.count - back) % depth

    def rows(self, size: Size, now: Now) -> int:
        """Return a number of rows on this rank in one turn; if a policy decides it, its upper bound."""
        if isinstance(size, Decision):
            size = size.bound
        if isinstance(size, Column):
            return int(self.program.sizes.per_rank(size, now.epoch, now.step)[self.rank])
        return size

    def rows_of(self, access: Access, now: Now) -> int:
        """Return how many rows of a buffer an access touches in one turn."""
        return self.rows(self.program.buffers[access.buffer].rows if access.part is None else access.part.rows, now)

    def zeros(self, access: Access, now: Now) -> torch.Tensor:
        """Return zeros, the value of what an access touches before its first write."""
        return self._zeros(self.program.buffers[access.buffer], self.rows_of(access, now))

    def _zeros(self, buffer: Buffer, rows: int) -> torch.Tensor:
        return torch.zeros((rows, buffer.width), dtype=TORCH_TYPES[buffer.dtype], device=self.place(buffer.name))

    def room(self, name: str) -> torch.Tensor:
        """Return memory that a plain buffer has for the whole run, allocated at the first call (or by a checkpoint that
        was loaded). A ``lasting`` buffer gets memory for the most rows that it ever holds."""
        if name not in self._rooms:
            buffer, there = self.program.buffers[name], self.values[self._base[name]]
            if buffer.lasting or not isinstance(there, torch.Tensor):
                there = self._zeros(buffer, int(self.program.sizes.most(buffer.rows)[self.rank]))
            self._rooms[name] = there
        return self._rooms[name]

    def reserve(self, name: str) -> None:
        """Allocate memory in place of a buffer that has no value yet, so that memory does not grow later. Its op calls
        :meth:`release` just before the first write."""
        if self.values[self._base[name]] is None and name not in self._reserved:
            self._reserved[name] = self.zeros(Access(name), Now(0, 0, 0))

    def release(self, name: str) -> None:
        self._reserved.pop(name, None)

    def free_after(self, template: Template) -> list[tuple[int, ...]]:
        """Return, for each op in program order, the slots whose tensors no later op of the template uses."""
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
        """Return what a checkpoint must hold: buffers that later turns read and ops have written, by name and copy."""
        found = {
            f"{name}#{copy}": self.values[self._base[name] + copy]
            for name in sorted(remembered(self.program) - self.constants)
            for copy in range(self.program.buffers[name].depth)
        }
        return {key: value for key, value in found.items() if value is not None}

    def load_state(self, state: Mapping[str, Value]) -> None:
        """Restore what :meth:`state` returned, in place if a buffer already has memory."""
        slots = {
            f"{name}#{copy}": (name, self._base[name] + copy)
            for name, buffer in self.program.buffers.items()
            for copy in range(buffer.depth)
        }
        for key, value in state.items():
            if key not in slots:
                raise ConfigError(
                    f"the checkpoint holds a buffer '{key}' that the program does not have: it belongs to another "
                    "program; start without --resume"
                )
            name, at = slots[key]
            there = self.values[at]
            if at in self._mapped:
                self._copy_in(at, name, value)
            elif isinstance(there, torch.Tensor) and isinstance(value, torch.Tensor):
                # a lasting buffer has room for the most rows of all epochs, of which the run may have more by now
                (there[: len(value)] if self.program.buffers[name].lasting else there).copy_(value)
            else:
                self.values[at] = moved(value, self.place(name))


def narrowed(whole: torch.Tensor, width: int) -> torch.Tensor:
    """Return the begin of a buffer's memory as as many rows of another width."""
    return whole.view(-1)[: len(whole) * width].view(len(whole), width)


def picked(whole: torch.Tensor, rows: slice | torch.Tensor) -> torch.Tensor:
    """Return some rows of a tensor: a view of a range, or a copy of listed rows."""
    return whole[rows] if isinstance(rows, slice) else whole.index_select(0, rows)


def moved(value: Value, device: torch.device) -> Value:
    """Return a buffer's value on a device; it is not copied if it is there already."""
    return tuple(part.to(device) for part in value) if isinstance(value, tuple) else value.to(device)
