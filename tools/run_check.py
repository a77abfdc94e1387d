"""What the checker says of a run: while it goes on, and when its log is closed."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from compliance.checks import Place, check_log, check_result
from compliance.finding import Finding
from compliance.judge import follow
from compliance.judge.judgement import place_of
from compliance.read import package
from compliance.read.logs import read_logs
from rules import rounds

if TYPE_CHECKING:
    from rich.console import Console

    from reference.run.progress import OnProgress, Progress

SHARE_OF_TIME = 0.01  # at most: judging happens between two blocks, while the clock runs
CAN_BE_MENDED = ("T16",)  # by the runs that are still to be made


class LiveCheck:
    """Judges the log of one run between its blocks, by the rules of `cepheid check`, and says once
    what nothing that follows can mend. The run goes on: who reads it decides.

    ``log`` is the name that it gets when the run has ended; None on all ranks but the first.
    """

    def __init__(self, log: Path | None, console: "Console") -> None:
        self.log, self.console = log, console
        self._growing = follow.GrowingLog(log) if log else None
        self._known, self._has_told = follow.KnownFindings(), False
        self._next_seconds = 0.0

    def beside(self, show: "OnProgress") -> "OnProgress":
        """``show``, and after it a look at the log wherever a block, or all of them, has ended."""

        def on_progress(progress: "Progress") -> None:
            show(progress)
            if not progress.stage.is_repeated:
                self.look()

        return on_progress

    def look(self) -> None:
        """Judge what is in the log by now. The first time, before the clock, costs most."""
        begun = time.perf_counter()
        if self._growing is None or begun < self._next_seconds:
            return
        self._growing.read_new()  # opens it
        self._growing.read_new()
        run, lines = self._growing.log(), self._growing.reading.lines_read
        assert self.log is not None
        self._tell(follow.check_growing_log(run, lines, _place(self.log), rounds.load()))
        took = time.perf_counter() - begun
        self._next_seconds = begun + (took / SHARE_OF_TIME if run.first("run_start") else 0)

    def ended(self) -> None:
        """Judge the whole log under its own name, and the result as far as it goes."""
        if self._growing is None or self.log is None:
            return
        self._growing.close()
        judged_in, place = rounds.load(), _place(self.log)
        (folder,) = package.read(self.log.parent).submitters[0].results
        result = read_logs(folder)
        for run in result.runs:
            if run.path.name == self.log.name:
                self._tell(check_log(run, place, judged_in))
        together = [f for f in check_result(result, place, judged_in) if f.is_error]
        together = [f for f in together if f.rule not in CAN_BE_MENDED]
        if together:
            self.console.print("the result has no score as it is:")
        for finding in together:
            self.console.print(finding.text(), markup=False)

    def _tell(self, findings: list[Finding]) -> None:
        new = self._known.add(finding for finding in findings if finding.is_error)
        if new and not self._has_told:
            self.console.print("this run can no longer count:")
        for finding in new:
            self._has_told = True
            self.console.print(finding.text(), markup=False)


def _place(log: Path) -> Place:
    """Where the log lies and what it must say there."""
    who = package.around_log(log)
    return replace(place_of(who.results[0], who, rounds.load()), in_result=True)
