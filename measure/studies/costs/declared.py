"""What ``benchmarks/<name>/costs.yaml`` declares: steps of an optimizer, and published times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import yaml

from cepheid.rules.definition import locate_benchmarks
from cepheid.rules.errors import UserError, did_you_mean

FILE = "costs.yaml"


@dataclass(frozen=True)
class Step:
    """Settings whose updates are timed; ``published_ms`` is what the source reports for them.

    ``needs_ranks`` and ``needs_nodes`` are the fewest with which the settings change anything. A
    rung of a ladder may need an accelerator, have one of the NETWORKS of the benchmark's
    ``comparison.py``, and what the source has ``reported`` of its speed.
    """

    name: str
    overrides: tuple[str, ...]
    needs_ranks: int = 1
    needs_nodes: int = 1
    published_ms: float | None = None
    needs_accelerator: bool = False
    network: str = ""
    reported: str = ""


@dataclass(frozen=True)
class Ladder:
    """What made an update of the baseline fast: each rung keeps what those before it changed."""

    title: str
    published_at: str
    rungs: tuple[Step, ...]


@dataclass(frozen=True)
class Costs:
    """The content of a benchmark's ``costs.yaml`` for one scale.

    ``published`` are rows of what the source reports about times to the target.
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
    published: tuple[Mapping[str, Any], ...]
    ladder: Ladder
    samples_per_rank: int | None = None
    group: str = ""
    overrides: tuple[str, ...] = ()
    switches: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def name(self, step: Any) -> str:
        """Return the name of a step, or of what was measured for it, with that of the group."""
        return f"{self.group}, {step.name}" if self.group else str(step.name)


def load_costs(benchmark: str, scale: str) -> Costs:
    """Return what a benchmark's ``costs.yaml`` says. Raises UserError where it has none."""
    facts = _read(benchmark)
    of_scale, baseline = facts["scales"][scale], facts["baseline"]
    baseline["overrides"] += of_scale["baseline"]
    for rung in facts["ladder"]["rungs"]:
        rung["overrides"] = [*baseline["overrides"], *rung["overrides"]]
    batch = of_scale.get("samples_per_rank")
    own = {"benchmark": benchmark, "samples_per_rank": batch, **facts["times_to_target"]}
    return msgspec.convert({**facts, **own}, Costs)


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
        replace(costs, group=group["name"], overrides=tuple(group["overrides"]))
        for group in facts["each"]
    )


def _read(benchmark: str) -> dict[str, Any]:
    path = locate_benchmarks() / benchmark / FILE
    if not path.is_file():
        others = sorted(file.parent.name for file in locate_benchmarks().glob(f"*/{FILE}"))
        raise UserError(
            f"{benchmark} names no steps whose costs could be measured ({path} is missing); "
            f"benchmarks that do: {', '.join(others)}"
        )
    return _name_overrides(yaml.safe_load(path.read_text(encoding="utf-8")))


def _name_overrides(value: Any) -> Any:
    """Return the content with ``overrides`` where the file says ``set``, as a command line does."""
    if isinstance(value, dict):
        return {
            "overrides" if key == "set" else key: _name_overrides(each)
            for key, each in value.items()
        }
    return [_name_overrides(each) for each in value] if isinstance(value, list) else value
