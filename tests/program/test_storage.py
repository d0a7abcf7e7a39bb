"""Programs on disk, and their digest."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from programs import mirror_sync

from simgnn.errors import ProgramError
from simgnn.program.program import Template
from simgnn.program.sizes import Column, Decision, Scratch, Term
from simgnn.program.storage import load_program, program_digest, save_program


def test_round_trip_keeps_the_digest(tmp_path) -> None:
    program = mirror_sync.build(4)
    save_program(program, tmp_path)
    assert program_digest(load_program(tmp_path)) == program_digest(program)


def test_memory_beside_buffers_is_stored_and_no_part_of_the_digest(tmp_path) -> None:
    plain = mirror_sync.build(2)
    scratch = Scratch((Term(Decision("moved", 9), 4),), (Term(7, 1),), ("x",), own_block=0, handed_over=True)
    templates = {
        name: Template(name, tuple(replace(op, scratch=scratch) for op in template.ops))
        for name, template in plain.templates.items()
    }
    program = replace(plain, templates=templates, kept={"lists": Scratch((Term(Column("rows"), 8),))})
    save_program(program, tmp_path)
    again = load_program(tmp_path)
    assert {op.scratch for _, op in again.ops} == {scratch}
    assert again.kept == program.kept
    assert program_digest(again) == program_digest(plain)


def test_the_digest_sees_sizes_and_ops() -> None:
    assert len({program_digest(mirror_sync.build(ranks)) for ranks in (2, 3, 4)}) == 3


@pytest.mark.parametrize("seed", ["0", "1"])
def test_the_digest_does_not_depend_on_hash_order(seed: str) -> None:
    code = "from programs import mirror_sync; from simgnn.program.storage import program_digest; " \
           "print(program_digest(mirror_sync.build(3)))"  # fmt: skip
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": here}
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert printed.stdout.strip() == program_digest(mirror_sync.build(3))


def test_broken_files_are_refused(tmp_path) -> None:
    with pytest.raises(ProgramError, match="cannot read the program"):
        load_program(tmp_path)
    save_program(mirror_sync.build(2), tmp_path)
    document = (tmp_path / "program.json").read_text()
    (tmp_path / "program.json").write_text(re.sub(r'"buffer": "\w+"', '"buffer": 1e308', document))
    with pytest.raises(ProgramError, match=r"expected str, got 1e\+308"):
        load_program(tmp_path)
    whole = (tmp_path / "columns.npz").read_bytes()
    (tmp_path / "columns.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ProgramError, match="write the run directory again"):
        load_program(tmp_path)
    np.savez(tmp_path / "columns.npz", rows=np.zeros(1))
    (tmp_path / "program.json").write_text('{"format": 99}')
    with pytest.raises(ProgramError, match="has format 99"):
        load_program(tmp_path)
    (tmp_path / "program.json").write_text("[]")
    with pytest.raises(ProgramError, match="has format None"):
        load_program(tmp_path)
    (tmp_path / "program.json").write_text('{"format": 1}')
    with pytest.raises(ProgramError, match=r"is damaged .*; write the run directory again"):
        load_program(tmp_path)
