"""The figures of `cepheid measure epochs`: points by batch size, and points by setting."""

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cepheid.measure.engine.drawing import OURS, REPORTED, draw_figure
from cepheid.measure.studies.epochs import Comparison, PublishedResult, Run
from cepheid.rules.definition import Definition

MARGIN = 1.1  # of an axis beyond the largest value
TITLE_CHARACTERS = 60  # of a line, for each column of a figure


def draw_by_batch_size(
    path: Path,
    definition: Definition,
    ours: Mapping[int, Sequence[float]],
    published: Sequence[PublishedResult],
) -> None:
    """Draw every run of the reference and their means on the left, published results on the right.

    ``ours`` has the epochs of each run by batch size.
    """
    with draw_figure(path, columns=2 if published else 1) as (_, columns):
        left = columns[0]
        sizes = sorted(ours)
        for size in sizes:
            left.plot([size] * len(ours[size]), ours[size], ".", color=OURS, alpha=0.5)
        left.plot(sizes, [statistics.mean(ours[size]) for size in sizes], "-", color=OURS)
        left.set_title(f"{definition.name}, {definition.scale} scale: the reference, measured")
        if published:
            for name in sorted({result.round for result in published}):
                results = [result for result in published if result.round == name]
                sizes = [result.batch_size for result in results]
                columns[1].plot(sizes, [result.mean_epochs for result in results], ".", label=name)
            columns[1].set_title("full scale, as published: tuned submissions")
            columns[1].legend()
        for axes in columns:
            axes.set_xscale("log", base=2)
            axes.set_xlabel("global batch size")
            axes.set_ylabel("epochs to target")
            axes.set_ylim(0, MARGIN * axes.get_ylim()[1])


def draw_by_setting(
    path: Path, definition: Definition, comparison: Comparison, runs: Sequence[Run]
) -> None:
    """Draw every run, and the mean of each setting as a bar; published epochs and curves beside it.

    Runs that missed the target are counted. The curves show the first metric with a target, of
    every run whose evaluations are recorded.
    """
    arms = comparison.arms
    has_published = any(arm.published_epochs for arm in arms)
    has_curves = any(run.evaluations for run in runs)
    with draw_figure(path, columns=1 + has_published + has_curves) as (figure, columns):
        draw_epochs(columns[0], comparison, runs)
        if has_published:
            for place, arm in enumerate(arms):
                if arm.published_epochs:
                    columns[1].plot(arm.published_epochs, place, "o", color=REPORTED)
        columns[0].set_title(f"{definition.name}, {definition.scale} scale: measured")
        columns[0].set_yticks(range(len(arms)), [arm.name for arm in arms])
        if has_published:
            columns[1].set_title(f"as published: {comparison.published_at}")
            columns[1].set_yticks([])
        for axes in columns[: 1 + has_published]:
            axes.set_ylim(len(arms) - 0.5, -0.5)
            axes.set_xlim(0, MARGIN * axes.get_xlim()[1])
            axes.set_xlabel("epochs to target")
        if has_curves:
            _draw_curves(columns[-1], definition, comparison, runs)
        title = f"{comparison.title} ({comparison.source})"
        figure.suptitle(textwrap.fill(title, TITLE_CHARACTERS * len(columns)))


def draw_epochs(axes: Any, comparison: Comparison, runs: Sequence[Run]) -> None:
    """Draw the epochs of each run, a line for each setting, and how many missed or their mean."""
    for place, arm in enumerate(comparison.arms):
        made = [run for run in runs if run.arm == arm.name]
        reached = [run.epochs for run in made if run.epochs]
        axes.plot(reached, [place] * len(reached), ".", color=OURS, alpha=0.5)
        missed = len(made) - len(reached)
        if made and not missed:
            axes.plot(statistics.mean(reached), place, "|", color=OURS, ms=24, mew=2)
        if missed:
            axes.annotate(
                f"{missed} of {len(made)} missed",
                (0.02, place),  # of the width, at the height of the setting
                xycoords=axes.get_yaxis_transform(),
                va="center",
            )


def _draw_curves(
    axes: Any, definition: Definition, comparison: Comparison, runs: Sequence[Run]
) -> None:
    """Draw a line for each run, in the colour of its setting, and the target."""
    target = definition.quality[0]
    for place, arm in enumerate(comparison.arms):
        name: str | None = arm.name  # once in the legend
        for run in runs:
            if run.arm == arm.name and run.evaluations:
                epochs, values = zip(*run.evaluations, strict=True)
                qualities = [value[target.metric] for value in values]
                axes.plot(epochs, qualities, "-", color=f"C{place}", lw=1, alpha=0.6, label=name)
                name = None
    axes.axhline(target.target, color=REPORTED, ls=":", lw=1)
    axes.set_title(f"every run: {target.metric} after each epoch")
    axes.set_xlabel("epochs")
    axes.set_xlim(0)
    axes.legend()
