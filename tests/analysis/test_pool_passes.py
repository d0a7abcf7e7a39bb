"""Several passes over the same probes become one file: means, and drift that holds what the passes differ by."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgnn.analysis.fit.samples import Facts, MeasuredHost, Sample, SampleFile, pool_passes
from simgnn.errors import HardwareError

FACTS = Facts(
    host="here", system="Linux", cpu_model="a processor", cores=2, memory_bytes=1 << 30, caches=(), python="3.11",
    torch="2.13", device="cpu",
)  # fmt: skip


def sample(seconds: float, repeats: int = 4, rows: float = 8.0, **more: float | None) -> Sample:
    given = {"jitter_s": 0.1, "drift_s": 0.2, **more}
    return Sample(
        primitive="copy", form="clone", sizes={"rows": rows, "width": 4.0}, hosts=(0,), ranks=2, active=2,
        threads=1,         seconds=seconds, last_s=2 * seconds, mad_s=0.5, repeats=repeats, **given,
    )  # fmt: skip


def file(*samples: Sample, ranks: int = 2, host: str = "here") -> SampleFile:
    return SampleFile(
        format="simgnn-samples", version=2, started=datetime(2026, 1, 1, tzinfo=UTC),
        hosts=(MeasuredHost(ranks=tuple(range(ranks)), facts=FACTS.model_copy(update={"host": host})),),
        backend="gloo", ranks=ranks, threads=1, quick=False,
        samples=samples,
    )  # fmt: skip


def test_a_single_pass_is_left_alone() -> None:
    once = [file(sample(1.0)), file(sample(3.0), ranks=4)]
    assert pool_passes(once) == once


def test_passes_are_averaged_by_their_repeats() -> None:
    pooled = pool_passes([file(sample(1.0, repeats=3)), file(sample(5.0), ranks=4), file(sample(2.0, repeats=1))])
    assert [found.ranks for found in pooled] == [2, 4]
    (found,) = pooled[0].samples
    assert found.seconds == pytest.approx(1.25)
    assert found.last_s == pytest.approx(2.5)
    assert found.repeats == 4
    assert found.jitter_s == pytest.approx(0.1)
    # the variance between passes, 3/4 x 0.25² + 1/4 x 0.75², comes on top of that within them
    assert found.drift_s == pytest.approx((0.2**2 + 0.1875) ** 0.5)


@given(st.lists(st.floats(1e-6, 10.0), min_size=2, max_size=6))
def test_equal_repeats_give_the_plain_mean_in_any_order(times: list[float]) -> None:
    (one,) = pool_passes([file(sample(value)) for value in times])[0].samples
    (other,) = pool_passes([file(sample(value)) for value in reversed(times)])[0].samples
    assert one.seconds == pytest.approx(sum(times) / len(times))
    assert one.seconds == pytest.approx(other.seconds)
    assert one.drift_s == pytest.approx(other.drift_s)
    assert min(times) * (1 - 1e-9) <= one.seconds <= max(times) * (1 + 1e-9)


def test_probes_of_other_sizes_stay_apart_and_one_that_came_once_is_kept() -> None:
    pooled = pool_passes([file(sample(1.0), sample(7.0, rows=9.0)), file(sample(3.0))])
    assert [(found.sizes["rows"], found.seconds) for found in pooled[0].samples] == [(8.0, 2.0), (9.0, 7.0)]


def test_passes_too_short_to_tell_jitter_do_not_invent_it() -> None:
    (found,) = pool_passes([file(sample(1.0, jitter_s=None, drift_s=None)) for _ in range(2)])[0].samples
    assert found.jitter_s is None
    assert found.drift_s is None


def test_passes_of_two_machines_are_refused() -> None:
    with pytest.raises(HardwareError, match="expected the same hosts"):
        pool_passes([file(sample(1.0)), file(sample(1.0), host="there")])


def test_a_pool_is_as_old_as_its_last_pass() -> None:
    later = datetime(2026, 1, 3, tzinfo=UTC)
    passes = [file(sample(1.0)), file(sample(1.0)).model_copy(update={"started": later}), file(sample(1.0))]
    assert pool_passes(passes)[0].started == later


def test_passes_with_two_torches_are_refused() -> None:
    newer = MeasuredHost(ranks=(0, 1), facts=FACTS.model_copy(update={"torch": "2.14"}))
    with pytest.raises(HardwareError, match=r"'torch': '2\.14'"):
        pool_passes([file(sample(1.0)), file(sample(1.0)).model_copy(update={"hosts": (newer,)})])
