"""The course of a run, for whoever draws it, and its pace: samples a second, in which precision."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cepheid.compliance.read.log.records import INTEGER_MAX
from cepheid.compliance.read.log.runlog import RunLog, read_repetitions
from cepheid.rules.definition import Definition
from cepheid.rules.devices import Peak, PeakShare, compute_share
from cepheid.rules.events import is_integer
from cepheid.rules.generation import METRICS

SPANS_MAX = 600  # of one run on the time line; more would be thinner than a hair

_SPANS = {  # the event that begins a stretch, the one that ends it, and what it is called
    "init_start": ("init_stop", "init"),
    "block_start": ("block_stop", "block"),
    "eval_start": ("eval_stop", "evaluation"),
    "generation_start": ("generation_stop", "generation"),
}
_STARTS = {stop: start for start, (stop, _) in _SPANS.items()}


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a run, in seconds since the first event of its initialisation."""

    kind: str
    start_seconds: float
    stop_seconds: float
    note: str


@dataclass(frozen=True, slots=True)
class Point:
    """An evaluation; seconds count from run_start."""

    seconds: float
    samples: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Timing:
    """The median time of the repetitions that generated ``images`` at a time, in seconds."""

    images: int
    seconds: float
    repetitions: int


@dataclass(frozen=True, slots=True)
class Course:
    """What happened during a run.

    Spans and ``run_start_seconds`` count from the first ``init_start``, or from ``run_start`` in a
    log without one. ``left_out_spans`` is the number of spans beyond ``SPANS_MAX``.
    """

    curve: tuple[Point, ...]
    spans: tuple[Span, ...]
    left_out_spans: int
    run_start_seconds: float | None
    timings: tuple[Timing, ...]


def trace_course(run: RunLog) -> Course:
    """Take from a log what is needed to draw its run."""
    begin, start = run.first("init_start") or run.first("run_start"), run.first("run_start")
    spans = list(_find_spans(run, begin.time_ms)) if begin else []
    return Course(
        curve=tuple(
            Point(point.seconds, read_count(point.samples) or 0, dict(point.metrics))
            for point in run.quality_curve
        ),
        spans=tuple(spans[:SPANS_MAX]),
        left_out_spans=max(0, len(spans) - SPANS_MAX),
        run_start_seconds=(start.time_ms - begin.time_ms) / 1000 if start and begin else None,
        timings=tuple(_find_timings(run)),
    )


def read_count(value: object) -> int | None:
    """Return a number of something, or None for what is no such number.

    A log may hold integers that are too large for a float.
    """
    return value if is_integer(value) and 0 <= value < INTEGER_MAX else None


def _find_spans(run: RunLog, zero_ms: float) -> Iterator[Span]:
    """Find the stretches between an event and the next one that ends it, in order of their ends."""
    open_since: dict[str, float] = {}
    for event in run.events:
        if event.key in _SPANS:
            open_since[event.key] = event.time_ms
        elif _STARTS.get(event.key) in open_since:
            key = _STARTS[event.key]
            since, until = (open_since.pop(key) - zero_ms) / 1000, (event.time_ms - zero_ms) / 1000
            if until >= since:
                yield Span(_SPANS[key][1], since, until, _describe(event.metadata))


def _describe(metadata: Mapping[str, object]) -> str:
    for key, what in (("samples_count", "samples"), ("images_count", "images at a time")):
        count = read_count(metadata.get(key))
        if count is not None:
            return f"{count:,} {what}"
    return ""


def _find_timings(run: RunLog) -> Iterator[Timing]:
    for event in run.all("generation_times"):
        images, seconds = read_count(event.metadata.get("images_count")), read_repetitions(event)
        if images and seconds:
            yield Timing(images, statistics.median(seconds), len(seconds))


PRECISION_MAX = 40  # characters
THROUGHPUT = METRICS[-1].name


@dataclass(frozen=True, slots=True)
class Pace:
    """What a log tells of the speed of its run, by the wall clock.

    ``samples_per_second`` are those of training, without evaluations, or the images a second of
    rule T26.
    """

    samples_per_second: float
    precision: str
    parameters: int | None

    def compute_share(self, definition: Definition, peak: Peak | None) -> PeakShare | None:
        """Return the share of a peak; None for another model than the definition's."""
        flops = definition.flops_per_sample
        is_counted = self.parameters == definition.model["parameters"]
        if flops is None or peak is None or not is_counted:
            return None
        return compute_share(flops, self.samples_per_second, peak)


def measure_pace(run: RunLog) -> Pace | None:
    """Return the pace of a run, or None where its log does not tell."""
    how = run.value("implementation")
    precision = how.get("precision") if isinstance(how, dict) else None
    is_training = run.first("generation_times") is None
    rate = run.samples_per_second if is_training else run.generation.get(THROUGHPUT)
    if not rate or not isinstance(precision, str):
        return None
    return Pace(rate, precision[:PRECISION_MAX], read_count(run.value("model_parameters")))
