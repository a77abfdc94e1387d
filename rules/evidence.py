"""Recorded evidence that a benchmark's targets separate correct from broken implementations.

``benchmarks/<name>/evidence.json`` holds, for each scale, the quality curves of correct runs and of
broken variants, and the digest of their definition. `make check-targets` measures them, and the
contract tests judge them with ``find_problems``. A run that generates is evaluated once, when all
its images exist, so its curve has one point.

``evidence.json`` and ``rcp.json`` are JSON objects with an entry for each scale.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cepheid.rules.definition import Definition, locate_benchmarks
from cepheid.rules.errors import UserError
from cepheid.rules.host import atomic_write
from cepheid.rules.metrics import QualityTarget

FILE = "evidence.json"
BASELINES_FILE = "baselines.json"  # what `cepheid measure baselines` found
RESOLUTION_FILE = "resolution.json"  # what `cepheid measure resolution --record` keeps
# Seeds of the correct model. At full scale, where a run may take hours, as many as a result has.
CORRECT_SEEDS_REQUIRED: Mapping[str, int] = MappingProxyType({"mini": 10, "full": 5})


def find_end(qualities: Iterable[Mapping[str, float]], definition: Definition) -> int | None:
    """Return the place of the evaluation at which a run ends, None for one that goes on (rule T9).

    ``qualities`` are the metrics of its evaluations in order. A run ends when every target holds at
    as many successive ones as ``timing.evaluations_to_hold`` says.
    """
    held = 0
    for place, quality in enumerate(qualities):
        held = held + 1 if definition.is_reached_by(quality) else 0
        if held >= definition.timing.evaluations_to_hold:
            return place
    return None


def describe_end(definition: Definition) -> str:
    """Return in words at which evaluation a run ends."""
    last = "first evaluation"
    if definition.timing.evaluations_to_hold > 1:
        last = "second of two successive evaluations"
    return f"the {last} at which {' and '.join(map(str, definition.quality))}"


def find_crossing(
    evaluations: Sequence[tuple[int, Mapping[str, float]]], definition: Definition
) -> float | None:
    """Return after how many samples a run crossed its targets, None where it did not (rule T20).

    ``evaluations`` are the samples and the metrics of each, in order. The first of two successive
    evaluations at which every target holds counts, or the last one of a run that ends at the first
    that holds. The crossing lies between it and the evaluation before, where the line between the
    two meets the target, of several targets the last one. There is nothing to interpolate before
    the first evaluation.
    """
    targets = definition.quality
    holds = [definition.is_reached_by(metrics) for _, metrics in evaluations]
    last = len(holds) - definition.timing.evaluations_to_hold
    places = (at for at, held in enumerate(holds) if held and all(holds[at + 1 : at + 2]))
    at = next((at for at in places if at <= last), None)
    if at is None or at == 0:
        return None if at is None else float(evaluations[0][0])
    (start, before), (stop, after) = evaluations[at - 1 : at + 1]
    share = max(_find_share(target, before, after) for target in targets)
    return start + share * (stop - start)


def _find_share(
    target: QualityTarget, before: Mapping[str, float], after: Mapping[str, float]
) -> float:
    """Return the share of the way to an evaluation that holds at which a target is met.

    0 where it was met before already, 1 where the evaluation before has no such number.
    """
    old, new = before.get(target.metric, math.nan), after[target.metric]
    if target.holds(old):
        return 0.0
    share = (target.target - old) / (new - old) if math.isfinite(old) else 1.0
    return share if 0 <= share <= 1 else 1.0


@dataclass(frozen=True)
class Curve:
    """The quality at each evaluation of one run: ``(samples, metrics)``, in order.

    ``code`` is the digest of the code that made it, "" where it was not kept. ``measured``
    describes the machine and the implementation. A run that diverged, not ``is_finite``, ends.
    """

    variant: str
    seed: int
    seconds: float
    evaluations: tuple[tuple[int, Mapping[str, float]], ...]
    code: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)
    is_finite: bool = True

    def count_samples_to_target(self, definition: Definition) -> int | None:
        """Return the samples at the evaluation at which the run ends, or None."""
        reached = self.find_reaching(definition)
        return reached[0] if reached else None

    def find_crossing(self, definition: Definition) -> float | None:
        """Return the samples at which the run crossed its targets, interpolated, or None."""
        return find_crossing(self.evaluations, definition)

    def find_reaching(self, definition: Definition) -> tuple[int, Mapping[str, float]] | None:
        """Return the evaluation at which the run ends with its targets reached, or None."""
        end = find_end((quality for _, quality in self.evaluations), definition)
        return None if end is None else self.evaluations[end]


@dataclass(frozen=True)
class Evidence:
    """The measurements at one scale; the variant of a correct run is ``correct``."""

    definition_digest: str
    curves: tuple[Curve, ...]

    @property
    def correct(self) -> tuple[Curve, ...]:
        """The runs of the unbroken reference."""
        return tuple(curve for curve in self.curves if curve.variant == "correct")

    @property
    def broken(self) -> tuple[Curve, ...]:
        """The runs of broken variants, each to the full budget."""
        return tuple(curve for curve in self.curves if curve.variant != "correct")


def load(definition: Definition, file: str = FILE) -> Evidence | None:
    """Return the evidence recorded for this very definition, or None if there is none.

    Evidence of another version of the definition may have other metrics, so it is left alone.
    """
    entry = read_file(definition.name, file).get(definition.scale)
    if entry is None or entry.get("definition_digest") != definition.digest:
        return None
    curves = tuple(
        Curve(
            curve["variant"],
            curve["seed"],
            curve["seconds"],
            tuple((point.pop("samples"), point) for point in curve["evaluations"]),
            curve.get("code", ""),
            entry["measured"][curve.get("on", 0)],
            curve.get("is_finite", True),
        )
        for curve in entry["curves"]
    )
    return Evidence(entry["definition_digest"], curves)


def save(name: str, scale: str, evidence: Evidence, file: str = FILE) -> None:
    """Replace the evidence of one scale, keeping that of the others.

    Each description stands once under "measured"; "on" is its place, 0 where a curve has none.
    """
    document, measured = read_file(name, file), list[Mapping[str, Any]]()
    for curve in evidence.curves:
        if curve.measured not in measured:
            measured.append(curve.measured)
    document[scale] = {
        "definition_digest": evidence.definition_digest,
        "measured": measured,
        "curves": [
            {
                "variant": curve.variant,
                "seed": curve.seed,
                "seconds": round(curve.seconds, 1),
                **({"code": curve.code} if curve.code else {}),
                **({"on": place} if (place := measured.index(curve.measured)) else {}),
                **({} if curve.is_finite else {"is_finite": False}),
                "evaluations": [
                    {"samples": samples, **quality} for samples, quality in curve.evaluations
                ],
            }
            for curve in evidence.curves
        ],
    }
    write_file(name, file, document)


def find_problems(
    evidence: Evidence, definition: Definition, variants: tuple[str, ...]
) -> list[str]:
    """Return the reasons why ``evidence`` does not support the definition's targets, if any.

    ``variants`` are the declared broken ones; each must miss the targets in its budget, or diverge.
    """
    found = []
    asked = definition.generation
    budget = asked.images if asked else definition.timing.max_samples
    if evidence.definition_digest != definition.digest:
        found.append("it was measured for another definition; run `make check-targets`")
    seeds = {curve.seed for curve in evidence.correct}
    required = CORRECT_SEEDS_REQUIRED[definition.scale]
    if len(seeds) < required:
        found.append(f"{len(seeds)} seeds of the correct model, {required} are needed")
    found += [
        f"the correct model misses the targets with seed {curve.seed}"
        for curve in evidence.correct
        if curve.count_samples_to_target(definition) is None
    ]
    tried = {curve.variant for curve in evidence.broken}
    found += [f"the broken variant {name} was not tried" for name in variants if name not in tried]
    for curve in evidence.broken:
        if curve.count_samples_to_target(definition) is not None:
            found.append(f"the broken variant {curve.variant} reaches the targets")
        elif curve.is_finite and (not curve.evaluations or curve.evaluations[-1][0] < budget):
            found.append(f"the broken variant {curve.variant} was not run to the full budget")
    return found


def summarize_samples(evidence: Evidence, definition: Definition) -> tuple[int, int, int] | None:
    """Return the fewest, median and most samples that the correct runs needed, or None."""
    needed = [curve.count_samples_to_target(definition) for curve in evidence.correct]
    counts = sorted(samples for samples in needed if samples is not None)
    return (counts[0], int(statistics.median(counts)), counts[-1]) if counts else None


def find_usual_samples(definition: Definition) -> int | None:
    """Return the median number of samples that recorded correct runs needed, or None."""
    measured = load(definition)
    usual = summarize_samples(measured, definition) if measured else None
    return usual[1] if usual else None


def locate_file(name: str, file: str, judged_in: str | None = None) -> Path:
    """Return the path of a benchmark's file, that of a round where it is frozen."""
    return locate_benchmarks(judged_in) / name / file


def read_file(name: str, file: str) -> dict[str, Any]:
    """Return the content of a benchmark's file by scale, or nothing if the file is missing.

    Raises UserError if the content is not a JSON object.
    """
    where = locate_file(name, file)
    return parse_file(where, where.read_text(encoding="utf-8")) if where.exists() else {}


def parse_file(where: Path, text: str) -> dict[str, Any]:
    """Parse ``text``, the content of the file ``where``.

    Raises UserError if it is not a JSON object.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise UserError(f"{where}: expected an object with an entry for each scale")
    return document


def write_file(name: str, file: str, document: dict[str, Any]) -> None:
    """Replace a benchmark's file as a whole."""
    atomic_write(locate_file(name, file), json.dumps(document, indent=1) + "\n")
