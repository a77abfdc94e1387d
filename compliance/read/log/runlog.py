"""Run logs: ``read`` a file once, then ask the ``RunLog``. The only parser there is.

Nothing is raised for what a log holds: what is wrong with it is in ``problems``.
"""

import hashlib
import io
import math
import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cepheid.compliance.read.log import records
from cepheid.compliance.read.log.damage import describe_label
from cepheid.compliance.read.log.reading import Reading
from cepheid.compliance.read.log.records import Event, Problem
from cepheid.rules.events import GENERATION_SECONDS, STATUS_SUCCESS, is_integer, is_number
from cepheid.rules.metrics import compute_generation_scores
from cepheid.rules.rounds import Dialect

CHUNK_BYTES = 2**20
OLD: Set[Dialect] = {"mlp", "mll"}  # of which some logs call their first epoch 0
EPOCHS_MAX = 10_000  # no run takes as many; a larger number counts samples


class HashingFile(io.FileIO):
    """An unbuffered file that hashes every byte that a reader takes from it."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "rb", closefd=False)
        self._hash = hashlib.sha256()

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer and return the number of bytes that were read."""
        count = super().readinto(buffer) or 0
        self._hash.update(memoryview(buffer)[:count])
        return count

    def readall(self) -> bytes:
        """Return everything that has not been read yet."""
        data = super().readall() or b""
        self._hash.update(data)
        return data

    def finish(self) -> str:
        """Read to the end of the file and return the SHA-256 of all of it in hexadecimal."""
        buffer = bytearray(CHUNK_BYTES)
        while self.readinto(buffer):
            pass
        return self._hash.hexdigest()


EventsByKey = Mapping[str, Sequence[Event]]


def group(events: Iterable[Event]) -> EventsByKey:
    """Return the events of each key, in the order of the lines."""
    by_key: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_key[event.key].append(event)
    return dict(by_key)


PARTIAL = ".partial"  # behind the name of a log until its run has ended


@dataclass(frozen=True)
class QualityPoint:
    """One evaluation: when it was logged, after how many samples, what it found."""

    line: int
    seconds: float
    samples: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class RunLog:
    """All that was read from one run log, in the order of its lines; equal only to itself.

    ``labels`` has the text before the marker of each line where that is the only problem, and
    ``other_problems`` the rest: a round that tolerates such text never looks at a problem for each.
    ``ended`` is False if records of the run may still follow. ``grows`` is True while the log is
    still written; findings that need all of its blocks are not reported then.
    """

    path: Path
    events: tuple[Event, ...]
    other_problems: tuple[Problem, ...] = ()
    labels: tuple[tuple[int, bytes], ...] = ()
    not_finite: frozenset[int] = frozenset()  # lines that hold NaN or an infinite number
    dialects: Mapping[Dialect, int] = field(default_factory=dict)  # and the first line of each
    ended: bool = True
    grows: bool = False
    sha256: str = ""  # of the file, if it is wanted and all of the file could be read

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """Everything that does not follow rule T1, in the order of the lines."""
        problems = [describe_label(line, label.decode()) for line, label in self.labels]
        problems += self.other_problems
        return tuple(sorted(problems, key=lambda problem: problem.line or math.inf))

    @cached_property
    def by_key(self) -> EventsByKey:
        """The events of each key."""
        return group(self.events)

    def all(self, key: str) -> Sequence[Event]:
        """Return all events of a key, in the order of the lines."""
        return self.by_key.get(key, ())

    def first(self, key: str) -> Event | None:
        """Return the first event of a key, or None."""
        events = self.all(key)
        return events[0] if events else None

    def value(self, key: str) -> Any:
        """Return the value of the first event of a key, or None."""
        event = self.first(key)
        return None if event is None else event.value

    def text(self, key: str) -> str | None:
        """Return the value of the first event of a key if it is a string, else None."""
        value = self.value(key)
        return value if isinstance(value, str) else None

    @property
    def is_complete(self) -> bool:
        """True when no record was lost and none may still come, so that missing ones count."""
        return self.ended and not self.has_lost_records

    @cached_property
    def has_lost_records(self) -> bool:
        """True when the file holds a record that could not be read."""
        return any(problem.lost for problem in self.other_problems)

    @cached_property
    def is_foreign(self) -> bool:
        """True when the log was read in a form that mlcommons' checker does not read."""
        return any(problem.foreign for problem in self.other_problems)

    @property
    def has_ended(self) -> bool:
        """True when the log says that its run is over."""
        return self.first("run_stop") is not None or self.first("init_aborted") is not None

    @property
    def index(self) -> int | None:
        """The number k of ``result_<k>.txt``, even while it is written; None for another name."""
        match = re.fullmatch(r"result_(0|[1-9][0-9]{0,5})\.txt(\.partial)?", self.path.name)
        return int(match.group(1)) if match else None

    @property
    def seconds(self) -> float | None:
        """Time of the run: run_stop minus run_start, by the wall clock (rule T7)."""
        start, stop = self.first("run_start"), self.first("run_stop")
        if start is None or stop is None:
            return None
        return (stop.time_ms - start.time_ms) / 1000

    @property
    def timed_ms(self) -> tuple[float, float] | None:
        """The monotonic clock at run_start and at run_stop; None where one of them is missing."""
        ends = self.first("run_start"), self.first("run_stop")
        start_ms, stop_ms = (event.monotonic_ms if event else None for event in ends)
        return None if start_ms is None or stop_ms is None else (start_ms, stop_ms)

    @property
    def implementation(self) -> Mapping[str, Any]:
        """What the log says of how its run was made; empty where it says nothing."""
        how = self.value("implementation")
        return how if isinstance(how, dict) else {}

    def list_intervals(self, ends: Mapping[str, str]) -> Iterator[tuple[Event, Event]]:
        """Yield each event of ``ends`` with the next one that ends it, in the order of the ends."""
        opened: dict[str, Event] = {}
        for event in self.events:
            if event.key in ends:
                opened[ends[event.key]] = event
            elif event.key in opened:
                yield opened.pop(event.key), event

    @property
    def status(self) -> str | None:
        """``success`` or ``aborted``, as the log says; None without run_stop."""
        stop = self.first("run_stop")
        status = stop.metadata.get("status") if stop else None
        if stop and status is None and "mlp" in self.dialects:
            return STATUS_SUCCESS if self._has_reached_target else None
        return status if isinstance(status, str) else None

    @property
    def _has_reached_target(self) -> bool:
        """Whether the last evaluation reached ``eval_target``: some logs of v0.5 say no more."""
        found, target = [event.value for event in self.evaluations], self.value("eval_target")
        return bool(found) and is_number(found[-1]) and is_number(target) and found[-1] >= target

    @property
    def converged(self) -> bool:
        """True when the log says that the run reached its targets."""
        return self.status == STATUS_SUCCESS

    @property
    def samples_trained(self) -> int:
        """Training samples of the blocks that were completed."""
        blocks = self.all("block_stop")
        samples = blocks[-1].metadata.get("samples_count") if blocks else 0
        return samples if is_integer(samples) else 0

    @property
    def samples_to_target(self) -> int | None:
        """Training samples until the targets held; None for a run that did not converge."""
        curve = self.quality_curve
        return curve[-1].samples if self.converged and curve else None

    @property
    def update_time_ratio(self) -> float | None:
        """The time of an update in the completed blocks divided by that of a plain update.

        The plain update is measured after the run, by benchmarks whose updates do more (K-FAC). The
        ratio is None for all others.
        """
        plain_ms, batch = self.value("plain_update_ms"), self.value("global_batch_size")
        if not (is_time(plain_ms) and plain_ms and is_integer(batch) and batch > 0):
            return None
        pace = self.samples_per_second
        return 1000 * batch / pace / plain_ms if pace else None

    @property
    def samples_per_second(self) -> float | None:
        """Training samples a second in the completed blocks, without evaluations."""
        stops = self.all("block_stop")
        starts = self.all("block_start")[: len(stops)]
        taken_ms = sum(stop.time_ms for stop in stops) - sum(start.time_ms for start in starts)
        return 1000 * self.samples_trained / taken_ms if taken_ms > 0 else None

    @cached_property
    def generation(self) -> Mapping[str, float]:
        """The scores of a run that generated and converged (rule T26), by name; else nothing."""
        images, seconds = [], []
        for event in self.all("generation_times"):
            count, times = event.metadata.get("images_count"), read_repetitions(event)
            if not is_integer(count) or times is None:
                return {}
            images.append(count)
            seconds.append(times)
        return compute_generation_scores(images, seconds) if images and self.converged else {}

    @property
    def evaluations(self) -> Sequence[Event]:
        """The results of the evaluations in a log of MLPerf, whatever the benchmark calls them."""
        return self.all("eval_accuracy") or self.all("eval_error")

    @cached_property
    def progress(self) -> tuple[float, bool] | None:
        """How far a run of MLPerf came, and whether that counts samples; else it is in epochs.

        That is said by the last evaluation before run_stop of a run that converged. Some logs go on
        evaluating after run_stop. Some write samples as ``epoch_num``, which no epochs are as many
        as. Some of v0.6 call their first epoch 0: their epochs are one more than they say.
        """
        stop = self.first("run_stop")
        if stop is None or not self.converged:
            return None
        evaluations = [event for event in self.evaluations if event.line < stop.line]
        before = [event.metadata for event in evaluations]
        if before and "metric" in before[-1]:
            return _find_first_success(evaluations)
        if before and is_number(samples := before[-1].get("samples_count")):
            return samples, True
        labels = [metadata.get("epoch_num") for metadata in before]
        if not labels or not is_number(labels[-1]):
            return None
        counts_from_zero = is_integer(labels[0]) and labels[0] == 0 and self.dialects.keys() & OLD
        return labels[-1] + bool(counts_from_zero), labels[-1] > EPOCHS_MAX

    @cached_property
    def quality_curve(self) -> tuple[QualityPoint, ...]:
        """The evaluations that can be read; seconds count from run_start."""
        start = self.first("run_start")
        if start is None:
            return ()
        points = []
        for event in self.all("eval_accuracy"):
            samples, metrics = event.metadata.get("samples_count"), event.metadata.get("metrics")
            if is_integer(samples) and isinstance(metrics, dict):
                numbers = {key: float(value) for key, value in metrics.items() if is_number(value)}
                seconds = (event.time_ms - start.time_ms) / 1000
                points.append(QualityPoint(event.line, seconds, samples, numbers))
        return tuple(points)


JOINED_TARGETS = {"FID": (0.0, 90.0), "CLIP": (0.15, 1.0)}  # of stable_diffusion (rcp_checker.py)


def _find_first_success(evaluations: Sequence[Event]) -> tuple[float, bool] | None:
    """Return the samples of the first evaluation whose metrics, logged apart, are all good."""
    good: defaultdict[float, set[str]] = defaultdict(set)
    for event in evaluations:
        name, value = event.metadata.get("metric"), event.value
        samples = event.metadata.get("samples_count", event.metadata.get("step_num"))
        low, high = JOINED_TARGETS.get(str(name), (math.inf, -math.inf))
        if is_number(samples) and is_number(value) and low <= value <= high:
            good[samples].add(str(name))
    passed = [samples for samples, names in good.items() if names == JOINED_TARGETS.keys()]
    return (min(passed), True) if passed else None


def read_repetitions(event: Event) -> tuple[float, ...] | None:
    """Return the seconds of each repetition in a ``generation_times`` record.

    Each is the sum of sampling and decoding. Returns None if the record does not hold such times.
    """
    parts: list[list[float]] = []
    for name in GENERATION_SECONDS:
        part = event.value.get(name) if isinstance(event.value, dict) else None
        if not isinstance(part, list) or not all(map(is_time, part)):
            return None
        parts.append(part)
    if not parts[0] or any(len(part) != len(parts[0]) for part in parts):
        return None
    seconds = tuple(float(sum(repetition)) for repetition in zip(*parts, strict=True))
    return seconds if min(seconds) > 0 else None


def is_time(value: object) -> bool:
    """Return whether a value is a number of seconds or milliseconds: finite, 0 or more."""
    return is_number(value) and 0 <= value < math.inf


def read(path: Path, with_digest: bool = False, is_lenient: bool = False) -> RunLog:
    """Read a run log. What is wrong with it is in ``problems``; nothing is raised for its content.

    A path that is no regular file gives a log without events and one problem. ``with_digest`` also
    hashes the file from the same bytes. ``is_lenient`` is for rounds that tolerate what stands
    around records and which fields they have: such problems are not looked for.
    """
    reading, sha256 = Reading(is_lenient=is_lenient), ""
    try:
        # Without O_NONBLOCK, opening a named pipe waits for a writer that may never come.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        reading.add_problem(None, "file", "the file cannot be opened", str(reason), lost=True)
        return RunLog(path, (), tuple(reading.problems))
    try:
        sha256 = _read_file(descriptor, reading, with_digest)
    except OSError as error:
        reading.add_problem(None, "file", "the file cannot be read", str(error.strerror), lost=True)
    finally:
        os.close(descriptor)
    return make_run_log(path, reading, sha256)


def make_run_log(path: Path, reading: Reading, sha256: str = "") -> RunLog:
    """Make a run log of what has been read so far."""
    return RunLog(
        path,
        tuple(reading.events),
        tuple(reading.problems),
        tuple(reading.labels),
        frozenset(reading.not_finite),
        reading.dialects,
        sha256=sha256,
    )


def _read_file(descriptor: int, reading: Reading, with_digest: bool) -> str:
    """Read all lines of an open file, and return its digest if that is wanted."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        reading.add_problem(None, "file", "this is not a regular file", lost=True)
    elif status.st_size > records.FILE_BYTES_MAX:
        message = f"the file is larger than {records.FILE_BYTES_MAX // 2**20} MiB"
        reading.add_problem(None, "file", message, f"{status.st_size:,} bytes", lost=True)
    elif with_digest:
        hashed = HashingFile(descriptor)
        file: io.BufferedReader = io.BufferedReader(hashed)
        reading.read_file(file)
        file.detach()
        return hashed.finish()
    else:
        with open(descriptor, "rb", closefd=False) as plain:
            reading.read_file(plain)
    return ""
