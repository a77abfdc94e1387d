"""The logs of one result, parsed, and the files beside them that repeat what the logs say.

The process that judges the result holds them, and nobody else.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from cepheid.compliance.read import powerlog
from cepheid.compliance.read.contents import CONFIGURATION, ResultFolder
from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.manifest import read_bytes, read_json
from cepheid.compliance.read.mlperf_folders import SCALING
from cepheid.compliance.read.powerlog import PowerLog
from cepheid.compliance.read.texts import PICTURE_BYTES_MAX, is_png
from cepheid.rules.events import is_number

FILE_BYTES_MAX = 2**20


@dataclass(frozen=True)
class Attached:
    """A JSON object beside the logs of a result, or a picture, of which nothing is kept.

    ``problem`` says why it is neither.
    """

    path: Path
    content: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def number(self) -> int | None:
        """The number k of ``report_<k>.json``; None for the configuration."""
        number = self.path.stem.partition("_")[2]
        return int(number) if number.isdigit() else None


def read_attached(folder: ResultFolder) -> Iterator[Attached]:
    """Read the configuration of a result, if there is one, and reports and pictures of its runs."""
    if folder.benchmark is None:  # in MLPerf's layout nothing of ours lies beside the logs
        configuration = folder.path / CONFIGURATION
        if configuration.is_file() and not configuration.is_symlink():
            yield _read(configuration)
    for path in folder.attached:
        yield _read(path) if path.suffix == ".json" else _read_signature(path)


def _read_signature(path: Path) -> Attached:
    """Return a picture without its content; anything but a whole PNG file is a problem."""
    try:
        is_picture = is_png(read_bytes(path, PICTURE_BYTES_MAX))
    except OSError as error:
        return Attached(path, problem=f"cannot be read: {error.strerror}")
    return Attached(path, problem="" if is_picture else "is not a PNG file")


def _read(path: Path) -> Attached:
    content, problem = read_json(path, FILE_BYTES_MAX)
    if isinstance(content, dict):
        return Attached(path, content)
    return Attached(path, problem=problem or "is not a JSON object")


@dataclass(frozen=True)
class ResultLogs:
    """All logs of a result: ``runs`` count, ``interrupted`` do not, ``power`` belongs to runs.

    ``joules`` is the energy of runs by the power logs of a round of MLPerf, by the name of the log.
    """

    folder: ResultFolder
    runs: Sequence[RunLog]
    interrupted: Sequence[RunLog] = ()
    power: Sequence[PowerLog] = ()
    attached: Sequence[Attached] = ()
    joules: Mapping[str, float] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The folder that the logs lie in."""
        return self.folder.path

    @property
    def scaling(self) -> object:
        """What ``scaling.json`` of a round of MLPerf says; 1 where there is no such file."""
        found = [each for each in self.attached if each.path.name == SCALING]
        return found[0].content.get("scaling_factor", found[0].problem) if found else 1.0

    @property
    def digests(self) -> Mapping[str, str]:
        """The SHA-256 of each file that was hashed, by its absolute path."""
        logs = chain[RunLog | PowerLog](self.runs, self.interrupted, self.power)
        return {os.path.abspath(log.path): log.sha256 for log in logs if log.sha256}


def read_logs(
    folder: ResultFolder, with_digests: bool = False, is_lenient: bool = False
) -> ResultLogs:
    """Parse every log of a result once. ``with_digests`` also hashes them from the same bytes.

    ``is_lenient`` does not look for problems that a round tolerates.
    """
    runs = tuple(runlog.read(path, with_digests, is_lenient) for path in folder.runs)
    power_of = folder.power_of or {}
    stems = [(run, run.path.stem) for run in runs] if power_of else []
    joules = {stem: measure_joules(run, power_of.get(stem, ())) for run, stem in stems}
    interrupted = tuple(runlog.read(path, with_digests) for path in folder.interrupted)
    power = tuple(powerlog.read(path, with_digests) for path in folder.power)
    known = {name: energy for name, energy in joules.items() if energy is not None}
    return ResultLogs(folder, runs, interrupted, power, tuple(read_attached(folder)), known)


def measure_joules(run: RunLog, power: Sequence[Path]) -> float | None:
    """Return the energy of a run of MLPerf by its power logs, as result_summarizer.py sums it.

    The mean power of each node while it was measured, and the estimated one of each switch if it
    has one, times the time of the run. None where a log does not say it. Pictures may lie beside.
    """
    parts = []
    for path in power if run.seconds else ():
        is_node = path.match("node_*.txt")
        if is_node or path.match("sw_*.txt"):
            log = runlog.read(path)
            efficiency = log.value("conversion_eff")
            watts = _average_watts(log) if is_node else log.value("interconnect_power_est") or 0.0
            parts.append((1.0 if efficiency is None else efficiency, watts))
    known = [e * w for e, w in parts if is_number(e) and is_number(w)]
    return sum(known) * (run.seconds or 0) if known and len(known) == len(parts) else None


def _average_watts(log: RunLog) -> float | None:
    """Average the readings between the start and the stop of a measurement, by their times."""
    start, stop = log.first("power_measurement_start"), log.first("power_measurement_stop")
    if start is None:
        return None
    until = stop.time_ms if stop else math.inf
    total, before = 0.0, start.time_ms
    for event in sorted(log.all("power_reading"), key=lambda event: event.time_ms):
        if start.time_ms <= event.time_ms <= until and is_number(event.value):
            total, before = total + event.value * (event.time_ms - before), event.time_ms
    length = (stop.time_ms if stop else before) - start.time_ms
    return total / length if length > 0 else None
