"""Rows of a sparse matrix as bytes: a block a peer, of row lengths (int32), column ids (int32) and values."""

from collections.abc import Sequence

import torch


def pack_rows(matrix: torch.Tensor, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Bytes (uint8) of the named rows of a CSR matrix, ``counts[p]`` of them for peer p, peers ascending."""
    pointers, columns, values = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    blocks = []
    for part in torch.split(rows, list(counts)):
        starts = pointers[part]
        lengths = pointers[part + 1] - starts
        ends = torch.cumsum(lengths, 0)
        total = int(ends[-1]) if len(ends) else 0
        picked = torch.arange(total, device=rows.device) + torch.repeat_interleave(starts - ends + lengths, lengths)
        blocks += [_bytes(lengths.int()), _bytes(columns[picked].int()), _bytes(values[picked])]
    return torch.cat(blocks)


def unpack_rows(packed: torch.Tensor, counts: Sequence[int], width: int, dtype: torch.dtype) -> torch.Tensor:
    """The CSR matrix [sum(counts), width] whose rows :func:`pack_rows` of the peers made, peers ascending."""
    lengths, columns, values, begin = [], [], [], 0
    for count in counts:
        lengths.append(_typed(packed[begin : begin + 4 * count], torch.int32))
        begin += 4 * count
        total = int(lengths[-1].sum())
        columns.append(_typed(packed[begin : begin + 4 * total], torch.int32))
        begin += 4 * total
        size = dtype.itemsize * total
        values.append(_typed(packed[begin : begin + size], dtype))
        begin += size
    assert begin == len(packed), "packed sparse rows do not fill their blocks"
    ends = torch.cumsum(torch.cat(lengths).long(), 0) if lengths else torch.zeros(0, dtype=torch.int64)
    pointers = torch.cat((torch.zeros(1, dtype=torch.int64, device=packed.device), ends))
    shape = (len(pointers) - 1, width)
    return torch.sparse_csr_tensor(pointers.int(), torch.cat(columns), torch.cat(values), size=shape)


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)


def _typed(raw: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # blocks of several types follow one another, so a part need not be aligned: a copy is
    return raw.clone().view(dtype)
