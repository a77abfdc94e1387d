"""Check a run log while it is written, and report each finding as soon as it is certain.

The rules are those of a finished log. The lines that are there are judged as if the run were
aborted now (``abort_now``). A compliant run may be aborted at any record, so later lines cannot fix
what is wrong with these. What is missing is reported when training has begun: then it is too late
to add it.
"""

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.failure import Failures
from cepheid.compliance.finding import Finding, escape
from cepheid.compliance.read.log import records
from cepheid.compliance.read.log.reading import Reading
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import PARTIAL, RunLog, make_run_log, read
from cepheid.rules.errors import UserError
from cepheid.rules.events import CLOCK_METADATA, STATUS_ABORTED, find_event_type
from cepheid.rules.rounds import Round

POLL_SECONDS = 0.5
QUIET_SECONDS = 3.0  # after run_stop, for a log that is never renamed
JUDGING_SHARE = 0.1  # of the time at most, so long logs are judged less often

_DOORS = ("init_start", "init_stop", "run_start", "run_stop")


def check_growing_log(run: RunLog, lines: int, place: Place, judged_in: Round) -> list[Finding]:
    """Return the findings about the first ``lines`` lines of a log that is not complete."""
    findings = check_log(abort_now(run, lines), place, judged_in)
    return [finding for finding in findings if finding.line and finding.line <= lines]


def abort_now(run: RunLog, lines: int) -> RunLog:
    """Return the log as it would be if its run were aborted after ``lines`` lines."""
    run, start, stop = replace(run, grows=True), run.first("run_start"), run.first("run_stop")
    if not run.events or run.has_ended:
        # Where run_stop stands before run_start, missing records may still follow.
        is_early = stop is not None and (start is None or stop.line < start.line)
        return replace(run, ended=run.has_ended and not is_early)
    last = run.events[-1]
    passed = [number for number, key in enumerate(_DOORS, 1) if run.first(key)]
    to_come = [
        assume_event(key, lines + number, last, run.samples_trained)
        for number, key in enumerate(_DOORS[max(passed, default=0) :], 1)
    ]
    # Before the first record of the timed part, settings may still come (and be out of place).
    is_training = start is not None and start.line < last.line
    return replace(run, events=(*run.events, *to_come), ended=is_training)


def assume_event(key: str, line: int, last: Event, samples: int) -> Event:
    """Return an event that a run would still write, right after the last one that it wrote."""
    metadata: dict[str, object] = {"file": "", "lineno": 0}
    if last.monotonic_ms is not None:
        metadata[CLOCK_METADATA] = last.monotonic_ms
    if key == "run_stop":
        metadata |= {"status": STATUS_ABORTED, "samples_count": samples, "reason": "not yet over"}
    return Event(
        line=line, time_ms=last.time_ms, event_type=find_event_type(key), key=key, value=None,
        metadata=metadata,
    )  # fmt: skip


class KnownFindings:
    """The findings about a growing log that have been reported."""

    def __init__(self) -> None:
        self._identities: set[tuple[str, int | None, str]] = set()

    def add(self, findings: Iterable[Finding]) -> list[Finding]:
        """Add what one judgement found; return what no earlier judgement had found."""
        new = [finding for finding in findings if finding.identity not in self._identities]
        self._identities |= {finding.identity for finding in new}
        return new


@dataclass
class GrowingLog:
    """A run log that is being written. Only what is new is read, and only ``Reading`` is kept.

    ``path`` is the file that is read: ``given``, or the same name with ``.partial`` added.
    """

    given: Path
    path: Path | None = None
    reading: Reading = field(default_factory=Reading)
    _descriptor: int = -1
    _bytes: int = 0
    _rest: bytes = b""  # the beginning of a line that has not ended

    def read_new(self) -> str:
        """Read what is new, and return what happened to the file.

        The answer is ``waiting``, ``opened``, ``grown``, ``quiet``, ``renamed``, ``gone``, or
        ``anew`` for another log under the same name, which is read from its beginning.
        """
        if self._descriptor < 0:
            return "opened" if self._open() else "waiting"
        if os.fstat(self._descriptor).st_size < self._bytes:
            self._begin()
            return "anew"
        if self._read_on():
            return "grown"
        return self._check_name()

    def log(self) -> RunLog:
        """Return the log as far as it has been read, whole lines only."""
        return make_run_log(self.path or self.given, self.reading)

    @property
    def is_partial(self) -> bool:
        """True while the name says that the run goes on."""
        return self.path is not None and self.path.name.endswith(PARTIAL)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _open(self) -> bool:
        for path in (self.given, self.given.with_name(self.given.name + PARTIAL)):
            try:
                self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except (OSError, ValueError):
                continue
            if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                self.close()
                raise UserError(
                    f"{escape(str(path))}: is not a regular file, so no run log is written there; "
                    "give the run log itself"
                )
            self.path = path
            self._begin()
            return True
        return False

    def _begin(self) -> None:
        self.reading, self._bytes, self._rest = Reading(), 0, b""

    def _read_on(self) -> bool:
        data = os.pread(self._descriptor, records.LINE_BYTES_MAX, self._bytes)
        self._bytes += len(data)
        if self._bytes > records.FILE_BYTES_MAX:
            self.reading.is_stopped = True  # the final verdict says why
        end = data.rfind(b"\n") + 1
        if end:
            first = data.find(b"\n") + 1
            self.reading.read_lines(self._rest + data[:first])
            self.reading.read_lines(data[first:end])
            self._rest = b""
        # Of a line that is too long, enough is kept to see that it is too long.
        self._rest = (self._rest + data[end:])[: records.LINE_BYTES_MAX + 1]
        return bool(data)

    def _check_name(self) -> str:
        """Check, where nothing is new, whether the file still has its name."""
        assert self.path is not None
        opened = os.fstat(self._descriptor)
        try:
            if os.path.samestat(os.stat(self.path), opened):
                return "quiet"
        except OSError:
            has_ended = self.is_partial or self.log().has_ended
            for path in self._siblings() if has_ended else ():
                if os.path.samestat(os.lstat(path), opened):
                    self.path = path
                    return "renamed"
        self.close()
        return "anew" if self._open() else "gone"

    def _siblings(self) -> list[Path]:
        try:
            return [path for path in self.given.parent.iterdir() if path.is_file()]
        except OSError:
            return []


def follow_log(
    path: Path,
    place: Place,
    judged_in: Round,
    tell: Callable[[str], None],
    wait: Callable[[float], bool],
) -> Iterator[Finding]:
    """Yield the findings of a log that is being written as they become certain.

    When the run has ended, the findings follow that only a finished log can have. ``tell`` is
    called with what happens to the file. ``wait`` waits for some seconds and returns True to stop:
    the log is then judged as it stands.
    """
    growing, known, failures = GrowingLog(path), KnownFindings(), Failures()
    findings: list[Finding] = []
    try:
        for run in watch_states(growing, tell, wait):
            with failures.caught(path):
                lines = growing.reading.lines_read
                findings = check_growing_log(run, lines, place, judged_in)
            yield from known.add(findings)
    finally:
        growing.close()
    if growing.path is None:
        raise UserError(
            f"{path}: no program wrote such a log; check the path, or start the run first"
        )
    run, findings = RunLog(growing.path, ()), []
    with failures.caught(growing.path):
        run = read(growing.path)
    with failures.caught(growing.path):
        findings = check_log(run, place, judged_in)
    yield from known.add([*findings, *failures.findings[-1:]])


def watch_states(
    growing: GrowingLog, tell: Callable[[str], None], wait: Callable[[float], bool]
) -> Iterator[RunLog]:
    """Yield the log whenever there is something new to judge, until its run has ended."""
    before, is_judged, has_ended = "", True, False
    changed = judge_at = time.monotonic()
    while True:
        happened, now = growing.read_new(), time.monotonic()
        if happened != before or happened == "anew":
            report_event(happened, growing, tell)
        before, is_growing = happened, happened in ("opened", "grown", "anew")
        if is_growing:
            changed, is_judged = now, False
        if not is_judged and (now >= judge_at or not is_growing):
            run = growing.log()
            yield run
            is_judged, has_ended = True, run.has_ended
            judge_at = now + (time.monotonic() - now) / JUDGING_SHARE
        is_quiet = happened == "quiet" and now - changed >= QUIET_SECONDS
        if happened == "renamed" or (is_quiet and has_ended and not growing.is_partial):
            return
        if wait(0 if is_growing else POLL_SECONDS):
            return


def report_event(event: str, growing: GrowingLog, tell: Callable[[str], None]) -> None:
    """Report what happened to the file, where it concerns a person."""
    name = escape(str(growing.path or growing.given))
    messages = {
        "waiting": f"waiting for {name} or {escape(growing.given.name)}{PARTIAL}",
        "opened": f"following {name} until its run ends; press Ctrl-C for the verdict now",
        "anew": f"{name} was replaced by another log, which is read from its first line",
        "renamed": f"the log was renamed to {name}",
        "gone": f"{name} was removed; waiting for another one",
    }
    if event in messages:
        tell(messages[event])
