"""The clocks of a log's records."""

import time

import pytest

from cepheid.reference.run import logfile


class Clocks:
    """A machine's clocks; the process loses the processor before some readings of wall time."""

    def __init__(self, lost_seconds: list[float]) -> None:
        self.now, self.lost_seconds = 100.0, lost_seconds

    def monotonic(self) -> float:
        """Return seconds since the machine was started."""
        self.now += 1e-6
        return self.now

    def time(self) -> float:
        """Return seconds since 1970, after the wait that stands next in the list."""
        self.now += self.lost_seconds.pop(0) if self.lost_seconds else 0.0
        return 1.7e9 + self.now


@pytest.mark.parametrize("lost_seconds", [[], [0.131], [0.2] * 5, [0.2, 0.05] * 50])
def test_both_clocks_are_read_at_one_moment(
    monkeypatch: pytest.MonkeyPatch, lost_seconds: list[float]
) -> None:
    """Also while the machine is so busy that the process waits at each of the first readings."""
    clocks = Clocks(list(lost_seconds))
    monkeypatch.setattr(time, "monotonic", clocks.monotonic)
    monkeypatch.setattr(time, "time", clocks.time)
    time_ms, monotonic_ms = logfile.read_clocks()
    apart_ms = (time_ms - 1.7e12) - monotonic_ms
    is_always_busy = (
        len(lost_seconds) > 10
    )  # then the best of a limited number of readings is taken
    assert abs(apart_ms) < (51 if is_always_busy else 1.1)
    assert len(clocks.lost_seconds) == max(0, len(lost_seconds) - logfile.READINGS_MAX)
