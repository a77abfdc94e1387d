"""How many processors other work leaves, by counters of a made-up machine."""

from collections import namedtuple
from itertools import cycle

import psutil
import pytest

from cepheid.reference.machine import load

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


def test_a_processor_that_the_system_hides_counts_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = cycle([[Times(0, 0, 0)], [Times(1, 0, 0)]])
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: next(busy))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 40, 41})
    assert load.measure_idle_processors(0) == 2

    def fail(percpu: bool) -> None:
        raise FileNotFoundError("/proc/stat")

    monkeypatch.setattr(psutil, "cpu_times", fail)
    assert load.measure_idle_processors(0) == 3


@pytest.mark.parametrize(
    ("idle_share", "sharers", "threads"),
    [(1.0, 1, 4), (0.95, 1, 4), (0.75, 1, 3), (0.1, 1, 1), (0.0, 1, 1), (1.0, 2, 2), (1.0, 8, 1)],
)
def test_other_work_takes_its_share_of_the_threads(
    idle_share: float, sharers: int, threads: int
) -> None:
    assert load.count_idle_threads(4, idle_share, sharers) == threads
