"""How many processors other work leaves, by counters of a made-up machine."""

from collections import namedtuple
from itertools import cycle

import psutil
import pytest

from reference.machine import load

Times = namedtuple("Times", ["user", "idle", "iowait"])


def test_idle_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = (
        [Times(0, 0, 0)] * 4,
        [Times(1, 0, 0), Times(0, 1, 0), Times(1, 0, 1), Times(0, 0, 0)],
    )
    counters = cycle([before, after])
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: next(counters))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 3})
    assert load.measure_idle_processors(0) == pytest.approx(0 + 1 + 0.5 + 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    assert load.measure_idle_processors(0) == 0


@pytest.mark.parametrize(
    ("idle", "sharers", "cores"),
    [(8.0, 1, 4), (7.6, 1, 4), (6.0, 1, 3), (1.0, 1, 1), (0.0, 1, 1), (8.0, 2, 2), (8.0, 8, 1)],
)
def test_idle_cores_have_two_processors_each(
    idle: float, sharers: int, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 8 if logical else 4)
    assert load.count_idle_cores(idle, sharers) == cores
