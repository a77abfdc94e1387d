"""The steps of an optimizer whose costs are measured, and what is published about them.

``benchmarks/<name>/costs.yaml`` names them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from rules.definition import locate_benchmarks
from rules.errors import UserError

FILE = "costs.yaml"


@dataclass(frozen=True)
class Step:
    """Settings whose updates are timed; ``published_ms`` is what the source reports for them.

    ``needs_ranks`` and ``needs_nodes`` are the fewest with which the settings change anything.
    """

    name: str
    overrides: tuple[str, ...]
    needs_ranks: int = 1
    needs_nodes: int = 1
    published_ms: float | None = None


@dataclass(frozen=True)
class PublishedTime:
    """A row of what the source reports about times to target."""

    ranks: int
    batch: int
    optimizer: str
    updates: int
    minutes: float
    accuracy: float | None = None


@dataclass(frozen=True)
class Costs:
    """The content of a benchmark's ``costs.yaml`` for one scale.

    Without ``samples_per_rank`` the ranks share the batch of the definition. ``comparison`` is one
    of the benchmark's ``epochs.yaml``, whose first arm is the baseline and whose last arm has the
    settings of the last step.
    """

    title: str
    source: str
    published_at: str
    baseline: Step
    steps: tuple[Step, ...]
    comparison: str
    note: str
    published: tuple[PublishedTime, ...]
    samples_per_rank: int | None = None


def load_costs(benchmark: str, scale: str) -> Costs:
    """Return what a benchmark's ``costs.yaml`` says. Raises UserError where it has none."""
    path = locate_benchmarks() / benchmark / FILE
    if not path.is_file():
        others = sorted(file.parent.name for file in locate_benchmarks().glob(f"*/{FILE}"))
        raise UserError(
            f"{benchmark} names no steps whose costs could be measured ({path} is missing); "
            f"benchmarks that do: {', '.join(others)}"
        )
    facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    times, of_scale = facts["times_to_target"], facts["scales"][scale]
    baseline = _read_step(facts["baseline"])
    return Costs(
        title=facts["title"],
        source=facts["source"],
        published_at=facts["published_at"],
        baseline=replace(baseline, overrides=(*baseline.overrides, *of_scale["baseline"])),
        steps=tuple(map(_read_step, facts["steps"])),
        comparison=times["comparison"],
        note=times["note"],
        published=tuple(PublishedTime(**row) for row in times["published"]),
        samples_per_rank=of_scale.get("samples_per_rank"),
    )


def _read_step(facts: Mapping[str, Any]) -> Step:
    return Step(
        facts["name"],
        tuple(facts["set"]),
        int(facts.get("needs_ranks", 1)),
        int(facts.get("needs_nodes", 1)),
        facts.get("published_ms"),
    )
