"""The live check of `cepheid run`: it judges a run log as it grows, and logs that are finished."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cepheid.compliance.checks import Place, check_log, check_result
from cepheid.compliance.failure import Failures
from cepheid.compliance.finding import Finding, has_error
from cepheid.compliance.judge import follow
from cepheid.compliance.judge.judgement import find_place
from cepheid.compliance.read import package
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.logs import ResultLogs, read_logs
from cepheid.reference.run.progress import OnProgress, Progress
from cepheid.rules import rounds
from cepheid.rules.findings import load_codes
from cepheid.tools.console.terminal import Terminal

SHARE_OF_TIME = 0.01  # at most: the log is judged between two blocks, while the clock runs
CAN_BE_FIXED = ("T16",)  # by the runs that are still to come


class LiveCheck:
    """A judge of one run log by the rules of `cepheid check`, between the blocks of the run.

    A violation that later records cannot fix is reported immediately, and only once. The run goes
    on: whoever reads the message decides. ``log`` is the name that the log gets when the run has
    ended.
    """

    def __init__(self, log: Path, tell: Callable[[str], None]) -> None:
        self.log, self.tell = log, tell
        self._growing = follow.GrowingLog(log)
        self._known, self._has_told = follow.KnownFindings(), False
        self._failures = Failures()  # of the checker, which must not end the run
        self._next_seconds = 0.0
        load_codes()  # the texts of findings are read now, not between two blocks of the run

    def watch(self, show: OnProgress) -> OnProgress:
        """Return a callback that calls ``show``, and judges the log where a stage has ended."""

        def on_progress(progress: Progress) -> None:
            show(progress)
            if not progress.stage.is_repeated:
                self.judge_so_far()

        return on_progress

    def judge_so_far(self) -> None:
        """Judge the records that are in the log now, unless that would take too much time.

        The first call costs most, and comes before the clock starts.
        """
        started = time.perf_counter()
        if started < self._next_seconds:
            return
        self._growing.read_new()  # opens the file
        self._growing.read_new()
        run, lines = self._growing.log(), self._growing.reading.lines_read
        place = _find_place(self.log)
        findings: list[Finding] = []
        with self._failures.caught(self.log):
            findings = follow.check_growing_log(run, lines, place, rounds.load())
        self._tell_new(findings)
        seconds = time.perf_counter() - started
        self._next_seconds = started + (seconds / SHARE_OF_TIME if run.first("run_start") else 0)

    def judge_result(self) -> bool:
        """Judge the whole log, which now has its own name, and the result as far as it goes.

        Return True if neither has an error that the runs to come cannot fix.
        """
        self._growing.close()
        finished, place = _read_finished(self.log.parent), _find_place(self.log)
        own = [run for run in finished.runs if run.path.name == self.log.name]
        findings = [each for run in own for each in check_log(run, place, rounds.load())]
        self._tell_new(findings)
        return _tell_errors(finished, place, self.tell) and not has_error(findings)

    def _tell_new(self, findings: list[Finding]) -> None:
        new = self._known.add(finding for finding in findings if finding.is_error)
        if new and not self._has_told:
            self.tell("this run can no longer count:")
        for finding in new:
            self._has_told = True
            self.tell(finding.text())


def judge_finished(folder: Path, tell: Callable[[str], None]) -> bool:
    """Judge the runs that a result has already, and tell which log is rejected and how to go on.

    Return True if neither a log nor the result has an error that the runs to come cannot fix.
    """
    finished, place = _read_finished(folder), _find_place(folder / "result_0.txt")
    rejected = []
    for run in finished.runs:
        found = check_log(run, place, rounds.load())
        errors = [finding for finding in found if finding.is_error]
        for finding in errors:
            tell(finding.text())
        rejected += [run.path] if errors else []
    for log in rejected:
        tell(
            f"{log}: the checker rejects this log, so the result has no score. fix: move the log "
            "out of the output folder (keep it for reviewers) and repeat the command, which makes "
            "this run again with the same seed"
        )
    return _tell_errors(finished, place, tell) and not rejected


def _tell_errors(finished: ResultLogs, place: Place, tell: Callable[[str], None]) -> bool:
    """Tell the errors of a result as a whole; return True if it has none.

    Those that the runs to come can fix are left out.
    """
    found = check_result(finished, place, rounds.load())
    errors = [each for each in found if each.is_error and each.rule not in CAN_BE_FIXED]
    if errors:
        tell("the result has no score as it is:")
    for finding in errors:
        tell(finding.text())
    return not errors


def _has_ended_finite(run: RunLog) -> bool:
    """Return False where a loss or a quality was not finite: its block or evaluation stays open."""
    pairs = (("block_start", "block_stop"), ("eval_start", "eval_accuracy"))
    return all(len(run.all(start)) == len(run.all(stop)) for start, stop in pairs)


def _read_finished(folder: Path) -> ResultLogs:
    (listed,) = package.read(folder).submitters[0].results
    return read_logs(listed)


def _find_place(log: Path) -> Place:
    """Return where the log lies, and what it must therefore contain."""
    submitter = package.find_around_log(log)
    return replace(find_place(submitter.results[0], submitter, rounds.load()), in_result=True)


class SessionTerminal(Terminal):
    """The terminal of a session: it also judges logs, those that grow and those that are there.

    Only ``is_first`` shows anything; with ``quiet`` that is what the judge finds. It does not judge
    what never counts (``is_trial``).
    """

    def __init__(self, *, is_first: bool, quiet: bool, is_trial: bool = False) -> None:
        super().__init__(quiet=quiet or not is_first)
        self._is_trial = is_trial
        self._warn = Terminal(quiet=is_trial or not is_first).tell

    def check_live(self, log: Path) -> LiveCheck:
        """Return a judge that prints the violations that it finds in a growing log."""
        return LiveCheck(log, self._warn)

    def judge_finished(self, folder: Path) -> bool:
        """Judge the runs that a result has already, and print what is wrong with them.

        Runs that never count are fine where they ended, as when they were made.
        """
        if self._is_trial:
            return all(map(_has_ended_finite, _read_finished(folder).runs))
        return judge_finished(folder, self._warn)
