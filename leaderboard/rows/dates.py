"""When the runs of a result were made, in UTC.

A log may claim any time. What no calendar has is left out rather than shown.
"""

import datetime
from collections.abc import Iterable

_MS_MAX = 253_402_300_800_000  # the year 10000


def format_time(ms: float | None) -> str | None:
    """Format a time since 1970 to the second, ``2026-11-22T19:35:49Z``; None for no such time."""
    if ms is None or not 0 <= ms < _MS_MAX:
        return None
    moment = datetime.datetime.fromtimestamp(int(ms) // 1000, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def find_dates(started_ms: Iterable[float | None]) -> tuple[str, str] | None:
    """Find the days on which the first and the last of some runs started; None without any."""
    times = [ms for ms in started_ms if ms is not None]
    days = sorted(text[:10] for ms in times if (text := format_time(ms)) is not None)
    return (days[0], days[-1]) if days else None
