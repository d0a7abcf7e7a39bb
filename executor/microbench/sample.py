"""What a measurement leaves behind, and the file that holds all of them."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORMAT = "simgnn-samples"
VERSION = 2


@dataclass(frozen=True, slots=True)
class Sample:
    """One probe's outcome.

    ``seconds``: mean over repeats (outliers left out) of an op's time, averaged over the ranks that ran it; of a
    communication: from the latest start of any rank to the end, averaged over ranks. ``last_s``: the same to the end
    of the slowest rank.
    ``mad_s``: median absolute deviation of the repeats from their median. ``hosts``: numbers of the hosts whose ranks
    took part, ``ranks`` in all; ``active``: ranks that worked at once on a host, each with ``threads`` threads.
    ``form`` tells probes of one primitive apart (forward, weight gradient...). ``locality``: cumulative reuse profile
    of the index stream (``simgnn.graph.locality``).
    ``jitter_s``, ``drift_s``: see :func:`executor.microbench.jitter.split_jitter`.
    """

    primitive: str
    form: str
    sizes: Mapping[str, float]
    hosts: Sequence[int]
    ranks: int
    active: int
    threads: int
    seconds: float
    last_s: float
    mad_s: float
    repeats: int
    locality: Sequence[float] | None = None
    jitter_s: float | None = None
    drift_s: float | None = None


def write_samples(path: Path, header: Mapping[str, Any], samples: Sequence[Sample]) -> None:
    """Write all samples as JSON, whole or not at all."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        **header,
        "samples": [asdict(sample) for sample in samples],
    }
    write_document(path, document)


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write JSON, whole or not at all (temporary name, then renamed)."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(document))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
