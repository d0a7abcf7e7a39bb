"""Damages one file by one to three drawn edits."""

from collections.abc import Callable
from pathlib import Path

from numpy.random import Generator

from tools.mutate_inputs.array_edits import edit_arrays
from tools.mutate_inputs.byte_edits import edit_bytes, edit_text, replace_file
from tools.mutate_inputs.column_edits import edit_columns
from tools.mutate_inputs.draws import NoRoomError, one_of
from tools.mutate_inputs.tree_edits import edit_tree

COUNTS = (1, 1, 1, 1, 2, 2, 3)
REPLACED = 0.06
"""Share of files in whose place something else is put."""
EDITS: tuple[Callable[[Path, Generator], str], ...] = (
    edit_tree, edit_tree, edit_arrays, edit_arrays, edit_columns, edit_columns, edit_text, edit_bytes,
)  # fmt: skip


def mutate(path: Path, rng: Generator) -> str:
    """Damage a file; return what was done. Edits that know the file's format come first where there are any."""
    if rng.random() < REPLACED:
        return replace_file(path, rng)
    told: list[str] = []
    before = path.read_bytes()
    wanted = one_of(rng, COUNTS)
    while len(told) < wanted:
        try:
            told.append(one_of(rng, EDITS)(path, rng))
        except NoRoomError:
            if not path.stat().st_size:
                break
        except Exception:
            if not told:
                raise
            break  # the first edit damaged the file, at which libraries may raise anything
    if path.read_bytes() == before:
        return replace_file(path, rng)
    return "; ".join(told)
