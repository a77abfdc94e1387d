"""The live check of `cepheid run`: it judges the run log as it grows, and when it is closed."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from compliance.checks import Place, check_log, check_result
from compliance.finding import Finding
from compliance.judge import follow
from compliance.judge.judgement import find_place
from compliance.read import package
from compliance.read.logs import read_logs
from reference.run.progress import OnProgress, Progress
from rules import rounds

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
        self._next_seconds = 0.0

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
        self._tell_new(follow.check_growing_log(run, lines, _find_place(self.log), rounds.load()))
        seconds = time.perf_counter() - started
        self._next_seconds = started + (seconds / SHARE_OF_TIME if run.first("run_start") else 0)

    def judge_result(self) -> bool:
        """Judge the whole log, which now has its own name, and the result as far as it goes.

        Return True if neither has an error that the runs to come cannot fix.
        """
        self._growing.close()
        judged_in, place = rounds.load(), _find_place(self.log)
        (folder,) = package.read(self.log.parent).submitters[0].results
        result = read_logs(folder)
        has_error = False
        for run in result.runs:
            if run.path.name == self.log.name:
                findings = check_log(run, place, judged_in)
                self._tell_new(findings)
                has_error = any(finding.is_error for finding in findings)
        errors = [
            finding
            for finding in check_result(result, place, judged_in)
            if finding.is_error and finding.rule not in CAN_BE_FIXED
        ]
        if errors:
            self.tell("the result has no score as it is:")
        for finding in errors:
            self.tell(finding.text())
        return not (has_error or errors)

    def _tell_new(self, findings: list[Finding]) -> None:
        new = self._known.add(finding for finding in findings if finding.is_error)
        if new and not self._has_told:
            self.tell("this run can no longer count:")
        for finding in new:
            self._has_told = True
            self.tell(finding.text())


def _find_place(log: Path) -> Place:
    """Return where the log lies, and what it must therefore contain."""
    submitter = package.find_around_log(log)
    return replace(find_place(submitter.results[0], submitter, rounds.load()), in_result=True)
