"""Power logs: the electrical power that sensors read during a run (rule T23), and its energy.

A power log is CSV text beside the run log: a line that says what was not measured, a header with
the sensors, then one row for each reading, with the monotonic clock of the run log::

    # not measured: network switches
    monotonic_ms,node0,node1
    5000000.0,812.4,798.0
    5000500.0,815.1,801.5
"""

import hashlib
import math
import os
import re
import stat
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cepheid.compliance.finding import FileProblem, escape

POWER_NAME = re.compile(r"power_(0|[1-9][0-9]{0,5})\.csv")

FILE_BYTES_MAX = 64 * 2**20
LINE_BYTES_MAX = 64 * 2**10
SENSORS_MAX = 1_000
READINGS_MAX = 4_000_000  # of all sensors together
WATTS_MAX = 1e8  # a hundred megawatts: more than any machine takes

_NOT_MEASURED = re.compile(r"# *not measured: *(\S.*)")
_SENSOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
CLOCK_COLUMN = "monotonic_ms"


@dataclass(frozen=True)
class Sensor:
    """The readings of one sensor: times in milliseconds, power in watts, line of each reading."""

    name: str
    times_ms: Sequence[float]
    watts: Sequence[float]
    lines: Sequence[int]

    def energy_joules(self, start_ms: float, stop_ms: float) -> float:
        """Return Σ Pᵢ·Δtᵢ from start to stop in joules; a reading holds until the next one.

        Nothing is assumed before the first reading: rule T23 refuses a log that begins too late.
        """
        first = max(0, bisect_right(self.times_ms, start_ms) - 1)
        last = bisect_right(self.times_ms, stop_ms)
        if last <= first or stop_ms <= start_ms:  # no reading before stop, or no time
            return 0.0
        begins = [max(start_ms, time) for time in self.times_ms[first:last]]
        ends = [*self.times_ms[first + 1 : last], stop_ms]
        watts = self.watts[first:last]
        parts = (p * (end - begin) for p, begin, end in zip(watts, begins, ends, strict=True))
        return math.fsum(parts) / 1000


@dataclass(frozen=True)
class PowerLog:
    """All that was read from one power log. ``not_measured`` is what it says of absent sensors."""

    path: Path
    not_measured: str
    sensors: tuple[Sensor, ...]
    problems: tuple[FileProblem, ...] = ()
    sha256: str = ""  # of the file, if it is wanted and all of the file could be read

    @property
    def index(self) -> int:
        """The number k of ``power_<k>.csv``."""
        match = POWER_NAME.fullmatch(self.path.name)
        assert match is not None
        return int(match.group(1))

    def energy_joules(self, start_ms: float, stop_ms: float) -> float:
        """Return the energy of all sensors in joules between two times of the monotonic clock."""
        return math.fsum(sensor.energy_joules(start_ms, stop_ms) for sensor in self.sensors)


def read(path: Path, with_digest: bool = False) -> PowerLog:
    """Read a power log up to the first thing that is wrong with it, which is in ``problems``.

    ``with_digest`` also hashes the file from the same bytes.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe waits for a writer that may never come.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return _make_broken(path, None, "this is not a regular file")
            if status.st_size > FILE_BYTES_MAX:
                bound = f"at most {FILE_BYTES_MAX // 2**20} MiB"
                got = f"{status.st_size:,} bytes"
                return _make_broken(path, None, "the file is too large", bound, got)
            data = file.read(FILE_BYTES_MAX)
    except OSError as error:
        return _make_broken(path, None, f"the file cannot be read: {error.strerror}")
    log = _parse(path, data)
    return replace(log, sha256=hashlib.sha256(data).hexdigest()) if with_digest else log


def _make_broken(
    path: Path, line: int | None, message: str, expected: str = "", got: str = ""
) -> PowerLog:
    return PowerLog(path, "", (), (FileProblem(line, message, expected, got),))


def _parse(path: Path, data: bytes) -> PowerLog:
    lines = data.split(b"\n", READINGS_MAX + 3)
    if lines[-1] == b"":
        lines.pop()
    first_line = _NOT_MEASURED.fullmatch(_decode(lines[0]) if lines else "")
    if first_line is None:
        expected = '"# not measured: …", what of the system no sensor measures, or "nothing"'
        return _make_broken(path, 1, "the first line does not say what was not measured", expected)
    header = _decode(lines[1]).split(",") if len(lines) > 1 else []
    names = header[1:]
    wrong = [name for name in names if not _SENSOR.fullmatch(name)]
    if header[:1] != [CLOCK_COLUMN] or not names or wrong or len(set(names)) < len(names):
        expected = f"{CLOCK_COLUMN},<sensor>,<sensor>… with different sensor names"
        return _make_broken(path, 2, "the second line is not the header", expected)
    if len(names) > SENSORS_MAX or (len(lines) - 2) * len(names) > READINGS_MAX:
        bounds = f"at most {SENSORS_MAX:,} sensors and {READINGS_MAX:,} readings"
        return _make_broken(path, None, "the log holds too many readings", bounds)
    sensors = tuple(Sensor(n, array("d"), array("d"), array("L")) for n in names)
    problem = _read_rows(lines[2:], sensors)
    return PowerLog(path, first_line.group(1)[:200], sensors, (problem,) if problem else ())


def _decode(line: bytes) -> str:
    return line[:LINE_BYTES_MAX].decode("utf-8", "replace").rstrip("\r")


def _read_rows(rows: Sequence[bytes], sensors: Sequence[Sensor]) -> FileProblem | None:
    """Read the rows into the sensors, up to the first row that is wrong."""
    before_ms = -math.inf
    for line, row in enumerate(rows, 3):
        cells = row.rstrip(b"\r").split(b",")
        if len(row) > LINE_BYTES_MAX or len(cells) != len(sensors) + 1:
            expected = f"{len(sensors) + 1} values with commas between them"
            return FileProblem(line, "the row does not fit the header", expected, f"{len(cells)}")
        time_ms = _parse_number(cells[0])
        if time_ms is None or time_ms < 0:
            message = f"{CLOCK_COLUMN} is not a time in milliseconds"
            return FileProblem(line, message, "0 or more", _show(cells[0]))
        if time_ms <= before_ms:
            expected = f"more than {before_ms:,.3f}, as on the line above"
            message = f"{CLOCK_COLUMN} does not advance"
            return FileProblem(line, message, expected, f"{time_ms:,.3f}")
        before_ms = time_ms
        for sensor, cell in zip(sensors, cells[1:], strict=True):
            if not cell:  # this sensor was not read in that row
                continue
            watts = _parse_number(cell)
            if watts is None or not 0 <= watts <= WATTS_MAX:
                expected = f"from 0 to {WATTS_MAX:,.0f}"
                message = f"{sensor.name} is not a power in watts"
                return FileProblem(line, message, expected, _show(cell))
            sensor.times_ms.append(time_ms)  # type: ignore[attr-defined]
            sensor.watts.append(watts)  # type: ignore[attr-defined]
            sensor.lines.append(line)  # type: ignore[attr-defined]
    return None


def _show(cell: bytes) -> str:
    return escape(repr(cell[:60].decode("utf-8", "replace")))


def _parse_number(cell: bytes) -> float | None:
    """Return a finite decimal number, or None for anything else that float() accepts."""
    if not re.fullmatch(rb"-?[0-9]{1,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{1,3})?", cell):
        return None
    value = float(cell)
    return value if math.isfinite(value) else None
