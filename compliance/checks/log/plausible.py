"""T9: metrics and losses that a training has: beside each other, and beside all that was measured.

Limits come from the recorded evidence (``benchmarks/<name>/evidence.json``), so that new evidence
moves them; without any there is none. All are warnings, but for what the data do not allow.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

from cepheid.compliance.checks.registry import Place, find_division
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules import definition as definitions
from cepheid.rules import evidence
from cepheid.rules.definition import Definition
from cepheid.rules.events import is_number

DEVIATIONS = 5.0  # between seeds, beyond the best that was measured
BAND_FACTOR = 2.0  # beyond the losses that were measured beside a quality
LEFT_MIN = 0.05  # of the quality that a metric can have; with less a loss is a few samples
FLAT_LOSSES_MIN, FORMULA_LOSSES_MIN = 3, 4
FORMULA_TOLERANCE = 1e-9


def check_plausibility(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Warn of values that no training has; each evaluation has all metrics, finite ones."""
    evaluations = run.all("eval_accuracy")
    yield from _check_data_limits(run, evaluations, definition)
    yield from _check_losses_beside(run, evaluations, definition)
    yield from _check_records(run, evaluations, definition)
    yield from _check_training_losses(run, definition, find_division(run, place) == "closed")


def _check_data_limits(
    run: RunLog, evaluations: Sequence[Event], definition: Definition
) -> Iterator[Finding]:
    """Report an error smaller than the noise of the data allows, where the data are these."""
    if definition.data_digest is None or run.text("data_digest") != definition.data_digest:
        return
    for name, least in definition.relations.least.items():
        for event in evaluations:
            if (value := event.metadata["metrics"][name]) < least:
                shown = format_value(value)
                yield breach(run, event, "T9.below_noise", name=name, least=least, shown=shown)
                break


def _check_losses_beside(
    run: RunLog, evaluations: Sequence[Event], definition: Definition
) -> Iterator[Finding]:
    """Warn of a loss that does not belong to the quality of the same evaluation."""
    quality = definition.quality[0]
    limits = load_limits(definition.name, definition.scale, definition.digest)
    for name, guess in find_guesses(definition).items():
        measured = limits.bands.get(name)
        for event in evaluations:
            metrics = event.metadata["metrics"]
            left = measure_left(metrics[quality.metric], definition)
            lowest, highest = 0.0, math.inf
            if measured and left >= LEFT_MIN:
                lowest, highest = (guess * left * share for share in measured)
            if quality.holds(metrics[quality.metric]):
                highest = min(highest, guess)
            if metrics[name] < lowest or metrics[name] > highest:
                yield breach(
                    run, event, "T9.loss_beside", name=name, metric=quality.metric, lowest=lowest,
                    highest=highest, guess=guess, quality=format_value(metrics[quality.metric]),
                    shown=format_value(metrics[name]),
                )  # fmt: skip
                break


def _check_records(
    run: RunLog, evaluations: Sequence[Event], definition: Definition
) -> Iterator[Finding]:
    """Warn of the first evaluation that is better than anything that was ever measured."""
    limits = load_limits(definition.name, definition.scale, definition.digest).records
    for event in evaluations:
        for name, (best, limit) in limits.items():
            value, is_lower = event.metadata["metrics"].get(name), limit < best
            if is_number(value) and (value < limit if is_lower else value > limit):
                yield breach(
                    run, event, "T9.record", name=name, best=best, limit=limit,
                    direction="more" if is_lower else "less", shown=format_value(value),
                )  # fmt: skip
                return


def _check_training_losses(
    run: RunLog, definition: Definition, is_closed: bool
) -> Iterator[Finding]:
    """Warn of training losses that are no losses of a training."""
    blocks = run.all("block_stop")
    logged = [event.metadata.get("train_loss") for event in blocks]
    losses = [float(loss) for loss in logged if is_number(loss)]
    if not blocks or len(losses) < len(blocks) or run.grows:
        return
    if len(losses) >= FLAT_LOSSES_MIN and len(set(losses)) == 1:
        yield breach(run, blocks[-1], "T9.flat_loss", loss=losses[0], blocks=len(blocks))
    elif formula := find_formula(losses):
        yield breach(run, blocks[-1], "T9.computed_loss", formula=formula, blocks=len(blocks))
    guesses = find_guesses(definition)
    for name in guesses.keys() & definition.relations.losses.keys():  # for each sample
        if is_closed and run.converged and not 0 < losses[-1] <= guesses[name]:
            shown = format_value(losses[-1])
            yield breach(run, blocks[-1], "T9.train_loss", guess=guesses[name], shown=shown)


def find_formula(losses: Sequence[float]) -> str:
    """Return what losses follow to the last digit, in words; an empty text for a training's."""
    if len(losses) < FORMULA_LOSSES_MIN:
        return ""
    if len(set(losses)) <= len(losses) // FORMULA_LOSSES_MIN:
        return "are few numbers, again and again"
    steps = [after - before for before, after in pairwise(losses)]
    if max(steps) - min(steps) <= FORMULA_TOLERANCE * max(map(abs, losses)):
        return "differ by one number"
    if min(map(abs, losses)) == 0:
        return ""
    ratios = [after / before for before, after in pairwise(losses)]
    if max(ratios) - min(ratios) <= FORMULA_TOLERANCE * max(map(abs, ratios)):
        return "differ by one factor"
    return ""


def measure_left(quality: float, definition: Definition) -> float:
    """Return the share of its quality that the first metric still lacks."""
    highest = definition.bounds[definition.quality[0].metric][1]
    return max(0.0, 1 - quality / highest)


def find_guesses(definition: Definition) -> Mapping[str, float]:
    """Return for each cross-entropy that of a guess, where all choices are equally likely."""
    choices = definition.relations.choices
    return {name: math.log(definition.model[key]) for name, key in choices.items()}


@dataclass(frozen=True)
class Limits:
    """What the evidence of a benchmark says of metrics.

    ``records`` holds the best value of a metric and the limit beyond it. ``bands`` holds the range
    of a loss in units of a guess's, times the share of the quality that is lacking.
    """

    records: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    bands: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@cache
def load_limits(name: str, scale: str, digest: str) -> Limits:
    """Return the limits that follow from the evidence for this very definition."""
    definition = definitions.load(name, scale)
    shown = evidence.load(definition) if definition.digest == digest else None
    return make_limits(shown, definition) if shown else Limits()


def make_limits(shown: evidence.Evidence, definition: Definition) -> Limits:
    """Compute limits from evidence: correct and broken runs, each evaluation of each."""
    every = [metrics for curve in shown.curves for _, metrics in curve.evaluations]
    better = {target.metric: target.better for target in definition.quality}
    better |= dict.fromkeys(definition.relations.choices, "lower")
    records = {}
    for name, direction in better.items():
        last = [curve.evaluations[-1][1].get(name, math.nan) for curve in shown.correct]
        values = [metrics[name] for metrics in every if math.isfinite(metrics.get(name, math.nan))]
        if len(last) > 1 and all(map(math.isfinite, last)):
            away = DEVIATIONS * statistics.stdev(last)
            best = min(values) if direction == "lower" else max(values)
            records[name] = (best, best - away if direction == "lower" else best + away)
    bands, metric = {}, definition.quality[0].metric
    for name, guess in find_guesses(definition).items():
        shares = [
            metrics[name] / guess / left
            for metrics in every
            if name in metrics and (left := measure_left(metrics[metric], definition)) >= LEFT_MIN
        ]
        if shares:
            bands[name] = (min(shares) / BAND_FACTOR, max(shares) * BAND_FACTOR)
    return Limits(records, bands)
