"""What an update costs, step by step of an optimizer's making: what is compared, and what follows
from the parts that were measured.

``benchmarks/<name>/costs.yaml`` says which settings are timed and what is published about them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from rules import definition
from rules.errors import UserError

FILE = "costs.yaml"
SHARED_OUT = ("data", "forward", "backward", "factors")
"""The phases that a rank goes through for its own samples alone."""


@dataclass(frozen=True)
class Step:
    """Settings whose updates are timed; ``published_ms`` is what the source has for them.
    ``needs_ranks`` and ``needs_nodes`` are the fewest with which they change anything."""

    name: str
    overrides: tuple[str, ...]
    needs_ranks: int = 1
    needs_nodes: int = 1
    published_ms: float | None = None


@dataclass(frozen=True)
class PublishedTime:
    """A row of what the source reports of times to target."""

    ranks: int
    batch: int
    optimizer: str
    updates: int
    minutes: float
    accuracy: float | None = None


@dataclass(frozen=True)
class Costs:
    """What a benchmark has in its ``costs.yaml``. ``comparison`` is one of its ``epochs.yaml``,
    whose first arm is the baseline and whose last is the last of the steps."""

    title: str
    source: str
    published_at: str
    baseline: Step
    steps: tuple[Step, ...]
    comparison: str
    note: str
    published: tuple[PublishedTime, ...]


@dataclass(frozen=True)
class Update:
    """What was measured of one setting.

    Mean ``milliseconds`` of an update, and of the baseline's in turns with it; the quartiles of
    their ratio; ``phases_ms`` of a ledger, for each rank; ``sent_bytes`` over all ranks in an
    update, by purpose; the share of the factors' refreshes that were made meanwhile.
    """

    name: str
    milliseconds: float
    baseline_milliseconds: float
    ratio_quartiles: tuple[float, float]
    phases_ms: tuple[Mapping[str, float], ...]
    sent_bytes: Mapping[str, int]
    refreshed_share: float

    @property
    def ratio(self) -> float:
        """Over the baseline."""
        return self.milliseconds / self.baseline_milliseconds


def load(benchmark: str) -> Costs:
    """Raises UserError where the benchmark has no such file."""
    path = definition.locate_benchmarks() / benchmark / FILE
    if not path.is_file():
        others = (folder.parent.name for folder in definition.locate_benchmarks().glob(f"*/{FILE}"))
        raise UserError(
            f"{benchmark} has no steps to cost ({path} is missing); of {', '.join(sorted(others))} "
            "they are known"
        )
    facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    times = facts["times_to_target"]
    return Costs(
        title=facts["title"],
        source=facts["source"],
        published_at=facts["published_at"],
        baseline=_step(facts["baseline"]),
        steps=tuple(map(_step, facts["steps"])),
        comparison=times["comparison"],
        note=times["note"],
        published=tuple(PublishedTime(**row) for row in times["published"]),
    )


def _step(facts: Mapping[str, Any]) -> Step:
    return Step(
        facts["name"],
        tuple(facts["set"]),
        int(facts.get("needs_ranks", 1)),
        int(facts.get("needs_nodes", 1)),
        facts.get("published_ms"),
    )


def projected_ms(
    phases_ms: Mapping[str, float], measured_ranks: int, ranks: int, busiest_share: float
) -> float:
    """Milliseconds of an update of the same global batch on ``ranks`` ranks, from those of the
    phases of one rank of ``measured_ranks``.

    What a rank does for its own samples shrinks with their number; inverses take as long as those
    of the busiest rank, ``busiest_share`` times those of the rank measured; communication
    grows as that of a ring does, (P - 1) / P; the rest stays. The costs of starting a message,
    slower links between nodes and kernels too small for a device are not in it.
    """
    total = 0.0
    for phase, milliseconds in phases_ms.items():
        if phase in SHARED_OUT:
            total += milliseconds * measured_ranks / ranks
        elif phase == "inverse":
            total += milliseconds * busiest_share
        elif phase == "communication" and measured_ranks > 1:
            total += milliseconds * (1 - 1 / ranks) / (1 - 1 / measured_ranks)
        else:
            total += milliseconds
    return total


def by_rank(costs_of_layers: Sequence[float], owners: Sequence[int], ranks: int) -> list[float]:
    """The sum over the layers of each rank."""
    sums = [0.0] * ranks
    for cost, owner in zip(costs_of_layers, owners, strict=True):
        sums[owner] += cost
    return sums
