"""Which halo rows are cached where, how old they may be, and what is refused."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor.recording.disk import LATEST
from executor.state.checkpoint import find_checkpoint
from executor.state.plan import RunPlan
from simgnn.cli.main import invoke
from simgnn.emit.halo_cache.actions import CheckAges, check_age
from simgnn.emit.halo_cache.membership import HaloRows
from simgnn.emit.halo_cache.routes import (
    CACHED,
    HALO,
    IN_HOST,
    MISSED,
    RELAYED,
    REST,
    SHARED,
    CachedRows,
    arriving,
)
from simgnn.errors import BackendError, ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.graph.graph import Graph
from simgnn.partition.partitioners.random import Random
from simgnn.partition.store import partition_artifact
from simgnn.planner.make_plan import plan
from simgnn.planner.memory.largest_cache import largest_caches
from simgnn.policies.freshness.refresh_interval import RefreshInterval
from simgnn.policies.placement.device import Device
from simgnn.program.sizes import Route
from simgnn.program.storage import load_program, program_digest, save_program
from simgnn.record.summary import halo_rows as summed_rows
from tests.executor.runs import prepared_run, small_graph
from tests.policies.acting import HERE, does

KIND, LATE = "freshness.kind=refresh-interval", "freshness.kind=one-epoch-stale"


def halo_rows(graph: Graph, ranks: int, hosts: int = 1, seed: int = 0) -> HaloRows:
    """The halo rows of a random partition."""
    owner = np.random.default_rng(seed).integers(0, ranks, graph.vertices)
    target = np.repeat(np.arange(graph.vertices), graph.csr.degrees())
    parts = []
    for rank in range(ranks):
        needed = np.unique(graph.csr.indices[(owner[target] == rank)])
        needed = needed[owner[needed] != rank]
        parts += [(vertex, owner[vertex], rank) for vertex in needed[np.argsort(owner[needed], kind="stable")].tolist()]
    vertex, owners, holders = np.array(parts, np.int64).reshape(-1, 3).T
    return HaloRows(vertex, owners, holders, np.arange(ranks) * hosts // ranks)


def chosen(halo: HaloRows, policy: RefreshInterval, device: float, host: float = 0.0) -> CachedRows:
    ranks, hosts = len(halo.hosts), int(halo.hosts.max()) + 1
    place = Device(device_rows=device, host_rows=host)
    of_host = np.array([len(np.unique(halo.vertex[halo.host == each])) for each in range(hosts)])
    cached = policy.cached(halo, place.device_capacities(np.bincount(halo.holder, minlength=ranks)))
    return CachedRows(halo, cached, policy.shared(halo, place.host_capacities(of_host), cached))


def hit_rate(rows: CachedRows) -> float:
    return float((rows.cached | rows.shared).mean())


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_hit_rates_rise_with_capacity_and_first_rows_are_the_most_shared(ranks: int) -> None:
    halo = halo_rows(small_graph(400, seed=ranks), ranks)
    shares = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
    for host in (0.0, 0.3):
        high, low = (
            [hit_rate(chosen(halo, RefreshInterval(order=order), share, host)) for share in shares]
            for order in ("high", "low")
        )
        assert all(one <= other for one, other in pairwise(high)), high
        assert high[-1] == low[-1] == 1
        assert all(one >= other for one, other in zip(high, low, strict=True))
    by_host = [hit_rate(chosen(halo, RefreshInterval(), 0.1, share)) for share in shares]
    assert all(one <= other for one, other in pairwise(by_host)), by_host
    assert by_host[-1] == 1
    if ranks > 2:
        assert hit_rate(chosen(halo, RefreshInterval(), 0.0, 0.2)) > hit_rate(
            chosen(halo, RefreshInterval(order="low"), 0.0, 0.2)
        )


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_each_row_in_the_memory_of_a_host_has_one_writer_and_a_place_of_its_own(hosts: int) -> None:
    halo = halo_rows(small_graph(300), 6, hosts)
    rows = chosen(halo, RefreshInterval(), 0.1, 0.6)
    assert rows.shared.any()
    for host in range(hosts):
        here = halo.host == host
        vertices = np.unique(halo.vertex[here & rows.shared])
        written = here & rows.written
        assert sorted(halo.vertex[written].tolist()) == vertices.tolist()
        assert sorted(rows.slots[written].tolist()) == list(range(len(vertices)))
        place = dict(zip(halo.vertex[written].tolist(), rows.slots[written].tolist(), strict=True))
        for row in np.flatnonzero(here & rows.shared):
            assert rows.slots[row] == place[int(halo.vertex[row])], "all ranks of a host find it at one place"
        writer = np.where(rows.relayed, halo.holder, halo.owner)
        assert (halo.hosts[writer[written]] == host).all()
        for rank in np.unique(writer[written]):
            block = np.sort(rows.slots[written & (writer == rank)])
            assert (np.diff(block) == 1).all(), "what a rank writes lies together"
    assert rows.relayed.any() == (hosts > 1)


def test_first_k_of_each_owner_and_rows_that_devices_lack() -> None:
    halo = halo_rows(small_graph(300), 4)
    everything = np.full(4, len(halo.vertex))
    for owner in range(4):
        for holder in range(4):
            pair = (halo.owner == owner) & (halo.holder == holder)
            few = RefreshInterval(top_k=3).cached(halo, everything) & pair
            assert few.sum() == min(3, pair.sum())
            if few.any():
                assert halo.overlap[few].min() >= halo.overlap[pair & ~few].max(initial=0)
    policy = RefreshInterval(global_rank="uncovered")
    rows, plain = chosen(halo, policy, 0.6, 0.2), chosen(halo, RefreshInterval(), 0.6, 0.2)
    assert hit_rate(rows) >= hit_rate(plain)
    covered = np.bincount(halo.on_host, ~rows.cached)[halo.on_host] == 0
    assert not (rows.shared & covered).any(), "all devices that need them have them"


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 1), (3, 1), (4, 1), (4, 2)])
def test_each_halo_row_comes_from_one_place(ranks: int, hosts: int, tmp_path: Path) -> None:
    """Sums over peers, places of an epoch between two refreshes, and places of a refresh (capgnn.md, 13.8)."""
    settings = (KIND, "placement.device_rows=0.3", "placement.host_rows=0.4")
    plan = RunPlan.open(prepared_run(small_graph(), tmp_path / "run", ranks, *settings, hosts=hosts))
    routes, columns = plan.program.sizes.routes, plan.program.sizes.columns
    halo = np.array([len(plan.artifact.local(rank).halo) for rank in range(ranks)])
    assert routes[HALO].matrix(ranks).sum(axis=0).tolist() == halo.tolist()
    rows = {route: columns[arriving(route).name] for route in (CACHED, SHARED, MISSED, IN_HOST, REST, RELAYED)}
    assert all(each.any() for route, each in rows.items() if route != RELAYED)
    assert (rows[CACHED] + rows[SHARED] + rows[MISSED]).tolist() == halo.tolist()
    # a row of another host travels to the rank that writes it for all of its host
    assert (rows[REST] - rows[RELAYED] + rows[IN_HOST]).tolist() == halo.tolist()
    assert rows[RELAYED].any() == (hosts > 1)


def test_rows_of_their_own_epoch_do_not_count_as_cached(tmp_path: Path) -> None:
    """With an interval of 1 they may be read from the memory of the host, and are new all the same."""
    for interval, mode, cached in ((1, "sync", False), (1, "async", True), (2, "sync", True)):
        settings = (KIND, f"freshness.refresh_interval={interval}", f"freshness.mode={mode}", "placement.host_rows=0.4")
        plan = RunPlan.open(prepared_run(small_graph(), tmp_path / f"{interval}-{mode}", 3, *settings))
        assert IN_HOST in plan.program.sizes.routes
        assert (summed_rows(plan.program) is not None) == cached


@pytest.mark.parametrize("level", ["device_rows", "host_rows"])
def test_each_row_that_is_cached_travels_no_more(level: str, tmp_path: Path) -> None:
    halo, travels = 0, []
    for rows in range(0, 40, 8):
        settings = (KIND, f"placement.{level}={rows}")
        plan = RunPlan.open(prepared_run(small_graph(), tmp_path / str(rows), 3, *settings))
        routes = plan.program.sizes.routes
        halo = int(routes[HALO].rows.sum())
        travels.append(int(routes[MISSED].rows.sum()) if rows else halo)
    assert all(less < more for more, less in pairwise(travels))
    if level == "device_rows":
        assert travels == [halo - 3 * rows for rows in range(0, 40, 8)]


def test_chosen_rows_of_a_route_are_those_of_its_reverse() -> None:
    draw = np.random.default_rng(3)
    whole = Route.from_matrix(draw.integers(0, 5, (4, 4)) * ~np.eye(4, dtype=bool))
    numbers = np.arange(whole.rows.sum())
    marks = draw.random(len(numbers)) < 0.5
    reverse = whole.reversed()
    part, back = whole.choose("halo", marks), reverse.choose("halo/reverse", whole.turned(marks))
    assert np.array_equal(part.matrix(4).T, back.matrix(4))
    ends = np.repeat(np.stack((whole.source, whole.target)), whole.rows, axis=1)
    for source in range(4):
        for target in range(4):
            pair = (ends[0] == source) & (ends[1] == target)
            assert part.matrix(4)[source, target] == marks[pair].sum()
            returns = (reverse.source == target) & (reverse.target == source)
            turned = whole.turned(numbers)[np.repeat(returns, reverse.rows)]
            assert turned.tolist() == numbers[pair].tolist()


def test_a_program_with_chosen_rows_is_stored_and_read_back(tmp_path: Path) -> None:
    settings = (KIND, "placement.device_rows=0.4", "placement.host_rows=0.3")
    folder = prepared_run(small_graph(), tmp_path / "run", 4, *settings, hosts=2)
    program = load_program(folder / "plan")
    (tmp_path / "again").mkdir()
    save_program(program, tmp_path / "again")
    again = load_program(tmp_path / "again")
    assert program_digest(again) == program_digest(program)
    for name, route in program.sizes.routes.items():
        for one, other in (
            (route.chosen, again.sizes.routes[name].chosen),
            (route.slots, again.sizes.routes[name].slots),
        ):
            assert (one is None) == (other is None)
            assert one is None or other is None or np.array_equal(one, other)


def _here(epoch: int, interval: int = 3, **fields: Any) -> Any:
    return replace(HERE, epoch=epoch, options={"interval": interval}, **fields)


def test_rows_of_another_epoch_than_the_last_refresh_are_not_used() -> None:
    for epoch in range(7):
        last = epoch - epoch % 3
        check_age(_here(epoch), torch.full((4, 1), last + 1))
        for other in (0, last, last + 2):
            with pytest.raises(BackendError, match="a fault of simgnn"):
                check_age(_here(epoch), torch.tensor([[last + 1], [other]]))
        if epoch:
            earlier = epoch - 1 - (epoch - 1) % 3
            delayed = replace(HERE, epoch=epoch, options={"interval": 3, "delay": 1})
            check_age(delayed, torch.full((4, 1), earlier + 1))
            with pytest.raises(BackendError, match="a fault of simgnn"):
                check_age(delayed, torch.full((4, 1), earlier + 2))
    check_age(_here(9, interval=0), torch.tensor([[1], [1]]))
    with pytest.raises(BackendError, match="never filled"):
        check_age(_here(9, interval=0), torch.tensor([[0], [1]]))
    with pytest.raises(BackendError):
        does(CheckAges, RefreshInterval())(_here(4), torch.tensor([[4], [1]]))


REFUSED = {
    "no interval": ("freshness.refresh_interval", KIND, "freshness.refresh_interval=0"),
    "part of an epoch": ("freshness.refresh_interval", KIND, "freshness.refresh_interval=2.5"),
    "another mode": ("freshness.mode", KIND, "freshness.mode=asynch"),
    "fewer than none": ("placement.device_rows", KIND, "placement.device_rows=-1"),
    "more than all": ("placement.host_rows", KIND, "placement.host_rows=1.5"),
    "no rows of an owner": ("freshness.top_k", KIND, "freshness.top_k=0"),
    "a layer too many": ("freshness.layers", KIND, "freshness.layers=[1, 3]"),
    "layer none": ("freshness.layers", KIND, "freshness.layers=[0]"),
    "no layers": ("freshness.layers", KIND, "freshness.layers=[]"),
    "a cache of exact rows": ("placement.device_rows", "placement.device_rows=0.5"),
    "a cache of rows that are late": ("placement.device_rows", LATE, "placement.device_rows=5"),
    "memory of rows that are late": ("placement.host_rows", LATE, "placement.host_rows=0.5"),
    "a vertex-cut": ("communication.kind", KIND, "partition.kind=ebv", "communication.kind=master-mirror"),
    "blocks": ("freshness.kind", KIND, "partition.kind=block-row", "communication.kind=block-broadcast"),
    "bits of the rows of one epoch": ("codec.bits", KIND, "codec.kind=stochastic", "codec.bits=adaptive"),
    "coded inputs": ("communication.resend_inputs", KIND, "codec.kind=linear", "communication.resend_inputs=true"),
    "mini-batches": (
        "freshness.kind", KIND, "batching.kind=sampled", "communication.kind=store", "placement.kind=store",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_the_key_of_what_cannot_be_is_named(case: str) -> None:
    key, *settings = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        load_experiment("vanilla", settings)
    assert caught.value.exit_status == 2
    assert any(problem.startswith(f"{key}: ") or f"{key}: " in problem for problem in caught.value.problems)


def test_statistics_that_do_not_know_vertices_name_what_they_lack(tmp_path: Path) -> None:
    artifact = partition_artifact(small_graph(), Random(), np.zeros(2, np.int64), 0, tmp_path)
    cached, none = (
        load_experiment("vanilla", [KIND, f"placement.device_rows={share}"]).with_cluster(1, 2) for share in (0.5, 0.0)
    )
    with pytest.raises(ConfigError, match="halo_vertices"):
        plan(cached, artifact.stats)
    assert not plan(none, artifact.stats).program.calendar.cycles, "nothing is cached"


def test_the_largest_cache_that_fits_is_named() -> None:
    def of(room: int, **caches: Any) -> str:
        experiment = load_experiment("vanilla", [KIND, *(f"placement.{name}={rows}" for name, rows in caches.items())])

        def number(rows: Any) -> int:
            return int(rows * 1000) if isinstance(rows, float) else int(np.max(rows))

        def fits(tried: Experiment) -> bool:
            rows = {name: number(stated) for name, stated in tried.placement.halo_caches.items()}
            return rows["device_rows"] + 2 * rows["host_rows"] <= room

        return largest_caches(experiment, 500, fits)

    assert of(123, device_rows=400).endswith("placement.device_rows = 123")
    assert of(123, device_rows=0.4).endswith("placement.device_rows = 0.123")
    assert of(100, device_rows=400, host_rows=30).endswith("placement.device_rows = 40 with placement.host_rows = 30")
    assert of(50, device_rows=400, host_rows=30).endswith("placement.device_rows = 0 with placement.host_rows = 25")
    assert "either" in of(-1, device_rows=400)
    assert of(9, device_rows=0) == ""
    assert of(123, device_rows=[400, 90]).endswith("placement.device_rows = [123, 90]")
    assert of(123, device_rows=[0, 0]) == ""


@pytest.mark.slow
def test_a_cache_that_does_not_fit_ends_with_status_3_and_names_one_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("graph.vertices=900", "graph.edges=9000", "graph.feature_width=8", "model.hidden=4000", "train.epochs=2")
    cached = (KIND, "model.order=aggregate-first", "partition.kind=random")
    given = ["simulate", "vanilla", "--ranks", "2", *(word for one in (*small, *cached) for word in ("--set", one))]
    assert invoke([*given, "--json"]) == 0
    peak = max(json.loads(capsys.readouterr().out)["peak_memory_bytes"])
    profile = tmp_path / "small.toml"
    copied = Path("hwprofiles/cpu-100gbe-8.toml").read_text()
    profile.write_text(copied.replace('value = "384 GiB"', f'value = "{2 * peak / 2**20 + 12:.2f} MiB"'))
    given += ["--hardware", str(profile), "--set", "cluster.hosts=1", "--set", "cluster.ranks_per_host=2", "--json"]
    assert invoke([*given, "--set", "placement.device_rows=400"]) == 3
    message = json.loads(capsys.readouterr().out)["message"]
    found = int(message.split("placement.device_rows = ")[1].split()[0])
    assert 0 < found < 400
    assert invoke([*given, "--set", f"placement.device_rows={found}"]) == 0
    assert invoke([*given, "--set", f"placement.device_rows={found + 1}"]) == 3


def test_a_checkpoint_of_other_capacities_is_refused(tmp_path: Path) -> None:
    settings = [KIND, "freshness.refresh_interval=3"]
    one, other = (
        RunPlan.open(prepared_run(small_graph(), tmp_path / rows, 2, *settings, f"placement.{rows}"))
        for rows in ("device_rows=5", "device_rows=6")
    )
    note = {"epoch": 2, "ranks": 2, "program_digest": one.digest}
    (tmp_path / LATEST).write_text(json.dumps(note))
    assert find_checkpoint(tmp_path, 2, one.digest) == 2
    with pytest.raises(ConfigError, match="belongs to another program"):
        find_checkpoint(tmp_path, 2, other.digest)
