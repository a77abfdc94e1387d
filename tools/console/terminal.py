"""The terminal on which the tools show what sessions and measurements do.

Whoever waits sees bars with the time left on a terminal, and plain lines elsewhere.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from cepheid.reference.run.generate import GenerationProgress
from cepheid.reference.run.generation import Times
from cepheid.reference.run.progress import OnProgress, Progress, Stage
from cepheid.reference.session.observer import OnCount
from cepheid.rules import evidence
from cepheid.rules.definition import Definition
from cepheid.rules.layout import wrap
from cepheid.rules.metrics import percentile

REACHED = "reached"
NO_BREAK = "\0"  # in place of a space within a metric and its target
TELL_SECONDS = 10.0  # until work that is counted says how long it takes; then twice as long
REFRESH_SECONDS = 0.5  # drawing takes milliseconds, and a run is being timed
# No thread draws (`auto_refresh`), because it would take processor time from the training.


@contextmanager
def show_count(title: str, unit: str, console: Console) -> Iterator[OnCount]:
    """Show a bar for work that is counted; yields a function to call with (done, total).

    Without a unit it leaves no line behind.
    """
    say = console.print if unit else lambda text: None
    with _make_bar(console) as bar:
        task = None
        started = drawn_seconds = 0.0
        first, next_told = 0, TELL_SECONDS

        def on_progress(done: int, total: int) -> None:
            nonlocal task, started, drawn_seconds, first, next_told
            if task is None:
                started, first = time.monotonic(), done
                say(f"{title}: {total:,} {unit}")
                task = bar.add_task(title, total=total)
            now = time.monotonic()
            if now - drawn_seconds >= REFRESH_SECONDS or done == total:
                drawn_seconds = now
                bar.update(task, completed=done, refresh=True)
            if first < done < total and now - started >= next_told:
                next_told = 2 * (now - started)
                rate = (done - first) / (now - started)
                left = (total - done) / rate
                rest = f"{left / 60:,.0f} min" if left >= 90 else f"{left:.0f} s"
                say(wrap(
                    f"{title}: about {rest} left at {rate:,.1f} "
                    f"{unit}/s, as measured on the first {done - first:,}"
                ))  # fmt: skip
            if done == total:
                say(f"{title}: done in {time.monotonic() - started:.0f} s")

        yield on_progress


class _Display:
    """A bar that is shown within a block."""

    def __init__(self, definition: Definition, console: Console, total: int | None) -> None:
        self.definition, self.console = definition, console
        self.drawn_seconds = 0.0
        self.bar = _make_bar(console)
        self.task = self.bar.add_task("starting", total=total)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()


class RunDisplay(_Display):
    """The progress of one run: a bar towards the usual number of samples, a line per evaluation."""

    def __init__(self, definition: Definition, console: Console) -> None:
        self.started_seconds: float | None = None
        usual = evidence.find_usual_samples(definition)
        self.expected_samples = usual or definition.timing.max_samples
        super().__init__(definition, console, self.expected_samples)

    def __call__(self, progress: Progress) -> None:
        """Show ``progress``; cheap enough to be called at every step."""
        now = time.monotonic()
        if progress.stage is Stage.TRAINING:
            self.started_seconds = self.started_seconds or now
            if now - self.drawn_seconds < REFRESH_SECONDS:
                return
            self.drawn_seconds = now
        if progress.stage is Stage.INITIALISING:
            self.console.print("initialising: building, compiling, warming up (not timed)")
        over = progress.samples > self.expected_samples
        total = self.definition.timing.max_samples if over else self.expected_samples
        self.bar.update(
            self.task,
            description=progress.stage.value,
            completed=progress.samples,
            total=total,
            refresh=True,
        )
        if progress.quality is not None:
            seconds = now - (self.started_seconds or now)
            done = f"{progress.samples:>9,} samples {seconds:6.0f} s"
            self.console.print(_format_quality(done, self.definition, progress.quality))


class GenerationDisplay(_Display):
    """The progress of one run that generates: a bar of repetitions, a line per number of images."""

    def __init__(self, definition: Definition, console: Console) -> None:
        assert definition.generation is not None
        schedule = definition.generation
        self.repetitions = dict(zip(schedule.counts, schedule.repetitions, strict=True))
        super().__init__(definition, console, None)

    def __call__(self, progress: Progress) -> None:
        """Show ``progress``; cheap enough to be called before every repetition."""
        if not isinstance(progress, GenerationProgress):
            progress = GenerationProgress(progress.stage)
        now = time.monotonic()
        if progress.stage is Stage.GENERATING and now - self.drawn_seconds < REFRESH_SECONDS:
            return
        self.drawn_seconds = now
        if progress.stage is Stage.INITIALISING:
            self.console.print("initialising: building, compiling, warming up (not timed)")
        images = f" {progress.images:,} at a time" if progress.images else ""
        self.bar.update(
            self.task,
            description=f"{progress.stage.value}{images}",
            completed=progress.done,
            total=self.repetitions.get(progress.images),
            refresh=True,
        )
        if progress.times is not None:
            self.console.print(wrap(_format_times(progress.times)))
        if progress.quality is not None:
            text = _format_quality("quality:", self.definition, progress.quality)
            self.console.print(text)


def _format_times(times: Times) -> str:
    def milliseconds(values: Sequence[float], percent: float = 50) -> str:
        return f"{1000 * percentile(values, percent):,.2f}"

    rate = times.images / percentile(times.seconds, 50)
    return (
        f"{times.images:>6,} images: {milliseconds(times.seconds):>9} ms (p50; "
        f"p99 {milliseconds(times.seconds, 99)}), sampling "
        f"{milliseconds(times.sampling_seconds)}, decoding {milliseconds(times.decoding_seconds)}; "
        f"{rate:,.0f} images/s; {len(times.seconds):,} repetitions"
    )


def _format_quality(start: str, definition: Definition, quality: Mapping[str, float]) -> str:
    """Return each metric with its target, green if it was reached, then those only reported."""
    parts = [start]
    for target in definition.quality:
        value = quality[target.metric]
        mark = REACHED if target.holds(value) else f"target {target.target:g}"
        parts.append(f"{target.metric} {value:.4f} ({mark})")
    parts += [f"{name} {quality[name]:.3f}" for name in definition.reported]
    line = wrap("  ".join(part.replace(" ", NO_BREAK) for part in parts)).replace(NO_BREAK, " ")
    return line.replace(f"({REACHED})", f"([green]{REACHED}[/])")


def _make_bar(console: Console) -> Bar:
    return Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        auto_refresh=False,
        disable=not console.is_terminal,
    )


class Terminal:
    """An observer (``cepheid.reference.session.observer``) that prints; a quiet one prints nothing.

    Where ``file`` is given, it prints into that file as on a terminal.
    """

    def __init__(self, *, quiet: bool = False, file: IO[str] | None = None) -> None:
        self.console = Console(
            quiet=quiet,
            file=file,
            force_terminal=True if file else None,
            highlight=False,
            soft_wrap=True,
        )

    def tell(self, message: str) -> None:
        """Print one message; brackets in paths are no markup."""
        self.console.print(wrap(message), markup=False)

    def count(self, title: str, unit: str = "") -> AbstractContextManager[OnCount]:
        """Return a progress bar, with the time left, for work that is counted."""
        return show_count(title, unit, self.console)

    def show_run(self, definition: Definition) -> AbstractContextManager[OnProgress]:
        """Return the display for a run of this kind of benchmark."""
        display = GenerationDisplay if definition.kind == "generate" else RunDisplay
        return display(definition, self.console)
