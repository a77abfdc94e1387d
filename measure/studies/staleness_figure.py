"""The figure of `cepheid measure staleness`: quality while training, and samples to the target."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from cepheid.measure.engine.drawing import OURS, REPORTED, draw_figure
from cepheid.measure.studies.staleness import Arm
from cepheid.rules.definition import Definition

DARKEST = 0.85  # of the colour map
MARGIN = 1.15  # of an axis beyond the budget


def draw_staleness(path: Path, definition: Definition, arms: Sequence[Arm]) -> None:
    """Draw the first metric of every run on the left, and samples to target by delay on the right.

    A cross marks a run that spent its budget without reaching the target, or diverged.
    """
    from matplotlib import colormaps

    target = definition.quality[0]
    with draw_figure(path, columns=2) as (figure, (left, right)):
        for place, arm in enumerate(arms):
            colour = colormaps["viridis"](DARKEST * place / max(1, len(arms) - 1))
            for number, curve in enumerate(arm.curves):
                samples = [count for count, _ in curve.evaluations]
                values = [quality[target.metric] for _, quality in curve.evaluations]
                label = f"{arm.delay}" if number == 0 else None
                left.plot(samples, values, ".-", ms=3, lw=0.9, color=colour, label=label)
            reached = arm.list_samples_to_target(definition)
            right.plot([place] * len(reached), reached, ".", color=OURS, alpha=0.5)
            if reached:
                right.plot(place, statistics.mean(reached), "_", color=OURS, ms=24, mew=2)
            if missed := len(arm.curves) - len(reached):
                right.plot(place, definition.timing.max_samples, "x", color="black")
                where = place, definition.timing.max_samples
                right.annotate(
                    f"{missed} missed", where, (0, 8), textcoords="offset points", ha="center"
                )
        left.axhline(target.target, ls="--", lw=1, color=REPORTED)
        left.set(xlabel="samples", ylabel=target.metric, yscale="log")
        left.legend(title="delay, updates")
        right.set_xticks(range(len(arms)), [str(arm.delay) for arm in arms])
        right.set(xlabel="delay, updates", ylabel="samples to target")
        right.set_xlim(-0.5, len(arms) - 0.5)
        right.set_ylim(0, MARGIN * definition.timing.max_samples)
        figure.suptitle(f"{definition.name}, {definition.scale} scale: asynchronous SGD, simulated")
