"""The phases of a step share its time out, each second once."""

import time
from typing import Any

import pytest

from cepheid.measure.engine.step_profiler import StepProfiler, profile_steps


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


class Task:
    """A task whose step spends a third of its time outside its phases."""

    def __init__(self) -> None:
        self.steps = 0
        self.phase: Any = None

    def step(self) -> None:
        self.steps += 1
        with self.phase("forward"):
            time.sleep(0.02)
        time.sleep(0.01)

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def finish_phase(self) -> None:
        """Nothing to wait for."""


def test_a_profile_accounts_for_the_whole_step() -> None:
    task, calls = Task(), []
    profile = profile_steps(task, 2, lambda: calls.append(task.steps))
    assert calls == [1, 2]
    assert task.phase is None
    assert sum(profile.shares.values()) == pytest.approx(1)
    assert profile.shares["backward"] == 0
    assert 0.2 < profile.shares["other"] < 0.5
    assert sum(profile.phases_ms.values()) == pytest.approx(1000 * profile.seconds)
