"""What must be recorded of each benchmark, and which of it is missing or stale.

A record is stale when its benchmark computes something else than it did then (its fingerprint), or
was measured for another definition. The file ``evidence.json`` has correct runs and broken
variants, ``baselines.json`` shallow baselines, ``rcp.json`` runs at other batch sizes,
``submissions/cepheid`` results.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cepheid.rules import evidence, rcp
from cepheid.rules.definition import Definition
from cepheid.rules.host import ROOT
from cepheid.rules.rcp import BATCH_SIZE

CORRECT, BASELINE = "correct", "baseline "
RESULTS = ROOT / "submissions" / "cepheid" / "results"
STAGES = ("correct seeds", "broken variants and baselines", "results", "other batch sizes", "full")
BROKEN_SEEDS, FULL_SEEDS = 2, 10
# What an IPU of the cosmology paper held (published.yaml), without galaxy_shape's 4 (its README).
FULL_BATCH_SIZES: Mapping[str, Sequence[int]] = {
    "galaxy_shape": (8, 14), "galaxy_vae": (4, 8, 14), "galaxy_bnn": (4, 8),
}  # fmt: skip
MISSING, OTHER_DEFINITION = "missing", "another definition"
UNKNOWN, CHANGED = "no fingerprint kept", "fingerprint changed"


@dataclass(frozen=True)
class Wanted:
    """Runs of one kind that must be recorded: ``what`` with a batch size, and each run's state.

    ``states`` are the reasons why a run must be made, by its seed; "" for one that is current.
    ``seconds`` is what one takes on one core, from the recorded runs: those of accelerators count
    with their samples, at the pace of a core, or as those of the default batch size.
    """

    stage: int
    benchmark: str
    scale: str
    what: str
    batch_size: int
    states: Mapping[int, str]
    seconds: float

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the runs that must be made."""
        return tuple(seed for seed, state in self.states.items() if state)

    @property
    def why(self) -> str:
        """How many runs must be made, by reason."""
        reasons = [state for state in self.states.values() if state]
        return ", ".join(f"{reasons.count(each)} {each}" for each in dict.fromkeys(reasons))

    def split(self) -> "Sequence[Wanted]":
        """Return each run that must be made as one of its own."""
        return [replace(self, states={seed: self.states[seed]}) for seed in self.seeds]

    @property
    def hours(self) -> float:
        """The core hours of the runs that must be made."""
        return len(self.seeds) * self.seconds / 3600


def list_wanted(
    one: Definition, variants: Sequence[str], current: frozenset[str]
) -> Iterator[Wanted]:
    """Yield what must be recorded of a benchmark at a scale, in no order.

    ``current`` are the digests of code that computes what today's code computes.
    """
    recorded = evidence.read_file(one.name, evidence.FILE).get(one.scale, {})
    curves = recorded.get("curves", [])
    known = {(curve["variant"], curve["seed"]): curve for curve in curves}
    is_this = recorded.get("definition_digest") == one.digest
    judge = _make_judge(current)
    default = _find_default_batch(one)
    seeds = 2 * one.runs.required if one.scale == "mini" else FULL_SEEDS
    times = _find_times(recorded)
    usual = times.get(CORRECT, 0.0)

    for variant in (CORRECT, *variants):
        count = seeds if variant == CORRECT else BROKEN_SEEDS
        states = {seed: judge(known.get((variant, seed)), is_this) for seed in range(1, count + 1)}
        seconds = times.get(variant, usual)
        stage = 4 if one.scale == "full" else 0 if variant == CORRECT else 1
        yield Wanted(stage, one.name, one.scale, variant, default, states, seconds)
    if one.kind == "train":
        yield from _list_points(one, judge, default, usual)
    if one.scale == "mini":
        runs = one.runs.required
        fresh = _count_results(one, current)
        states = {index: "" if index < fresh else MISSING for index in range(runs)}
        yield Wanted(2, one.name, one.scale, "result", default, states, usual)


def list_baselines(one: Definition, names: Sequence[str]) -> Iterator[Wanted]:
    """Yield the shallow baselines that must be tried: they depend on data and targets alone."""
    recorded = evidence.read_file(one.name, evidence.BASELINES_FILE).get(one.scale, {})
    is_this = recorded.get("definition_digest") == one.digest
    known = {(curve["variant"], curve["seed"]) for curve in recorded.get("curves", [])}
    state = "" if is_this else OTHER_DEFINITION
    times = _find_times(recorded)
    for name in names:
        seeds = range(1, BROKEN_SEEDS + 1)
        states = {seed: state if (name, seed) in known else MISSING for seed in seeds}
        yield Wanted(1, one.name, one.scale, f"{BASELINE}{name}", 0, states, times.get(name, 0.0))


def _list_points(
    one: Definition, judge: Callable[[Any, bool], str], default: int, usual: float
) -> Iterator[Wanted]:
    """Yield the runs at batch sizes other than the default: those recorded, at full the paper's."""
    points = rcp.load(one.name, one.scale)
    is_this = points is not None and points.belongs_to(one)
    sizes = {point.batch_size: point for point in (points.points if points else ())}
    asked = {*sizes, *(FULL_BATCH_SIZES.get(one.name, ()) if one.scale == "full" else ())}
    for size in sorted(asked - {default}):
        runs, measured = (sizes[size].runs, sizes[size].measured) if size in sizes else ((), ())
        known = {run.seed: {"code": run.code} for run in runs}
        is_on_cores = runs and not any(each.get("accelerator") for each in measured)
        seconds = statistics.median(run.seconds for run in runs) if is_on_cores else usual
        states = {seed: judge(known.get(seed), is_this) for seed in range(1, one.runs.required + 1)}
        stage = 4 if one.scale == "full" else 3
        yield Wanted(stage, one.name, one.scale, f"batch size {size}", size, states, seconds)


def _make_judge(current: frozenset[str]) -> Callable[[Mapping[str, Any] | None, bool], str]:
    def judge(record: Mapping[str, Any] | None, is_this: bool) -> str:
        """Return why a run must be made (again), "" where it need not be."""
        if record is None:
            return MISSING
        if not is_this:
            return OTHER_DEFINITION
        code = record.get("code")
        return "" if code in current else CHANGED if code else UNKNOWN

    return judge


def _find_default_batch(one: Definition) -> int:
    rule = one.hyperparameters.get(BATCH_SIZE)
    return int(rule.default) if rule else 0


def _find_times(recorded: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the median seconds of a run of each variant on one core."""
    machines = recorded.get("measured", [])
    runs = [
        (each, each["evaluations"][-1]["samples"], machines[each.get("on", 0)].get("accelerator"))
        for each in recorded.get("curves", [])
        if each["evaluations"]
    ]
    on_cores = [each["seconds"] / count for each, count, device in runs if not device]
    pace, times = statistics.median(on_cores or [0.0]), dict[str, list[float]]()
    for each, count, device in runs:
        seconds = count * pace if pace and device else each["seconds"]
        times.setdefault(each["variant"], []).append(seconds)
    return {variant: statistics.median(taken) for variant, taken in times.items()}


def _count_results(one: Definition, current: frozenset[str]) -> int:
    """Return the most runs of this definition that a result has of code that computes the same."""
    pattern = f"*/{one.name}-{one.scale}-closed"
    counts = [
        sum(_is_current(log, one, current) for log in folder.glob("result_*.txt"))
        for folder in RESULTS.glob(pattern)
    ]
    return max(counts, default=0)


def _is_current(log: Path, one: Definition, current: frozenset[str]) -> bool:
    """Return True for a log that names this definition, and code of the same fingerprint."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return f'"{one.digest}"' in text and any(f'"{code}"' in text for code in current)
