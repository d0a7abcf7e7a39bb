"""Energy of a real GPU through NVML: it draws power while it computes."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from executor.energy.meter import EnergyMeter, gauges_of

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def test_a_gpu_draws_more_while_it_computes(gpus: Callable[[int], None]) -> None:
    gpus(1)
    world: Any = SimpleNamespace(rank=0, here=(0,), device=torch.device("cuda", 0))
    drawn = []
    for work in (False, True):
        gauges = [gauge for gauge in gauges_of(world) if gauge.part == "device"]
        assert [gauge.reason for gauge in gauges] == [""]
        meter = EnergyMeter(gauges)
        meter.start()
        end = time.monotonic() + 2.0
        rows = torch.randn(4096, 4096, device="cuda")
        while time.monotonic() < end:
            if work:
                rows = torch.nn.functional.normalize(rows @ rows)
                torch.cuda.synchronize()
            else:
                time.sleep(0.05)
        meter.stop()
        [series] = meter.series(0.0)
        assert series.reason == ""
        drawn.append(series.joules[-1] / (series.times_s[-1] - series.times_s[0]))
    assert 0 < drawn[0] < drawn[1] < 2000
