"""Which rank serves whom: the rule of minibatch_common C1, and the traffic that follows from it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgnn.errors import ConfigError
from simgnn.partition.local.serving import Serving


@pytest.mark.parametrize(("hosts", "each"), [(1, 1), (1, 3), (2, 1), (2, 2), (3, 4)])
def test_the_jth_rank_of_a_host_asks_the_jth_of_another(hosts: int, each: int) -> None:
    serving = Serving(tuple(rank // each for rank in range(hosts * each)))
    expected = [[part * each + rank % each for part in range(hosts)] for rank in range(hosts * each)]
    assert serving.servers.tolist() == expected
    assert [serving.writer(part) for part in range(hosts)] == [part * each for part in range(hosts)]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_rows_are_asked_of_a_rank_that_holds_them(sizes: list[int], random: object) -> None:
    hosts = [host for host, size in enumerate(sizes) for _ in range(size)]
    random.shuffle(hosts)  # type: ignore[attr-defined]
    serving = Serving(tuple(hosts))
    for rank, host in enumerate(hosts):
        assert serving.servers[rank, host] == rank
        for part in range(len(sizes)):
            there = [other for other in range(len(hosts)) if hosts[other] == part]
            assert serving.servers[rank, part] in there
            # ranks of one host spread over those of another as evenly as can be
            users = [np.count_nonzero(serving.servers[np.array(hosts) == host, part] == other) for other in there]
            assert max(users) - min(users) <= 1


def test_hosts_without_ranks_are_refused() -> None:
    for hosts in ((), (0, 2), (1,), (-1, 0)):
        with pytest.raises(ConfigError, match=r"expected 0\.\.M-1, each with a rank"):
            Serving(hosts)
