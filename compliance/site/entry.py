"""What the site shows of a result, taken from its logs once; the logs themselves are let go.

A site of thousands of results would not fit into memory otherwise.
"""

import hashlib
import math
import os
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path

from compliance.finding import printable
from compliance.judge.judgement import JudgedResult, Judgement
from compliance.leaderboard import Row, place_in_table, row_of
from compliance.leaderboard.row import RANKED_BY, compared
from compliance.read.records import INTEGER_MAX
from compliance.read.runlog import RunLog, repetitions_seconds
from compliance.score.comparison import Level, level
from compliance.score.convergence import Convergence
from compliance.score.scores import kept_by_trimming, run_joules, run_minutes
from rules.definition import Definition, Runs
from rules.events import is_integer

SPANS_MAX = 600  # of one run on the time line; more would be thinner than a hair
PICTURE_BYTES_MAX = 2**20
PNG = b"\x89PNG\r\n\x1a\n"
BATCH_SIZE = "global_batch_size"

_SPANS = {  # what begins a stretch of the time line, what ends it, and how it is called
    "init_start": ("init_stop", "init"),
    "block_start": ("block_stop", "block"),
    "eval_start": ("eval_stop", "evaluation"),
    "generation_start": ("generation_stop", "generation"),
}


@dataclass(frozen=True)
class Span:
    """A stretch of a run, in seconds since the first event of its initialisation."""

    kind: str
    start_seconds: float
    stop_seconds: float
    note: str


@dataclass(frozen=True)
class Point:
    """An evaluation; seconds count from run_start."""

    seconds: float
    samples: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Timing:
    """How long the repetitions of generating ``images`` at a time took: the median, in seconds."""

    images: int
    seconds: float
    repetitions: int


@dataclass(frozen=True)
class Run:
    """One run. ``minutes`` is infinite where it did not converge; ``counts`` tells whether the
    score is a mean over it. ``run_start_seconds`` and spans count from the first ``init_start``."""

    number: int
    path: Path
    minutes: float
    seconds: float | None
    status: str
    counts: bool
    samples: int | None
    epochs: float | None
    batch_size: int | None
    seed: int | None
    joules: float | None
    curve: tuple[Point, ...]
    spans: tuple[Span, ...]
    left_out_spans: int
    run_start_seconds: float | None
    timings: tuple[Timing, ...]
    generation: Mapping[str, float]

    @property
    def converged(self) -> bool:
        """True where it reached its targets."""
        return self.status == "success"


@dataclass(frozen=True)
class Entry:
    """One result. ``id`` is its permalink: submitter, system, benchmark, scale and division.

    ``twin`` counts results of the same name from 2 on, in the order of their folders. ``level`` is
    what it is compared by, None without a score.
    """

    id: str
    row: Row
    definition: Definition | None
    runs: tuple[Run, ...]
    level: Level | None
    convergence: Convergence | None
    availability: str
    batch_size: int | None
    twin: int = 1
    picture: Path | None = None
    code: Path | None = None
    system: Mapping[str, object] = field(default_factory=dict)

    @property
    def page(self) -> str:
        """Where its page stands in the site."""
        return f"results/{self.id}.html"

    @property
    def system_id(self) -> str:
        """Submitter and system."""
        return "/".join(self.id.split("/")[:2])

    @property
    def system_page(self) -> str:
        """Where the page of its system stands."""
        return f"systems/{self.system_id}.html"

    @property
    def tab(self) -> str:
        """The table of the round that it stands in: scale and division."""
        return f"{slug(self.row.scale or 'all')}-{slug(self.row.division)}"

    @property
    def benchmark_page(self) -> str:
        """Where the page of its benchmark stands."""
        name = "-".join(filter(None, (slug(self.row.benchmark), slug(self.row.scale or ""))))
        return f"benchmarks/{name}.html"

    @property
    def devices(self) -> int:
        """Accelerators, or nodes where there are none."""
        return self.row.accelerators or self.row.nodes or 1

    @property
    def is_known(self) -> bool:
        """Whether there is such a benchmark in the round."""
        return self.definition is not None or self.row.judged.benchmark is not None


def slug(name: str) -> str:
    """``name`` as part of a file's name and of an address; another name never gives the same."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "-", name)[:64]
    if plain == name and not plain.startswith("."):
        return plain
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{plain.lstrip('.-')}-{digest}" if name else ""


def entries(judgement: Judgement) -> list[Entry]:
    """All results in the order of their tables, each under a name of its own."""
    found = [_entry(result) for result in _each_once(judgement.results)]
    found.sort(key=lambda entry: (place_in_table(entry.row), _folder(entry.row.judged)))
    return list(_told_apart(found))


def _each_once(results: Iterable[JudgedResult]) -> Iterable[JudgedResult]:
    """Results whose folder was given twice are read once."""
    return {_folder(result): result for result in results}.values()


def _folder(result: JudgedResult) -> str:
    return os.path.abspath(result.folder.path)


def _told_apart(found: Sequence[Entry]) -> Iterable[Entry]:
    """Two systems may bear one name; file systems that know no case see more of those."""
    order = sorted(found, key=lambda entry: _folder(entry.row.judged))
    numbers: dict[int, int] = {}
    seen: Counter[str] = Counter()
    for entry in order:
        seen[entry.id.casefold()] += 1
        numbers[id(entry)] = seen[entry.id.casefold()]
    for entry in found:
        number = numbers[id(entry)]
        yield replace(entry, id=f"{entry.id}~{number}", twin=number) if number > 1 else entry


def _entry(judged: JudgedResult) -> Entry:
    folder = judged.folder
    fresh = replace(
        judged, folder=replace(folder, runs=copy(folder.runs), power=copy(folder.power))
    )
    row, definition = row_of(fresh), fresh.definition
    asked = definition.runs if definition else fresh.benchmark.runs if fresh.benchmark else None
    kept = _kept(fresh.folder.runs, asked) if row.has_score and asked else frozenset()
    runs = tuple(
        _run(run, position, position in kept, fresh)
        for position, run in enumerate(fresh.folder.runs)
    )
    batch_sizes = {run.batch_size for run in runs}
    return Entry(
        id=_id(row),
        row=replace(row, judged=judged),
        definition=definition,
        runs=runs,
        level=_level(row, runs, asked) if row.has_score and asked else None,
        convergence=compared(fresh),
        availability=_availability(judged.system),
        batch_size=batch_sizes.pop() if len(batch_sizes) == 1 else None,
        picture=_picture(runs),
        code=_code(judged, row),
        system=judged.system,
    )


def _id(row: Row) -> str:
    task = "-".join(filter(None, (row.benchmark, row.scale, row.division)))
    return "/".join(map(slug, (row.submitter, row.system, task)))


def _availability(system: Mapping[str, object]) -> str:
    status = system.get("status")
    return printable(status[:40]) if isinstance(status, str) else ""


def _kept(runs: Sequence[RunLog], asked: Runs) -> frozenset[int]:
    minutes = [run_minutes(run) for run in runs]
    return frozenset(kept_by_trimming(minutes, asked.drop_fastest, asked.drop_slowest))


def _level(row: Row, runs: Sequence[Run], asked: Runs) -> Level | None:
    """By time to train, or by seconds per image, of which the least is the fastest."""
    if row.generates:
        speeds = [run.generation.get(RANKED_BY, 0.0) for run in runs]
        costs = [1 / speed if speed > 0 else math.inf for speed in speeds]
    else:
        costs = [run.minutes for run in runs]
    return level(costs, asked.drop_fastest, asked.drop_slowest)


def _run(run: RunLog, position: int, counts: bool, result: JudgedResult) -> Run:
    started = run.first("init_start") or run.first("run_start")
    start = run.first("run_start")
    spans = _spans(run, started.time_ms) if started else []
    return Run(
        number=position if run.index is None else run.index,
        path=run.path,
        minutes=run_minutes(run),
        seconds=run.seconds,
        status=printable((run.status or "no run_stop")[:40]),
        counts=counts,
        samples=_count(run.samples_to_target),
        epochs=run.epochs_to_target,
        batch_size=_count(run.value(BATCH_SIZE)) or None,
        seed=_count(run.value("seed")),
        joules=run_joules(run, result.folder.power),
        curve=tuple(
            Point(point.seconds, _count(point.samples) or 0, dict(point.metrics))
            for point in run.quality_curve
        ),
        spans=tuple(spans[:SPANS_MAX]),
        left_out_spans=max(0, len(spans) - SPANS_MAX),
        run_start_seconds=(start.time_ms - started.time_ms) / 1000 if start and started else None,
        timings=tuple(_timings(run)),
        generation=dict(run.generation),
    )


def _spans(run: RunLog, zero_ms: float) -> list[Span]:
    """Stretches between an event and the next one that ends it, in the order of their ends."""
    stops = {stop: start for start, (stop, _) in _SPANS.items()}
    going_on: dict[str, float] = {}
    found = []
    for event in run.events:
        if event.key in _SPANS:
            going_on[event.key] = event.time_ms
        elif event.key in stops and stops[event.key] in going_on:
            key = stops[event.key]
            since, until = (going_on.pop(key) - zero_ms) / 1000, (event.time_ms - zero_ms) / 1000
            if until >= since:
                found.append(Span(_SPANS[key][1], since, until, _note(event.metadata)))
    return found


def _note(metadata: Mapping[str, object]) -> str:
    for key, what in (("samples_count", "samples"), ("images_count", "images at a time")):
        count = _count(metadata.get(key))
        if count is not None:
            return f"{count:,} {what}"
    return ""


def _count(value: object) -> int | None:
    """A number of something; a log may hold integers that no float can be made of."""
    return value if is_integer(value) and 0 <= value < INTEGER_MAX else None


def _timings(run: RunLog) -> Iterable[Timing]:
    for event in run.all("generation_times"):
        images, seconds = _count(event.metadata.get("images_count")), repetitions_seconds(event)
        if images and seconds:
            yield Timing(images, statistics.median(seconds), len(seconds))


def _picture(runs: Sequence[Run]) -> Path | None:
    """The picture of the first run that has one, if it is one and not too large."""
    for run in runs:
        path = run.path.with_name(f"pictures_{run.number}.png")
        if path.is_symlink() or not path.is_file() or path.stat().st_size > PICTURE_BYTES_MAX:
            continue
        with path.open("rb") as file:
            if file.read(len(PNG)) == PNG:
                return path
    return None


def _code(judged: JudgedResult, row: Row) -> Path | None:
    """The submitted code of the benchmark: ``benchmarks/<name>`` beside ``results``."""
    if judged.is_history or not judged.folder.parts:
        return None
    folder = Path(os.path.abspath(judged.folder.path)).parents[2] / "benchmarks" / row.benchmark
    return folder if folder.is_dir() and not folder.is_symlink() else None
