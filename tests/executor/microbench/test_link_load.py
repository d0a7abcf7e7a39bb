"""What a loaded link does, from raw samples to the profile of a testbed: closed forms and refusals; nothing is run."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.microbench import loaded
from executor.microbench.load_samples import LoadSamples, Waiting, Work, load_of, read_load, write_load
from executor.microbench.loaded import pairs_of
from executor.testbed.command import main
from executor.testbed.profile import WIRE, describe
from simgnn.errors import BackendError
from simgnn.hardware.profile.profile import load_profile, save_profile
from tests.executor.testbed.test_testbed_profile import base, bed

RATE = 24e6
IDLE_S = 0.6e-3


def samples(waits: dict[int, float], processor: float = 12e-9, busy_before: float = 0.1) -> LoadSamples:
    """Every number repeated exactly. ``waits``: messages at once -> seconds that a small one waits behind them."""
    visits = {0: 0.0, **waits}
    crossed, seconds = 1e8, 2.0
    work = Work(seconds, 2, 2 * crossed * processor + busy_before * seconds, busy_before, crossed)
    return LoadSamples(
        "2026-11-22T13:00:00+00:00",
        loaded.BULK_BYTES,
        loaded.SMALL_BYTES,
        tuple(
            Waiting(count, ((IDLE_S + 2 * wait,) * 12,) * 5, (2 * 0.95 * RATE,) * 5 if count else ())
            for count, wait in visits.items()
        ),
        (work,) * 3,
    )


@settings(max_examples=30, deadline=None)
@given(
    waits=st.lists(st.floats(0.0, 0.1), min_size=1, max_size=4),
    processor=st.floats(1e-10, 1e-7),
    before=st.floats(0.0, 0.19),
)
def test_what_waits_is_what_the_link_passes_meanwhile(waits: list[float], processor: float, before: float) -> None:
    levels = dict(zip(loaded.LEVELS, waits, strict=False))
    found = load_of(samples(levels, processor, before), RATE)
    assert [queue.messages for queue in found.queues] == list(levels)
    for queue, wait in zip(found.queues, waits, strict=True):
        assert queue.size == pytest.approx(wait * RATE, abs=1.0)
        assert found.queued_bytes(queue.messages) == queue.size
    assert found.processor == pytest.approx(processor, rel=1e-3)
    assert found.source == "measured"
    assert found.spread == pytest.approx(0.0, abs=1e-6)
    assert found.note is not None
    assert "2026-11-22" in found.note
    assert f"{loaded.ROUNDS * loaded.TRIPS} round trips" in found.note


def test_the_middle_counts_and_repeats_that_differ_make_the_spread() -> None:
    even = samples({1: 5e-3})
    visits = [(IDLE_S + 2 * wait,) * 12 for wait in (4e-3, 5e-3, 6e-3)]
    visits[1] = (*visits[1][:-1], 3.0)  # somebody else had the processor
    uneven = replace(even, waiting=(even.waiting[0], replace(even.waiting[1], visits=tuple(visits))))
    found = load_of(uneven, RATE)
    assert found.queues[0].size == pytest.approx(5e-3 * RATE, abs=1.0)
    assert found.spread == pytest.approx(0.2, abs=1e-3)
    assert found.note is not None
    assert "4.0 to 6.0 ms" in found.note


@pytest.mark.parametrize("last", [-1.5e-4, 1.001e-4, 1.5e-4])
def test_of_what_cannot_be_told_from_nothing_there_is_no_spread(last: float) -> None:
    """A link that lets nothing wait: what is left are clocks, above and below the idle link's round trips."""
    even = samples({1: 0.0, 2: 5e-3})
    visits = tuple((IDLE_S + 2 * wait,) * 12 for wait in (-1e-4, 0.0, last))
    idle, first, second = even.waiting
    found = load_of(replace(even, waiting=(idle, replace(first, visits=visits), second)), RATE)
    assert found.spread is None
    assert found.note is not None
    assert found.note.endswith("; no spread, since repeats do not tell the wait behind 1 message(s) from none")


def test_of_what_costs_the_processor_nothing_there_is_no_spread() -> None:
    even = samples({1: 5e-3})
    work = tuple(replace(even.work[0], busy_s=even.work[0].busy_s + 4 * off) for off in (-1.0, -1.3, 1.0))
    found = load_of(replace(even, work=work), RATE)
    assert found.spread is None
    assert found.note is not None
    assert "do not tell the processor time of a byte from none" in found.note


def test_less_than_on_the_idle_link_is_nothing() -> None:
    found = load_of(samples({1: -1e-4}, processor=-1e-10), RATE)
    assert (found.queues[0].size, found.processor) == (0.0, 0.0)


def test_messages_that_do_not_fill_the_link_tell_nothing() -> None:
    with pytest.raises(BackendError, match=r"1 message\(s\) at once each way moved 22.8 MB/s, expected at least half"):
        load_of(samples({1: 5e-3}), 10 * RATE)


def test_other_work_on_the_hosts_is_refused() -> None:
    with pytest.raises(BackendError, match=r"other work kept 45% of the hosts' cores busy, expected at most 10%"):
        load_of(samples({1: 5e-3}, busy_before=0.9), RATE)


def test_a_file_gives_back_what_was_written_and_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "load.json"
    write_load(path, samples({1: 5e-3, 2: 8e-3}))
    assert read_load(path) == samples({1: 5e-3, 2: 8e-3})
    assert [entry.name for entry in tmp_path.iterdir()] == ["load.json"]
    for text in ('{"format": "simgnn-samples", "version": 2}', "[]", "{", "{}"):
        path.write_text(text)
        with pytest.raises(BackendError, match="no measurement of a loaded link"):
            read_load(path)


@pytest.mark.parametrize(("sources", "targets"), [([0], [1]), ([0, 1], [2, 3]), ([0, 1], [2, 3, 4]), ([0, 1, 2], [3])])
def test_no_rank_has_two_messages_while_another_could_have_one(sources: list[int], targets: list[int]) -> None:
    pairs = pairs_of(sources, targets)
    assert sorted(pairs) == [(source, target) for source in sources for target in targets]
    first = pairs[: min(len(sources), len(targets))]
    assert len({source for source, _ in first}) == len({target for _, target in first}) == len(first)


def test_busy_is_what_is_left_of_the_time_of_the_cores_that_the_rank_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick = os.sysconf("SC_CLK_TCK")
    cores = ["cpu 9 9 9 9 9 9 9 9 9 9", "cpu0 1 2 3 1000 50 4 5 7 0 0", "cpu1 10 0 0 0 0 0 0 0 0 0"]
    (tmp_path / "stat").write_text("\n".join([*cores, "ctxt 12", "intr 0 1"]) + "\n")
    monkeypatch.setattr(loaded, "CPU_TIMES", tmp_path / "stat")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    now = (1000 + 50 + 7) / tick
    assert loaded._idle_s() == {0: now}, "idle, waiting for disks, stolen"
    monkeypatch.setattr(loaded.time, "perf_counter", lambda: 30.0)
    assert loaded._since(20.0, {0: now - 6.0}) == (10.0, {0: pytest.approx(4.0)})
    assert loaded._since(20.0, {0: now - 10.1}) == (10.0, {0: 0.0}), "no less than nothing: counted in ticks"


def test_the_profile_of_a_testbed_keeps_it_beside_what_is_declared(tmp_path: Path) -> None:
    load = load_of(samples({1: 5e-3, 2: 8e-3}), RATE)
    found, without = describe(bed(), base(), load), describe(bed(), base())
    assert found.links[WIRE].load == load
    assert without.links[WIRE].load is None
    assert found.links[WIRE].model_copy(update={"load": None}) == without.links[WIRE]
    assert [name for name, link in found.links.items() if link.load is not None] == [WIRE]
    more = "; what links do while messages fill them as measured inside"
    assert found.meta.description == without.meta.description + more
    save_profile(found, tmp_path / "profile.toml")
    assert load_profile(tmp_path / "profile.toml") == found


REFUSED = {
    "one host": ("hosts = 1\nranks_per_host = 2\n", "got a testbed of one host, which has no link, expected hosts = 2"),
    "slow link": (
        'hosts = 2\nranks_per_host = 1\nlink = "1 Mbit/s"\n',
        "got link = 1 Mbit/s, expected at least 8 Mbit/s",
    ),
    "no root": ('hosts = 2\nranks_per_host = 1\nlink = "200 Mbit/s"\n', "got a user without root, expected root"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_measured_is_refused_before_anything_is_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, told = REFUSED[name]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    save_profile(base(), tmp_path / "base.toml")
    (tmp_path / "bed.toml").write_text(text)
    words = ["profile", str(tmp_path / "bed.toml"), "--base", str(tmp_path / "base.toml")]
    assert main([*words, "--out", str(tmp_path / "out.toml"), "--measure-load"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("executor: error: ")
    assert told in said
    assert not (tmp_path / "out.toml").exists()
    assert main([*words, "--out", str(tmp_path / "out.toml")]) == 0, "without the measurement no root is needed"


def test_the_micro_benchmark_wants_its_place_among_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "SIMGNN_LAUNCHER"):
        monkeypatch.delenv(name, raising=False)
    assert loaded.main(["--out", str(tmp_path / "load.json")]) == 2
    assert "expected torchrun's variables" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
