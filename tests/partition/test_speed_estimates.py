"""How long a partitioner will take, by the last graph that was large enough to tell."""

from pathlib import Path

import pytest

from simgnn.partition.speed import FILE, expected_seconds, remember


def test_only_large_graphs_say_how_long_others_take(tmp_path: Path) -> None:
    remember(tmp_path, "metis", 10_000, 2.0)  # mostly the time to load METIS
    assert expected_seconds(tmp_path, "metis", 8_000_000) is None
    remember(tmp_path, "metis", 2_000_000, 10.0)
    remember(tmp_path, "ebv", 2_000_000, 4.0)
    remember(tmp_path, "metis", 10_000, 2.0)
    assert expected_seconds(tmp_path, "metis", 8_000_000) == pytest.approx(40.0)
    assert expected_seconds(tmp_path, "ebv", 1_000_000) == pytest.approx(2.0)
    assert expected_seconds(tmp_path, "random", 1_000_000) is None


@pytest.mark.parametrize("text", ["", "[1]", '{"metis": "fast"}', '{"metis": 0.0}'])
def test_a_damaged_file_loses_the_estimate_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert expected_seconds(tmp_path, "metis", 100) is None
    remember(tmp_path, "metis", 1_000_000, 1.0)
    assert expected_seconds(tmp_path, "metis", 2_000_000) == pytest.approx(2.0)
