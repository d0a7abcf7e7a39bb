"""Rounds carry the requests of tasks: batches are those of one process, bytes those of the formulas, and all ends."""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import executor.rounds.rounds
from executor.rounds.messages import HEADER
from simgnn.errors import BackendError
from simgnn.partition.local.serving import Serving
from tests.executor.harness import run_ranks
from tests.executor.round_worlds import FANOUTS, WIDTH, Broken, Case, Draws, group_of, leave, tapped
from tests.sampling.test_task_batches import check, expected

CASES = {
    "two hosts": Case((0, 1), (4, 4)),
    "different numbers of batches": Case((0, 1, 2, 3), (3, 0, 5, 1)),
    "two ranks a host": Case((0, 0, 1, 1), (2, 3, 2, 1), chunk=1, threads=4),
    "one host": Case((0, 0), (3, 2)),
    "small rounds": Case((0, 1), (3, 4), round_bytes=64),
    "unsupervised": Case((0, 1, 2), (2, 3, 1), negatives=2),
    "one rank": Case((0,), (3,)),
    "nothing to draw": Case((0, 1), (0, 0)),
}


def drawn(rank: int, ranks: int, case: Case) -> dict[str, Any]:
    """Draw the rank's batches while the main group reduces gradients; check them; return what was sent."""
    group = group_of(ranks, 60)
    stop = threading.Event()
    reduced = [0]

    def reduce() -> None:
        """Gradients use a group of their own, and need not wait for any round."""
        while True:
            flag = torch.tensor([float(stop.is_set())])
            dist.all_reduce(flag)
            reduced[0] += 1
            if flag.item() == ranks:
                return
            time.sleep(0.001)

    gradients = threading.Thread(target=reduce, daemon=True)
    with tapped() as calls:
        gradients.start()
        draws = Draws(case, rank, group=group)
        made = draws.draw(case.given(rank))
    stop.set()
    gradients.join(60)
    assert not gradients.is_alive()
    assert reduced[0] > 0
    for one, (seeds, batch_seed) in zip(made, case.given(rank), strict=True):
        check(one, case.csr, case.features, seeds, batch_seed)
    traffic = draws.traffic
    numbers = [record.number for record in draws.answered]
    assert numbers == sorted(numbers)
    assert all(record.ended_s >= record.ticket.asked_s for record in draws.answered)
    tickets = [record.ticket for record in draws.answered]
    answered = {(ticket.ready.batch, ticket.request.task, ticket.request.part) for ticket in tickets}
    assert len(answered) == len(numbers), "each request is answered once"
    assert len(set(numbers)) <= traffic.rounds - traffic.empty
    return {
        "of_batch": [[*key, size] for key, size in traffic.of_batch.items()],
        "sent": [[*key, size] for key, size in traffic.sent.items()],
        "rounds": [traffic.rounds, traffic.empty, traffic.control_bytes],
        "calls": [[*key, size] for key, size in calls.items()],
    }


def formulas(case: Case, rank: int, batch: int) -> Counter[tuple[int, str]]:
    """Section 12 of the spec, from the one-shot batch: bytes by (rank asked, class), without groups."""
    serving, hosts = Serving(case.hosts), case.host_of
    seeds, batch_seed = case.given(rank)[batch]
    found: Counter[tuple[int, str]] = Counter()
    branches = expected(case.csr, seeds, batch_seed, bool(case.negatives))
    inputs = np.unique(np.concatenate([branch.vertices for branch in branches]))
    for host in set(case.hosts) - {case.hosts[rank]}:
        server = int(serving.servers[rank][host])
        for branch in branches:
            for hop, block in enumerate(branch.blocks, start=1):
                there = np.flatnonzero(hosts[branch.vertices[: branch.sizes[hop - 1]]] == host)
                found[server, "sample_ids"] += 8 * len(there)
                found[server, "sample_neighbours"] += 4 * len(there) + 8 * int(np.diff(block.indptr)[there].sum())
        rows = int((hosts[inputs] == host).sum())
        found[server, "row_ids"] += 8 * rows
        found[server, "rows"] += 4 * WIDTH * rows
    return +found


@pytest.mark.parametrize("name", CASES)
def test_batches_and_bytes_are_those_of_one_process(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    ranks = len(case.hosts)
    found = run_ranks(ranks, drawn, tmp_path, case)
    asks: Counter[tuple[int, int, str]] = Counter()
    for rank, told in enumerate(found):
        of_batch = {(batch, peer, kind): size for batch, peer, kind, size in told["of_batch"]}
        for batch in range(case.batches[rank]):
            mine = Counter({(peer, kind): size for (of, peer, kind), size in of_batch.items() if of == batch})
            groups = {peer: mine.pop((peer, "sample_groups"), 0) for peer in range(ranks)}
            assert +mine == formulas(case, rank, batch)
            branches = 3 if case.negatives else 1
            most = sum(-(-case.seeds * each // case.chunk) for each in (1, 1, case.negatives)[:branches])
            for peer, size in groups.items():
                assert size % 24 == 0
                assert size <= 24 * len(FANOUTS) * most
                assert bool(size) == bool(mine[peer, "sample_ids"])
        for (_, peer, kind), size in of_batch.items():
            back = kind in ("sample_neighbours", "rows")
            asks[(peer, rank, kind) if back else (rank, peer, kind)] += size
    sent = {(rank, peer, kind): size for rank, told in enumerate(found) for peer, kind, size in told["sent"]}
    assert sent == dict(+asks), "what ranks sent is what batches were counted to need"
    for rank, told in enumerate(found):
        handed: Counter[tuple[str, int]] = Counter({(name, peer): size for name, peer, size in told["calls"]})
        for peer in range(ranks):
            mine = sum(size for (of, to, _), size in sent.items() if (of, to) == (rank, peer))
            assert handed["isend", peer] == mine, "and what torch.distributed was given"
        rounds, empty, control = told["rounds"]
        assert rounds == found[0]["rounds"][0]
        assert empty == found[0]["rounds"][1]
        assert control == 8 * HEADER * rounds * (ranks - 1)
        if ranks > 1:
            assert handed["all_to_all_single", -1] == 8 * HEADER * rounds * ranks
    if not sent:
        assert found[0]["rounds"][0] == found[0]["rounds"][1], "all rounds were empty"


def test_small_rounds_carry_the_most_urgent_first(tmp_path: Path) -> None:
    many, few = (
        run_ranks(2, drawn, tmp_path / str(size), Case((0, 1), (3, 3), round_bytes=size)) for size in (64, 4 << 20)
    )
    full = [told[0]["rounds"][0] - told[0]["rounds"][1] for told in (many, few)]
    assert full[0] > 2 * full[1]
    assert sorted(many[0]["sent"]) != []


def ordered(rank: int, ranks: int, case: Case) -> list[list[Any]]:
    """The keys of the requests in the rounds of a rank whose pool had all of them ready before."""
    draws = Draws(case, rank)
    taken: list[list[Any]] = []
    original = draws.rounds._take

    def take() -> Any:
        with draws.rounds._changed:
            waiting = sorted(key for key, _, _ in draws.rounds._queue)
        found = original()
        later = [key for key in waiting if key not in [ticket.key for ticket in found]]
        keys = [ticket.key for ticket in found]
        assert keys == sorted(keys)
        assert not keys or not later or keys[0] <= later[0]
        sizes = [ticket.request.reply_bytes for ticket in found]
        assert len(sizes) <= 1 or sum(sizes) <= case.round_bytes
        taken.append([list(key) for key in keys])
        return found

    draws.rounds._take = take  # type: ignore[method-assign]
    draws.draw(case.given(rank), in_flight=4)
    return taken


def test_a_round_takes_requests_by_batch_and_cost(tmp_path: Path) -> None:
    found = run_ranks(2, ordered, tmp_path, Case((0, 1), (4, 4), round_bytes=2000))
    assert any(len(keys) > 1 for taken in found for keys in taken)


def broken(rank: int, ranks: int, case: Case, folder: str, dies: bool, at: int) -> None:
    """Rank 1 fails, or dies, in task ``at`` of its batch 1."""
    draws = Draws(case, rank, timeout_s=20)
    given = case.given(rank)
    began = time.monotonic()
    try:
        if rank == 1:
            draws.pool.launch(0, draws.maker.begin(*given[0]))
            seeds, seed = given[1]
            bad = Broken(draws.maker, draws.maker.graph(len(seeds)), seeds, seed)
            bad.at, bad.dies = at % len(bad.graph.tasks), dies
            if dies:
                torch.save("died", Path(folder) / f"result-{rank}.pt")
            draws.pool.launch(1, bad)
            draws.pool.take(1, 60)
        draws.draw(given)
    except BackendError as error:
        seconds = time.monotonic() - began
        draws.thread.join(30)  # other ranks learn of the failure in the next round
        leave(folder, rank, [type(error).__name__, str(error), seconds])
    leave(folder, rank, ["nothing", "", 0.0])


@pytest.mark.parametrize("at", [0, 3, 6, -1])
def test_a_task_that_raises_ends_every_rank(at: int, tmp_path: Path) -> None:
    case = Case((0, 1, 2), (60, 3, 60))
    found = run_ranks(3, broken, tmp_path, case, str(tmp_path), False, at)
    assert found[1][0] == "TaskError"
    where = found[1][1].partition(": ValueError")[0]
    assert where.startswith("batch 1, task '")
    assert "ValueError: a task that fails on purpose" in found[1][1]
    for kind, message, seconds in (found[0], found[2]):
        assert kind == "LostPeerError"
        assert f"rank 1 failed in {where}" in message
        assert seconds < 20


@pytest.mark.parametrize("at", [0, 3, 6, -1])
def test_a_rank_that_dies_ends_the_others(at: int, tmp_path: Path) -> None:
    case = Case((0, 1, 2), (60, 3, 60))
    found = run_ranks(3, broken, tmp_path, case, str(tmp_path), True, at)
    assert found[1] == "died"
    for kind, message, seconds in (found[0], found[2]):
        assert kind == "LostPeerError"
        assert "lost contact" in message
        assert seconds < 40


def silent(rank: int, ranks: int, case: Case, folder: str) -> None:
    """Rank 1 never comes to a round."""
    group = group_of(ranks, 2)
    if rank == 1:
        time.sleep(8)
        leave(folder, rank, ["silent", "", 0.0])
    began = time.monotonic()
    draws = Draws(case, rank, group=group)
    try:
        draws.draw(case.given(rank))
    except BackendError as error:
        leave(folder, rank, [type(error).__name__, str(error), time.monotonic() - began])


def test_a_silent_rank_ends_the_others_within_the_timeout(tmp_path: Path) -> None:
    found = run_ranks(2, silent, tmp_path, Case((0, 1), (2, 2)), str(tmp_path))
    assert found[0][0] == "LostPeerError"
    assert found[0][2] < 8


def killed(rank: int, ranks: int, case: Case, folder: str, victim: int, call: int) -> None:
    """``victim`` ends in its ``call``-th call of the transport: in a header, or between requests and replies."""
    draws = Draws(case, rank, timeout_s=20)
    began = time.monotonic()
    if rank == victim:
        torch.save("died", Path(folder) / f"result-{rank}.pt")
        left = [call]

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def count(*arguments: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    os._exit(0)
                return function(*arguments)

            return count

        executor.rounds.rounds.all_to_all = counted(executor.rounds.rounds.all_to_all)
        draws.rounds._headers = counted(draws.rounds._headers)  # type: ignore[method-assign]
    try:
        draws.draw(case.given(rank))
    except BackendError as error:
        leave(folder, rank, [type(error).__name__, str(error), time.monotonic() - began])
    leave(folder, rank, ["nothing", "", 0.0])


def check_killed(seed: int, folder: Path) -> None:
    """A rank drawn by ``seed`` ends in a task or in a call drawn by it: all others report that, in time."""
    draw = random.Random(seed)
    hosts = draw.choice([(0, 1), (0, 1, 2), (0, 0, 1, 1)])
    case = Case(hosts, (20,) * len(hosts), chunk=draw.choice([1, 7, 256]), round_bytes=draw.choice([64, 4 << 20]))
    if draw.random() < 0.5:
        victim, arguments = 1, (broken, folder / "ranks", case, str(folder / "ranks"), True, draw.randrange(-1, 12))
    else:
        victim = draw.randrange(len(hosts))
        arguments = killed, folder / "ranks", case, str(folder / "ranks"), victim, draw.randrange(0, 40)
    found = run_ranks(len(hosts), *arguments)
    assert found[victim] == "died"
    for rank, told in enumerate(found):
        if rank != victim:
            kind, message, seconds = told
            assert kind == "LostPeerError", (seed, told)
            assert message.startswith(f"rank {rank}, round ")
            assert "lost contact" in message
            assert seconds < 40


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_anywhere_ends_all_ranks(seed: int, tmp_path: Path) -> None:
    check_killed(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 53))
def test_fifty_kills(seed: int, tmp_path: Path) -> None:
    check_killed(seed, tmp_path)
