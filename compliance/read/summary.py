"""What remains of a run log once its result is judged: small, frozen and picklable.

The process that judges a result parses its logs and lets them go. Manifests, scores, rows and the
site work on these summaries, so no log is parsed a second time.
"""

import math
import statistics
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
from msgspec import Struct

from cepheid.compliance.finding import escape, format_value
from cepheid.compliance.read.log.records import INTEGER_MAX
from cepheid.compliance.read.log.runlog import RunLog, read_repetitions
from cepheid.compliance.read.logs import ResultLogs
from cepheid.compliance.read.powerlog import PowerLog
from cepheid.rules.definition import Definition
from cepheid.rules.events import CHOICES, STATUS_SUCCESS, is_integer, is_number
from cepheid.rules.evidence import find_crossing
from cepheid.rules.metrics import METRICS
from cepheid.rules.systems import Peak, PeakShare, compute_share

SPANS_MAX = 600  # of one run on the time line; more would be thinner than a hair

_SPANS = {  # what the stretch is called that begins with an event
    "init_start": "init",
    "block_start": "block",
    "eval_start": "evaluation",
    "generation_start": "generation",
}
_ENDS = {start: start.replace("start", "stop") for start in _SPANS}


class Span(Struct, frozen=True, array_like=True):
    """A stretch of a run, in seconds since the first event of its initialisation."""

    kind: str
    start_seconds: float
    stop_seconds: float
    note: str


class Point(Struct, frozen=True, array_like=True):
    """An evaluation; seconds count from run_start."""

    seconds: float
    samples: int
    metrics: Mapping[str, float]


class Timing(Struct, frozen=True, array_like=True):
    """The median time of the repetitions that generated ``images`` at a time, in seconds."""

    images: int
    seconds: float
    repetitions: int


class Course(Struct, frozen=True, array_like=True):
    """What happened during a run.

    Spans and ``run_start_seconds`` count from the first ``init_start``, or from ``run_start`` in a
    log without one. ``left_out_spans`` is the number of spans beyond ``SPANS_MAX``.
    """

    curve: tuple[Point, ...]
    spans: tuple[Span, ...]
    left_out_spans: int
    run_start_seconds: float | None
    timings: tuple[Timing, ...]


@lru_cache(maxsize=64)  # a page asks for those of its runs again and again
def unpack_course(packed: bytes) -> Course:
    """Return what ``pack_course`` made bytes of."""
    return msgspec.msgpack.decode(zlib.decompress(packed), type=Course)


def pack_course(run: RunLog) -> bytes:
    """Take from a log what is needed to draw its run, in a tenth of the memory of its objects."""
    begin, start = run.first("init_start") or run.first("run_start"), run.first("run_start")
    spans = list(_find_spans(run, begin.time_ms)) if begin else []
    curve = []
    for point in run.quality_curve:
        # JSON may have halves of characters, and UTF-8 has none.
        metrics = {n.encode(errors="replace").decode(): v for n, v in point.metrics.items()}
        curve.append(Point(point.seconds, read_count(point.samples) or 0, metrics))
    course = Course(
        curve=tuple(curve),
        spans=tuple(spans[:SPANS_MAX]),
        left_out_spans=max(0, len(spans) - SPANS_MAX),
        run_start_seconds=(start.time_ms - begin.time_ms) / 1000 if start and begin else None,
        timings=tuple(_find_timings(run)),
    )
    return zlib.compress(msgspec.msgpack.encode(course), 1)


def read_count(value: object) -> int | None:
    """Return a number of something, or None for what is no such number.

    A log may hold integers that are too large for a float.
    """
    return value if is_integer(value) and 0 <= value < INTEGER_MAX else None


def _find_spans(run: RunLog, zero_ms: float) -> Iterator[Span]:
    for start, stop in run.list_intervals(_ENDS):
        since, until = ((event.time_ms - zero_ms) / 1000 for event in (start, stop))
        if until >= since:
            yield Span(_SPANS[start.key], since, until, _describe(stop.metadata))


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
    precision = run.implementation.get("precision")
    is_training = run.first("generation_times") is None
    rate = run.samples_per_second if is_training else run.generation.get(THROUGHPUT)
    if not rate or not isinstance(precision, str):
        return None
    return Pace(rate, precision[:PRECISION_MAX], read_count(run.value("model_parameters")))


TEXT_MAX = 200  # characters of a text that are kept: no name that we accept is as long
STATUS_MAX = 40
BATCH_SIZE = "global_batch_size"
ORIGINS = CHOICES["origin"]
_TEXTS = (
    "submission_org", "submission_platform", "submission_benchmark", "submission_scale",
    "submission_division", "submission_status", "definition_digest", "code_digest",
)  # fmt: skip
Scalar = str | int | float | bool | None
NUMBER_MAX = 2**53  # beyond it, JSON readers round integers
PRECISIONS = {f"lowest_numerical_precision_in_{part}": part for part in ("linear", "attn", "comm")}
PARALLEL = {
    "tensor_parallelism": "TP", "pipeline_parallelism": "PP", "context_parallelism": "CP",
    "expert_parallelism": "EP",
}  # fmt: skip
_SETUP = ("number_of_nodes", "accelerators_per_node", *PRECISIONS, *PARALLEL)


@dataclass(frozen=True, slots=True)
class CodeDigest:
    """The digest of the submitter's own code that a log names, and the line that names it."""

    line: int
    value: str | None  # None where it is not a text
    shown: str


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run as its log tells it.

    ``number`` is k of ``result_<k>.txt``, else the place of the log in its result. ``started_ms``
    is the time of run_start since 1970, ``seconds`` the time from there to run_stop. ``samples``
    and ``epochs`` are those to the target, ``trained`` those until run_stop. ``crossing`` are the
    samples at which it crossed the targets, interpolated between two evaluations (rule T20).
    ``metrics`` are those of the last evaluation, ``generation`` the scores of rule T26 of a run
    that converged. ``pace`` is its speed, ``joules`` the energy of the run by its power log.
    ``setup`` is what logs of MLPerf say of machine, precision and parallelism. A run that
    ``is_refused`` breaks rules of its round, and counts as one that did not converge.
    ``packed_course`` and ``hyperparameters`` are there only where the run is to be shown.
    """

    path: Path
    number: int
    status: str | None
    seconds: float | None
    started_ms: float | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    batch_size: int | None = None
    seed: int | None = None
    seed_origin: str = ""
    samples: int | None = None
    crossing: float | None = None
    trained: int | None = None
    epochs: float | None = None
    metrics: Mapping[str, float] | None = None
    generation: Mapping[str, float] = field(default_factory=dict)
    update_time_ratio: float | None = None
    pace: Pace | None = None
    joules: float | None = None
    setup: Mapping[str, int | str | None] = field(default_factory=dict)
    is_refused: bool = False
    code: CodeDigest | None = None
    hyperparameters: Mapping[str, Scalar] = field(default_factory=dict)
    packed_course: bytes = b""

    def text(self, key: str) -> str | None:
        """Return the value of the first record of a key, if it is a text that is kept."""
        return self.texts.get(key)

    @property
    def converged(self) -> bool:
        """True where the log says that the run reached its targets."""
        return self.status == STATUS_SUCCESS

    @property
    def ending(self) -> str:
        """How the run ended, as people read it."""
        return escape(self.status or "no run_stop")

    @property
    def minutes(self) -> float:
        """Time of the run in minutes; infinite for one that did not converge: it is the slowest.

        So is one whose clock does not advance, which rules T7 and M5 report.
        """
        if not self.converged or self.is_refused or self.seconds is None or self.seconds <= 0:
            return math.inf
        return self.seconds / 60


HasTexts = RunLog | RunSummary
"""A run log, or what remains of one: both hold the texts of its records."""


@dataclass(frozen=True)
class ResultSummary:
    """What remains of the logs of a result.

    ``digests`` has the SHA-256 of each file by its absolute path. ``not_measured`` is what the
    power logs leave out, None without power logs; those of MLPerf do not say. ``scaling`` is what
    mlcommons multiplied the score by.
    """

    runs: tuple[RunSummary, ...] = ()
    not_measured: str | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    scaling: float = 1.0


def summarize(
    logs: ResultLogs, with_course: bool = False, definition: Definition | None = None
) -> ResultSummary:
    """Summarize the logs of a result.

    ``with_course`` keeps what is needed to show the runs, with their hyperparameters.
    """
    power_of: dict[int | None, PowerLog] = {power.index: power for power in logs.power}
    runs = (
        summarize_run(run, place, power_of.get(run.index), with_course, definition)
        for place, run in enumerate(logs.runs)
    )
    joules, not_measured = logs.joules, escape(logs.power[0].not_measured) if logs.power else None
    runs = (replace(run, joules=joules.get(run.path.stem, run.joules)) for run in runs)
    scaling = float(factor) if is_scaling(factor := logs.scaling) else 1.0
    not_measured = "" if joules else not_measured
    return ResultSummary(tuple(_share(runs)), not_measured, logs.digests, scaling)


def _share(runs: Iterable[RunSummary]) -> Iterator[RunSummary]:
    """Let runs share what all of them say alike: a site holds ten thousand of them in memory."""
    known: dict[str, Mapping[str, Any]] = {}

    def share(said: Mapping[str, Any]) -> Mapping[str, Any]:
        return known.setdefault(repr(said), said)

    for run in runs:
        settings = share(run.hyperparameters)
        yield replace(run, texts=share(run.texts), setup=share(run.setup), hyperparameters=settings)


def is_scaling(factor: object) -> TypeGuard[float]:
    """Return whether a score can be multiplied by a factor: mlcommons never makes it better."""
    return is_number(factor) and 1 <= factor < math.inf


def summarize_run(
    run: RunLog,
    place: int = 0,
    power: PowerLog | None = None,
    with_course: bool = False,
    definition: Definition | None = None,
) -> RunSummary:
    """Summarize one log. ``place`` numbers a log whose name has no number."""
    seed, said = run.first("seed"), run.first("task_digest")
    code = CodeDigest(said.line, _keep_text(said.value), format_value(said.value)) if said else None
    origin = seed.metadata.get("origin") if seed else None
    start = run.first("run_start")
    count, is_samples = run.progress or (None, False)
    kept = definition.hyperparameters if with_course and definition else ()
    return RunSummary(
        path=run.path,
        number=place if run.index is None else run.index,
        status=None if run.status is None else run.status[:STATUS_MAX],
        seconds=run.seconds,
        started_ms=start.time_ms if start else None,
        texts={key: text[:TEXT_MAX] for key in _TEXTS if (text := run.text(key)) is not None},
        batch_size=read_count(run.value(BATCH_SIZE)) or None,
        seed=read_count(seed.value) if seed else None,
        seed_origin=str(origin) if origin in ORIGINS else "",
        samples=read_count(count if is_samples else run.samples_to_target),
        crossing=measure_crossing(run, definition) if definition else None,
        trained=read_count(run.samples_trained) or None,
        epochs=None if is_samples else count,
        metrics=dict(run.quality_curve[-1].metrics) if run.quality_curve else None,
        generation=dict(run.generation),
        update_time_ratio=run.update_time_ratio if run.converged else None,
        pace=measure_pace(run),
        joules=measure_joules(run, power),
        setup={key: _keep_scalar(run.value(key)) for key in _SETUP if run.first(key)},
        code=code,
        hyperparameters={name: read_scalar(run.value(name)) for name in kept if run.first(name)},
        packed_course=pack_course(run) if with_course else b"",
    )


def measure_crossing(run: RunLog, definition: Definition) -> float | None:
    """Return the samples at which a run crossed its targets; None for one that did not converge."""
    if not run.converged or definition.kind != "train":
        return None
    curve = [(read_count(point.samples) or 0, point.metrics) for point in run.quality_curve]
    return find_crossing(curve, definition) or None


def measure_joules(run: RunLog, power: PowerLog | None) -> float | None:
    """Return Σ Pᵢ·Δtᵢ over all sensors from run_start to run_stop, or None without a power log.

    None also where the monotonic clock does not tell when the run began and ended.
    """
    start_ms, stop_ms = run.timed_ms or (0.0, 0.0)
    if power is None or power.problems or not 0 <= start_ms < stop_ms < INTEGER_MAX:
        return None
    return power.energy_joules(start_ms, stop_ms)


def _keep_text(value: object) -> str | None:
    return value[:TEXT_MAX] if isinstance(value, str) else None


def read_scalar(value: object) -> Scalar:
    """Return a plain value of a log within bounds, or None for what is no such value."""
    if isinstance(value, str):
        return escape(value[:TEXT_MAX])
    if isinstance(value, bool):
        return value
    return value if is_number(value) and abs(value) < NUMBER_MAX else None


def _keep_scalar(value: object) -> int | str | None:
    return value if isinstance(value, int) else _keep_text(value)
