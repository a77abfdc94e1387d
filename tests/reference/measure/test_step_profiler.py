"""The phases of a step share its time out, each second once."""

import time

import pytest

from reference.measure.step_profiler import StepProfiler


def test_a_phase_within_another_is_counted_once() -> None:
    waited = []
    profiler = StepProfiler(lambda: waited.append(1))
    started = time.perf_counter()
    with profiler("backward"):
        time.sleep(0.01)
        with profiler("factors"):
            time.sleep(0.03)
            with profiler("communication"):
                time.sleep(0.02)
        with profiler("factors"):
            time.sleep(0.01)
    total = time.perf_counter() - started
    assert len(waited) == 4
    assert sum(profiler.seconds.values()) == pytest.approx(total, abs=2e-3)
    assert profiler.seconds["factors"] >= 0.04
    assert profiler.seconds["communication"] >= 0.02
    assert 0.01 <= profiler.seconds["backward"] <= total - 0.06
    shares = profiler.shares(2 * total)
    assert shares["forward"] == 0
    assert shares["other"] == pytest.approx(0.5, abs=0.01)
