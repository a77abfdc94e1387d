"""How much of a machine a run had for itself, by the clocks of its processors."""

from collections import namedtuple
from types import SimpleNamespace

import psutil
import pytest

from cepheid.reference.machine import use

Times = namedtuple("Times", ["user", "system", "idle", "iowait", "steal", "guest", "guest_nice"])


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine of three processors, of which this process may use the first two."""
    made = SimpleNamespace(times=[Times(0, 0, 0, 0, 0, 0, 0)] * 3, own=0.0)
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: made.times)
    monkeypatch.setattr(use, "_sum_own_seconds", lambda: made.own)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1}, raising=False)
    return made


def test_shares_are_of_the_processors_that_may_be_used(clocks: SimpleNamespace) -> None:
    start = use.read()
    clocks.times = [
        Times(9, 1, 0, 0, 0, 5, 0),
        Times(2, 0, 3, 1, 4, 0, 0),
        Times(0, 0, 10, 0, 0, 0, 0),
    ]
    clocks.own = 8.0
    stop = use.read()
    assert start
    assert stop
    assert use.describe(1.5, start, stop) == {
        "load_before": 1.5,
        "processors": 2,
        "idle_share": pytest.approx(0.2),
        "stolen_share": pytest.approx(0.2),
        "own_share": pytest.approx(0.4),
    }


def test_a_machine_that_tells_nothing_has_no_use(
    clocks: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = use.read()
    assert reading
    assert use.describe(None, reading, reading) == {}
    clocks.times = clocks.times[:1]  # the second is hidden
    assert use.read() is None
    monkeypatch.delattr("os.getloadavg", raising=False)
    assert use.read_load() is None


def test_more_time_than_passed_is_all_of_it(clocks: SimpleNamespace) -> None:
    start = use.Reading(1, 10.0, 0.0, 0.0, 1.0)
    stop = use.Reading(1, 20.0, -0.5, 0.0, 12.0)  # clocks of two kinds, which are read in turn
    assert use.describe(0.0, start, stop) == {
        "load_before": 0.0, "processors": 1,
        "idle_share": 0.0, "stolen_share": 0.0, "own_share": 1.0,
    }  # fmt: skip


def test_own_time_grows_with_work() -> None:
    before = use._sum_own_seconds()
    sum(n * n for n in range(2_000_000))
    assert use._sum_own_seconds() > before
