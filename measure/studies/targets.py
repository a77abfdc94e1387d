"""Whether the targets of a benchmark separate correct runs from broken variants, and how safely.

``benchmarks/<name>/evidence.json`` holds the quality curves; the tests read it. Few seeds can be
enough where both margins are wide: the chance that a seed misses the targets, and how far broken
models stay from them.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from cepheid.benchmarks import registry
from cepheid.compliance.score import margins
from cepheid.measure.engine.options import read_command
from cepheid.measure.engine.study import Measured, Request, Study
from cepheid.measure.engine.trainings import CORRECT, Training, record_missing
from cepheid.reference.run.config import configure
from cepheid.rules import evidence
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError, did_you_mean
from cepheid.rules.evidence import Curve, Evidence
from cepheid.rules.metrics import QualityTarget


def estimate_miss_probability(recorded: Evidence, definition: Definition) -> float | None:
    """Return the probability that one more seed of the correct model misses the targets.

    It is that of Student's t for one more draw from a normal distribution of which the seeds are a
    sample. A training misses if it needs more samples than its budget; the spread of what seeds
    need counts as one evaluation interval at least, because nothing finer is seen. A run that
    generates misses if one of its metrics does: their probabilities are added. None for fewer than
    two seeds that reach the targets.
    """
    reached = find_reaching(recorded, definition)
    if len(reached) < 2:
        return None
    if definition.kind == "train":
        least_spread = definition.timing.eval_every_samples
        needed = [float(samples) for samples, _ in reached]
        return _estimate_chance_above(needed, definition.timing.max_samples, least_spread)
    by_metric = [
        _estimate_chance_above(
            [_turn(target, quality[target.metric]) for _, quality in reached], limit
        )
        for target in definition.quality
        for limit in [_turn(target, target.target)]
    ]
    return min(1.0, sum(by_metric))


def find_reaching(
    recorded: Evidence, definition: Definition
) -> list[tuple[int, Mapping[str, float]]]:
    """Return samples and metrics of each correct run at its first evaluation with all targets."""
    return list(filter(None, (curve.find_reaching(definition) for curve in recorded.correct)))


def _turn(target: QualityTarget, value: float) -> float:
    """Return a value such that less is better."""
    return value if target.better == "lower" else -value


def _estimate_chance_above(
    values: Sequence[float], limit: float, least_spread: float = 0.0
) -> float:
    """Return the probability that one more draw is above ``limit`` (Student's t)."""
    from scipy.special import stdtr

    count, mean = len(values), statistics.fmean(values)
    spread = max(statistics.stdev(values), least_spread)
    if spread == 0:
        return float(limit < mean)
    distance = (limit - mean) / (spread * math.sqrt(1 + 1 / count))
    return float(stdtr(count - 1, -distance))


def list_trainings(request: Request) -> list[Training]:
    """Return the runs of the correct reference and of its broken variants, seeds 1, 2, …."""
    definition, asked = request.definition, request.arguments
    request.require_extras()
    broken = registry.import_module(definition.name, "broken").VARIANTS
    sources = {CORRECT: None, **broken}
    for name in asked.only or ():
        if name not in sources:
            raise UserError(
                f'--only: there is no variant "{name}"{did_you_mean(name, sources)} '
                f"(all: {', '.join(sources)})"
            )
    seeds = asked.seeds or evidence.CORRECT_SEEDS_REQUIRED[definition.scale]
    return [
        Training(
            variant, variant, configure(definition, seed=seed, data_root=request.data_root), source
        )
        for variant, source in sources.items()
        for seed in range(1, 1 + (seeds if variant == CORRECT else asked.broken_seeds))
        if not asked.only or variant in asked.only
    ]


def measure(request: Request, wanted: Sequence[Training]) -> Measured:
    """Make the runs that are not recorded, and judge all of them."""
    definition = request.definition
    recorded = record_missing(definition, wanted, request.data_root, request.observer)
    variants = tuple(registry.import_module(definition.name, "broken").VARIANTS)
    problems = evidence.find_problems(recorded, definition, variants)
    notes = [*_summarise(recorded, definition), *(f"problem: {problem}" for problem in problems)]
    return Measured(notes=notes, is_fine=not problems)


def _summarise(recorded: Evidence, definition: Definition) -> list[str]:
    """Return a line for each run, their hours, and the samples to target of the correct ones."""
    lines = [_describe_curve(curve, definition) for curve in recorded.curves]
    seconds = sum(curve.seconds for curve in recorded.curves)
    lines.append(f"{len(recorded.curves)} runs took {seconds / 3600:.1f} hours")
    usual = evidence.summarize_samples(recorded, definition)
    if usual and definition.kind == "train":
        fewest, median, most = usual
        lines.append(f"samples to target: fewest {fewest:,}, median {median:,}, most {most:,}")
    return [*lines, *_describe_margins(recorded, definition)]


def _describe_margins(recorded: Evidence, definition: Definition) -> list[str]:
    """Return how unlikely a correct seed misses, and how far runs stay from the targets."""
    lines = []
    miss = estimate_miss_probability(recorded, definition)
    if miss is not None:
        limit = "the budget" if definition.kind == "train" else "a target"
        seeds = len(find_reaching(recorded, definition))
        lines.append(
            f"one more seed misses {limit} with a probability of {miss:.1%} "
            f"(Student's t, from {seeds} seeds)"
        )
    if described := margins.describe(definition):
        lines.append(described)
    return lines


def _describe_curve(curve: Curve, definition: Definition) -> str:
    """Return the samples to target of a run and the best value of each metric."""
    unit = "samples" if definition.kind == "train" else "images"
    samples = curve.count_samples_to_target(definition)
    best = [
        f"{target.metric} {(min if target.better == 'lower' else max)(values):.4f}"
        for target in definition.quality
        if (values := [quality[target.metric] for _, quality in curve.evaluations])
    ]
    reached = f"reached after {samples:,} {unit}" if samples else "never reached"
    return (
        f"{curve.variant:<22} seed {curve.seed:<3} {reached:<30} best: {', '.join(best)}"
        f"  {curve.seconds:.0f} s"
    )


STUDY = Study("targets", list_trainings, measure, **read_command("targets"))
