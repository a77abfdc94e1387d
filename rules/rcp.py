"""Reference convergence points (rule T21): the samples that the reference needs, by batch size.

``benchmarks/<name>/rcp.json`` holds them for each scale, run by run, with the digest of the
definition that they belong to. `cepheid rcp` measures them, and
``cepheid.compliance.score.convergence`` judges by them.
"""

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from cepheid.rules.definition import Definition
from cepheid.rules.documents import find_schema_problem
from cepheid.rules.errors import UserError
from cepheid.rules.evidence import locate_file, parse_file, read_file, write_file
from cepheid.rules.hyperparameters import Value

FILE = "rcp.json"
BATCH_SIZE = "global_batch_size"
RUNS_REQUIRED = 5  # of each batch size
BATCH_SIZES_REQUIRED = 3


@dataclass(frozen=True)
class Run:
    """One run of the reference.

    ``samples_to_target`` is None if the run missed the targets. ``epochs`` and ``quality`` belong
    to its last evaluation. ``crossing`` are the samples at which it crossed the targets,
    interpolated between two evaluations (rule T20); None for a run whose curve was not kept.
    ``code`` is the digest of the code that made it, "" where it was not kept.
    """

    seed: int
    samples_to_target: int | None
    epochs: float
    seconds: float
    quality: Mapping[str, float]
    crossing: float | None = None
    code: str = ""


@dataclass(frozen=True)
class Point:
    """The runs at one batch size, all with the same hyperparameters.

    ``measured`` describes the machine and the implementation. There are several descriptions if
    the measurement was continued on another machine.
    """

    hyperparameters: Mapping[str, Value]
    measured: tuple[Mapping[str, Any], ...]
    runs: tuple[Run, ...]

    @property
    def batch_size(self) -> int:
        """The global batch size."""
        return int(self.hyperparameters[BATCH_SIZE])

    @property
    def samples(self) -> tuple[int, ...]:
        """The samples to target of the runs that reached it."""
        counts = (run.samples_to_target for run in self.runs)
        return tuple(count for count in counts if count is not None)

    @property
    def crossings(self) -> tuple[float, ...]:
        """The crossings of the runs that reached the targets; empty unless all were recorded."""
        known = tuple(run.crossing for run in self.runs if run.samples_to_target is not None)
        return tuple(c for c in known if c is not None) if None not in known else ()

    @property
    def is_usable(self) -> bool:
        """True if there are enough runs and none missed the targets."""
        return len(self.runs) >= RUNS_REQUIRED and len(self.samples) == len(self.runs)


@dataclass(frozen=True)
class ReferencePoints:
    """The points of one scale, in the order of batch sizes."""

    definition_digest: str
    points: tuple[Point, ...] = ()

    def belongs_to(self, definition: Definition) -> bool:
        """Return False if they were measured for another version of the definition."""
        return self.definition_digest == definition.digest

    def at(self, batch_size: int) -> Point | None:
        """Return the point of a batch size, or None."""
        return next((point for point in self.points if point.batch_size == batch_size), None)

    def add_run(
        self, hyperparameters: Mapping[str, Value], measured: Mapping[str, Any], run: Run
    ) -> "ReferencePoints":
        """Return these points and one more run, in place of one with the same seed.

        Raises ValueError if earlier runs at this batch size had other hyperparameters.
        """
        known = self.at(int(hyperparameters[BATCH_SIZE])) or Point(hyperparameters, (), ())
        if known.hyperparameters != hyperparameters:
            raise ValueError(f"batch size {known.batch_size} has other hyperparameters")
        on = known.measured if measured in known.measured else (*known.measured, measured)
        kept = (each for each in known.runs if each.seed != run.seed)
        grown = replace(known, measured=on, runs=(*kept, run))
        others = [point for point in self.points if point.batch_size != grown.batch_size]
        ordered = sorted([*others, grown], key=lambda point: point.batch_size)
        return replace(self, points=tuple(ordered))


def load(name: str, scale: str, judged_in: str | None = None) -> ReferencePoints | None:
    """Return the points of a benchmark at a scale, those of a round where they are frozen, or None.

    The caller must check that they belong to the current definition. Raises UserError for a file
    that breaks ``schemas/rcp.schema.json``.
    """
    where = locate_file(name, FILE, judged_in)
    return _parse(where, where.read_text(encoding="utf-8"), scale) if where.exists() else None


@lru_cache(maxsize=64)
def _parse(where: Path, text: str, scale: str) -> ReferencePoints | None:
    """Parse each content once: thousands of results are judged by a few files."""
    document = parse_file(where, text)
    problem = find_schema_problem(document, "rcp") if document else None
    if problem:
        raise UserError(f"{where}: {problem}")
    entry = document.get(scale)
    if entry is None:
        return None
    points = []
    for point in entry["points"]:
        runs = tuple(Run(**run) for run in point["runs"])
        points.append(Point(point["hyperparameters"], tuple(point["measured"]), runs))
    ordered = sorted(points, key=lambda point: point.batch_size)
    return ReferencePoints(entry["definition_digest"], tuple(ordered))


def save(name: str, scale: str, points: ReferencePoints) -> None:
    """Replace the points of one scale, keeping those of the others."""
    document = read_file(name, FILE)
    document[scale] = {
        "definition_digest": points.definition_digest,
        "points": [
            {
                "hyperparameters": dict(point.hyperparameters),
                "measured": [dict(on) for on in point.measured],
                "runs": [
                    {
                        key: value
                        for key, value in asdict(run).items()
                        if key not in ("crossing", "code") or value
                    }
                    for run in point.runs
                ],
            }
            for point in points.points
        ],
    }
    write_file(name, FILE, document)


def find_problems(points: ReferencePoints, definition: Definition) -> list[str]:
    """Return the reasons why results cannot be judged by these points, if any."""
    if not points.belongs_to(definition):
        return ["they were measured for another version of the definition, and are not used"]
    found = []
    for size, count in Counter(point.batch_size for point in points.points).items():
        if count > 1:
            found.append(f"batch size {size} is there {count} times")
    for point in points.points:
        found += [f"batch size {point.batch_size}: {what}" for what in _lacks(point, definition)]
    usable = [point for point in points.points if point.is_usable]
    if len(usable) < BATCH_SIZES_REQUIRED:
        found.append(
            f"{len(usable)} of {BATCH_SIZES_REQUIRED} batch sizes have {RUNS_REQUIRED} runs or "
            "more that all reached the targets"
        )
    every = definition.timing.eval_every_samples
    for smaller, larger in pairwise(usable):
        medians = statistics.median(smaller.samples), statistics.median(larger.samples)
        if medians[0] > medians[1] + every:
            found.append(
                f"batch size {smaller.batch_size} needs more samples than {larger.batch_size} "
                f"(median {medians[0]:,.0f} against {medians[1]:,.0f}): tune its hyperparameters"
            )
    return found


def _lacks(point: Point, definition: Definition) -> list[str]:
    found = []
    if point.hyperparameters.keys() != definition.hyperparameters.keys():
        found.append("its hyperparameters are not those of the definition")
    else:
        refused = {
            name: rule.find_problem(point.hyperparameters[name])
            for name, rule in definition.hyperparameters.items()
        }
        found += [f"{name} {why}" for name, why in refused.items() if why]
    if len(point.runs) < RUNS_REQUIRED:
        found.append(f"{len(point.runs)} of {RUNS_REQUIRED} runs")
    if len({run.seed for run in point.runs}) < len(point.runs):
        found.append("two runs have the same seed")
    found += [
        f"seed {run.seed} missed the targets" for run in point.runs if run.samples_to_target is None
    ]
    return found
