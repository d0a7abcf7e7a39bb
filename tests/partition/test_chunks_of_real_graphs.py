"""Chunks of all real graphs: identities among volumes, edges by slot, and orders that are never costlier."""

from pathlib import Path

import numpy as np
import pytest
from chunk_checks import check_chunks

from simgnn.graph.load import load_graph
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.transfer_rates import transfer_rates
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.algorithms.metis import metis_owner
from simgnn.partition.chunks.needed_rows import ChunkedGraph, measure_order
from simgnn.partition.chunks.orders import CANDIDATES
from simgnn.partition.chunks.rank_chunks import RankChunks, rank_arrays, slots_at_owners
from simgnn.partition.chunks.reorganise import reorganise
from simgnn.partition.chunks.volumes import PeerRows

SMALL = ("cora", "minesweeper")
LARGE = (
    "amazon_computers",
    "coauthor_cs",
    "coauthor_physics",
    "cora_full_structure",
    "ogbn_arxiv",
    "pubmed",
    "tolokers",
)
BOTH: tuple[PeerRows, PeerRows] = ("eq4", "exact")


@pytest.mark.realdata
@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(one, marks=pytest.mark.slow) for one in LARGE)])
def test_chunks_of_a_real_graph(data_dir: Path, name: str) -> None:
    graph = load_graph(str(data_dir / f"{name}.npz"))
    profile = load_profile("a100-nvlink-4")
    for ranks in (1, 2, 4):
        rates = transfer_rates(Machine.place(profile, [0] * ranks))
        owner = metis_owner(graph, ranks, 0, None, 1.03)
        before = None
        for chunks in (1, 2, 4, 8, 16, 32):
            chunked = ChunkedGraph.of(graph.csr, owner, ranks, chunks, 1.0, True)
            plain = measure_order(chunked, reorganise(chunked, ("initial",), None, "eq4").transition)
            if before is not None:
                assert (plain.buffer_rows <= before.buffer_rows).all(), "more chunks never need a larger buffer"
                assert plain.volumes.v_ori >= before.volumes.v_ori
            before = plain
            for peer_rows in BOTH:
                found = reorganise(chunked, CANDIDATES, rates, peer_rows)
                costs = [found.costs[order].cost or 0.0 for order in (found.chosen, "initial")]
                assert costs[0] <= costs[1]
            ordered = chunked.ordered(found.order)
            volumes = measure_order(ordered, found.transition).volumes
            assert (volumes.v_ori, volumes.v_dd) == (plain.volumes.v_ori, plain.volumes.v_dd)
            assert graph.vertices <= volumes.v_ru <= min(volumes.v_p2p, volumes.v_reuse_only)
            assert max(volumes.v_p2p, volumes.v_reuse_only) <= volumes.v_ori
            if chunks in (4, 32):
                arrays = {rank: rank_arrays(ordered, rank, found.transition) for rank in range(ranks)}
                kept = [RankChunks(i, {**arrays[i], "at_owner": slots_at_owners(arrays, i)}) for i in range(ranks)]
                check_chunks(ordered, volumes, kept)
                for rank in kept:
                    for place, batch in enumerate(rank.batches()):
                        for peer in batch.remote:
                            there, here = batch.backward(peer)
                            theirs = kept[peer].batch(place)
                            gids = batch.held[np.isin(batch.slots, here)]
                            places = np.searchsorted(theirs.held, gids)
                            assert np.array_equal(theirs.slots[places], there)
