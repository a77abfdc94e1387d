"""Watch the pace of a run: say so where it falls far below that of its start, why, and the fix."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from cepheid.reference.run.autotune import OTHER_WORK
from cepheid.reference.run.generate import GenerationProgress
from cepheid.reference.run.progress import OnProgress, Progress, Stage
from cepheid.rules.host import usable_processors

WINDOW_SECONDS = 3.0  # of training, over several blocks if short; mini runs take a few of them
SLOW_RATIO = 2.0  # less is the usual drift of a machine that does other work, too
WINDOWS_OF_START = 2
STARVED_SHARE = 0.8  # of the processor time that the threads could have used

Clock = Callable[[], float]


class PaceWatch:
    """The samples a second of a run, window by window; ``watch`` returns its callback.

    The pace of the start is that of the fastest of the first windows. Generation becomes faster
    with the images at a time, so there it is the fastest window so far. It tells once.
    """

    def __init__(
        self,
        tell: Callable[[str], None],
        threads: Callable[[], int],
        clock: Clock = time.monotonic,
        processor_clock: Clock = time.process_time,
    ) -> None:
        self._tell, self._threads = tell, threads
        self._clock, self._processor_clock = clock, processor_clock
        self._last: tuple[float, float, int] | None = None  # both clocks, and samples
        self._seconds = self._processor_seconds = 0.0  # of the window
        self._samples = 0
        self._windows, self._start, self._has_told = 0, 0.0, False
        self._is_generating = False
        self._images = 0  # of all repetitions, up to the last change of the images at a time

    def watch(self, show: OnProgress) -> OnProgress:
        """Return a callback that calls ``show`` and measures the pace of the timed work."""

        def on_progress(progress: Progress) -> None:
            show(progress)
            if progress.stage is Stage.TRAINING:
                self._count(progress.samples)
            elif isinstance(progress, GenerationProgress) and progress.images:
                self._is_generating, images = True, progress.images * progress.done
                self._count(self._images + images)
                self._images += images if progress.stage is Stage.GENERATED else 0
            else:
                self._last = None  # evaluations and what is not timed have other paces

        return on_progress

    def _count(self, samples: int) -> None:
        now = self._clock(), self._processor_clock(), samples
        if self._last is not None:
            self._seconds += now[0] - self._last[0]
            self._processor_seconds += now[1] - self._last[1]
            self._samples += samples - self._last[2]
        self._last = now
        if self._seconds >= WINDOW_SECONDS and not self._has_told:
            self._compare(self._samples / self._seconds, self._processor_seconds / self._seconds)
            self._seconds, self._processor_seconds, self._samples = 0.0, 0.0, 0

    def _compare(self, pace: float, processors: float) -> None:
        self._windows += 1
        if self._windows > WINDOWS_OF_START and pace * SLOW_RATIO < self._start:
            self._has_told = True
            self._tell(self._explain(pace, processors))
        elif self._windows <= WINDOWS_OF_START or self._is_generating:
            self._start = max(self._start, pace)

    def _explain(self, pace: float, processors: float) -> str:
        work, samples = ("generation", "images") if self._is_generating else ("training", "samples")
        fell = f"the {work} fell from {self._start:,.4g} to {pace:,.4g} {samples} a second"
        return f"{fell}; {explain_slowness(processors, self._threads())}"


def explain_few_threads(execution: Mapping[str, Any]) -> str:
    """Return what to tell of a run that leaves processors to other work; else an empty string.

    ``execution`` are the settings that the run chose, with their reasons.
    """
    reason = str(execution.get("because", {}).get("threads", ""))
    if not reason.startswith(OTHER_WORK):
        return ""
    threads = f"{execution['threads']} thread" + "s" * (execution["threads"] != "1")
    return (
        f"{reason}, so all runs of this result compute on {threads}; fix: end the other work and "
        "begin a new result"
    )


def explain_slowness(processors: float, threads: int) -> str:
    """Return why a run is slower than at its start, and the fix.

    ``processors`` is the processor time that the run got in a second.
    """
    could_use = min(threads, usable_processors())
    if processors < STARVED_SHARE * could_use:
        load = f" (load {os.getloadavg()[0]:.1f})" if hasattr(os, "getloadavg") else ""
        why = (
            f"it gets {processors:.1f} of the {could_use} processors that its threads could use: "
            f"other work has the rest{load}"
        )
        fix = "end the other work"
        if threads > 1:
            fix += ", or begin a result with fewer threads (--set threads=1): threads wait for each"
            fix += " other"
    else:
        why = "it computes all the time, so the processor itself or its memory has become slower"
        fix = "look for heat, a limit of power, or other work on the same cores and memory"
    return f"{why}; fix: {fix}"
