"""What ``benchmarks/<name>/costs.yaml`` declares: steps of an optimizer, and published times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from cepheid.rules.definition import locate_benchmarks
from cepheid.rules.errors import UserError, did_you_mean

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
class Rung:
    """A step of the baseline alone, which keeps what the steps before it changed.

    ``network`` names one of the benchmark's other networks (``OptimizerParts.networks``);
    ``reported`` is what the source says of its speed.
    """

    name: str
    overrides: tuple[str, ...]
    network: str = ""
    reported: str = ""


@dataclass(frozen=True)
class Ladder:
    """What made an update of the baseline fast, step by step."""

    title: str
    published_at: str
    rungs: tuple[Rung, ...]


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
    settings of the last step. Where ``group`` names one of several that are compared, the baseline
    and all steps have its settings ``overrides``, and the arms are those of that group.
    ``switches`` are settings that only this study has, with their choices.
    """

    benchmark: str
    title: str
    source: str
    published_at: str
    baseline: Step
    steps: tuple[Step, ...]
    comparison: str
    note: str
    published: tuple[PublishedTime, ...]
    ladder: Ladder | None
    samples_per_rank: int | None = None
    group: str = ""
    overrides: tuple[str, ...] = ()
    switches: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def require_ladder(self) -> Ladder:
        """Return the ladder. Raises UserError where there is none."""
        if self.ladder is None:
            raise UserError(
                f"--ladder: {self.benchmark} names no steps of its baseline; fix: add a ladder to "
                f"benchmarks/{self.benchmark}/{FILE}, or leave --ladder out"
            )
        return self.ladder

    def name(self, step: Any) -> str:
        """Return the name of a step, or of what was measured for it, with that of the group."""
        return f"{self.group}, {step.name}" if self.group else str(step.name)


def load_costs(benchmark: str, scale: str) -> Costs:
    """Return what a benchmark's ``costs.yaml`` says. Raises UserError where it has none."""
    facts = _read(benchmark)
    times, of_scale = facts["times_to_target"], facts["scales"][scale]
    baseline = _read_step(facts["baseline"])
    baseline = replace(baseline, overrides=(*baseline.overrides, *of_scale["baseline"]))
    ladder = facts.get("ladder")
    if ladder is not None:
        rungs = [
            Rung(**{**_name_overrides(rung), "overrides": (*baseline.overrides, *rung["set"])})
            for rung in ladder["rungs"]
        ]
        ladder = Ladder(ladder["title"], ladder["published_at"], tuple(rungs))
    return Costs(
        benchmark=benchmark,
        title=facts["title"],
        source=facts["source"],
        published_at=facts["published_at"],
        baseline=baseline,
        steps=tuple(map(_read_step, facts["steps"])),
        comparison=times["comparison"],
        note=times["note"],
        published=tuple(PublishedTime(**row) for row in times["published"]),
        ladder=ladder,
        samples_per_rank=of_scale.get("samples_per_rank"),
        switches=facts.get("switches", {}),
    )


def load_compared(benchmark: str, scale: str, name: str) -> tuple[Costs, ...]:
    """Return the costs of each group of a comparison in a benchmark's ``costs.yaml``.

    Nothing is published about them. Raises UserError where there is no such comparison.
    """
    known = _read(benchmark).get("comparisons", {})
    if name not in known:
        raise UserError(
            f"--compare {name}: {benchmark} has no such comparison of costs"
            f"{did_you_mean(name, known)} (all: {', '.join(known) or 'none'}); fix: choose one of "
            "these, or leave --compare out"
        )
    facts, costs = known[name], load_costs(benchmark, scale)
    steps = [step for step in costs.steps if step.name in facts["steps"]]
    costs = replace(
        costs,
        title=facts["title"],
        baseline=replace(costs.baseline, published_ms=None),
        steps=tuple(replace(step, published_ms=None) for step in steps),
        comparison=facts["comparison"],
        published=(),
    )
    return tuple(
        replace(costs, group=group["name"], overrides=tuple(group["set"]))
        for group in facts["each"]
    )


def _read(benchmark: str) -> Mapping[str, Any]:
    path = locate_benchmarks() / benchmark / FILE
    if not path.is_file():
        others = sorted(file.parent.name for file in locate_benchmarks().glob(f"*/{FILE}"))
        raise UserError(
            f"{benchmark} names no steps whose costs could be measured ({path} is missing); "
            f"benchmarks that do: {', '.join(others)}"
        )
    facts: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return facts


def _read_step(facts: Mapping[str, Any]) -> Step:
    return Step(**{**_name_overrides(facts), "overrides": tuple(facts["set"])})


def _name_overrides(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key != "set"}
