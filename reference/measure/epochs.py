"""Epochs to the target: what is compared, what was measured, what is published.

``benchmarks/<name>/epochs.yaml`` says which settings are compared, ``epochs.json`` beside it holds
the runs made for it, ``published_epochs.csv`` the results of MLPerf rounds. Of batch sizes the
reference convergence points (``rules.rcp``) tell.
"""

import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from rules import rcp, recorded
from rules.definition import Definition, locate_benchmarks
from rules.errors import UserError, did_you_mean

COMPARISONS, MEASURED, PUBLISHED = "epochs.yaml", "epochs.json", "published_epochs.csv"


@dataclass(frozen=True)
class Arm:
    """One of the settings compared; ``published_epochs`` is what the source has for it."""

    name: str
    overrides: tuple[str, ...]
    published_epochs: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Settings whose epochs to target are compared."""

    title: str
    source: str
    published_at: str
    arms: tuple[Arm, ...]


@dataclass(frozen=True)
class Run:
    """One training. ``epochs`` is None where it missed the targets within the budget; ``best`` is
    the best value of each metric with a target."""

    arm: str
    seed: int
    epochs: float | None
    best: Mapping[str, float]


@dataclass(frozen=True)
class PublishedResult:
    """One result of an MLPerf round: tuned, and at full scale."""

    round: str
    submitter: str
    system: str
    batch_size: int
    epochs: tuple[float, ...]

    @property
    def mean_epochs(self) -> float:
        """Of its runs that converged."""
        return statistics.mean(self.epochs)


def comparison(benchmark: str, name: str) -> Comparison:
    """What ``--compare NAME`` trains. Raises UserError for a name that the benchmark lacks."""
    path = locate_benchmarks() / benchmark / COMPARISONS
    known = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if name not in known:
        told = f"all: {', '.join(known)}" if known else "it has none"
        raise UserError(
            f"--compare {name}: {benchmark} has no such comparison{did_you_mean(name, known)} "
            f"({told}; they stand in {path})"
        )
    facts = known[name]
    arms = tuple(
        Arm(arm["name"], (*facts["set"], *arm["set"]), arm.get("published_epochs"))
        for arm in facts["arms"]
    )
    return Comparison(facts["title"], facts["source"], facts["published_at"], arms)


def runs(definition: Definition, name: str, asked: Comparison) -> list[Run]:
    """Those on record for this very definition and these settings, by seed."""
    entry = recorded.read(definition.name, MEASURED).get(definition.scale, {}).get(name, {})
    if entry.get("what") != _what(definition, asked):
        return []
    return sorted((Run(**run) for run in entry["runs"]), key=lambda run: run.seed)


def keep(definition: Definition, name: str, asked: Comparison, run: Run) -> None:
    """Record one more run, beside those that another process recorded meanwhile."""
    known = runs(definition, name, asked)
    document = recorded.read(definition.name, MEASURED)
    document.setdefault(definition.scale, {})[name] = {
        "what": _what(definition, asked),
        "runs": [asdict(each) for each in [*known, run]],
    }
    recorded.write(definition.name, MEASURED, document)


def _what(definition: Definition, asked: Comparison) -> dict[str, Any]:
    settings = {arm.name: list(arm.overrides) for arm in asked.arms}
    return {"definition_digest": definition.digest, "settings": settings}


def by_batch_size(definition: Definition) -> Mapping[int, Sequence[float]]:
    """Epochs to target of the reference's runs, from its convergence points."""
    points = rcp.load(definition.name, definition.scale)
    if points is None or not points.belong_to(definition):
        return {}
    return {
        point.batch_size: [samples / definition.train_samples for samples in point.samples]
        for point in points.points
        if point.samples
    }


def published(benchmark: str) -> list[PublishedResult]:
    """All results on record, by batch size; none where the benchmark has no such file."""
    path = locate_benchmarks() / benchmark / PUBLISHED
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [
        PublishedResult(
            row["round"],
            row["submitter"],
            row["system"],
            int(row["global_batch_size"]),
            tuple(map(float, row["epochs_to_target_each_converged_run"].split())),
        )
        for row in csv.DictReader(line for line in lines if not line.startswith("#"))
    ]
    return sorted(found, key=lambda result: (result.batch_size, result.round))
