"""How many epochs the reference needs, by batch size or by setting: `cepheid measure epochs`."""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cepheid.compliance.score.trimmed import two_sided_quantile
from cepheid.measure.engine.figures import OURS, REPORTED, draw_figure, write_title
from cepheid.measure.engine.options import read_command
from cepheid.measure.engine.study import Column, Measured, Request, Study
from cepheid.measure.engine.turns import format_spread
from cepheid.measure.studies import epochs
from cepheid.measure.studies.epochs import Arm, Comparison, Run
from cepheid.rules.definition import Definition

FAR = 10  # times a target: beyond that an axis is logarithmic
MARGIN = 1.1  # of an axis beyond the largest value


def list_by_batch_size(request: Request) -> Mapping[int, Sequence[float]]:
    """Return the epochs of the reference's runs by batch size."""
    request.require_training(", so it has no epochs")
    return epochs.list_by_batch_size(request.definition)


def list_results(request: Request, ours: Mapping[int, Sequence[float]]) -> Measured:
    """Return rows of batch size, epochs and source: the reference's, then published ones."""
    definition = request.definition
    scale = f"{definition.scale} scale"
    rows = [
        (size, _join(values), f"reference, {scale}, {len(values)} seeds")
        for size, values in sorted(ours.items())
    ]
    published = epochs.load_published(definition.name)
    for each in published:
        source = f"published: {each.round}, {each.submitter} {each.system}"
        rows.append((each.batch_size, f"{each.mean_epochs:.1f}", source))
    missing = (
        f"nothing is measured for the reference at {scale}; `cepheid rcp {definition.name} "
        f"--scale {definition.scale} --batch-size B` measures it"
    )
    return Measured(rows, notes=[] if ours else [missing], found=(ours, published))


def load_comparison(request: Request) -> Comparison:
    """Return the settings that are compared."""
    request.require_training(", so it has no epochs")
    definition = request.definition
    comparison = epochs.load_comparison(
        definition.name, definition.scale, request.arguments.compare
    )
    comparison.pick(request.arguments.only or ())
    request.require_extras()
    return comparison


def measure(request: Request, comparison: Comparison) -> Measured:
    """Make the runs that are not recorded, and return all of them by setting."""
    definition, seeds = comparison.vary(request.definition), request.arguments.seeds or ()
    arms = comparison.pick(request.arguments.only or ())
    runs = epochs.measure_missing(
        definition, comparison, seeds, arms, request.data_root, request.observer
    )
    return describe(request, comparison, runs)


def describe(request: Request, comparison: Comparison, runs: Sequence[Run]) -> Measured:
    """Return a row for each setting: its arm, and the epochs of its runs."""
    published = f"published: {comparison.source}; {comparison.published_at}"
    quality = comparison.vary(request.definition).quality
    return Measured(
        [(arm, [run.epochs for run in runs if run.arm == arm.name]) for arm in comparison.arms],
        title=f"{comparison.title}: epochs to {' and '.join(map(str, quality))}",
        notes=[published] if comparison.source else [],
        is_fine=all(run.epochs is not None for run in runs),
        found=(comparison, runs),
    )


def list_columns(request: Request, measured: Measured) -> Sequence[Column]:
    """Return the columns of a comparison, with the quality where all runs can be compared.

    That is where the first run that reached the targets ended, else at the end of the budget.
    """
    comparison, runs = measured.found
    ends = [run.epochs or run.evaluations[-1][0] for run in runs if run.evaluations]
    common = min((run.epochs for run in runs if run.epochs), default=max(ends, default=0.0))
    return (
        Column("setting", lambda row: row[0].name),
        Column("seeds", lambda row: len(row[1])),
        Column("missed", lambda row: row[1].count(None)),
        Column("epochs of each", lambda row: list(filter(None, row[1])), _join),
        Column("mean", lambda row: _mean(list(filter(None, row[1]))), "{:.1f}"),
        Column(f"of {comparison.arms[0].own_name}",
               lambda row: compare_by_seed(find_first(comparison, row[0]), row[0], runs)),
        Column("published", lambda row: row[0].published_epochs or None),
        *(
            Column(
                f"{target.metric} after {common:.3g} epochs",
                partial(_describe_quality, runs, target.metric, common),
            )
            for target in request.definition.quality
        ),
        *(
            Column(f"best {target.metric}", partial(_describe_best, runs, target.metric))
            for target in request.definition.quality
        ),
    )  # fmt: skip


def _describe_quality(runs: Sequence[Run], metric: str, epoch: float, row: Any) -> str:
    """Return mean and standard deviation of a metric of an arm, as far as they exist."""
    points = [point for run in runs if run.arm == row[0].name for point in run.evaluations]
    values = [quality[metric] for at, quality in points if at == epoch]
    if len(values) < 2:
        return " ".join(f"{value:.4g}" for value in values)
    return f"{statistics.mean(values):.4g} ± {statistics.stdev(values):.4g}"


def _describe_best(runs: Sequence[Run], metric: str, row: Any) -> str:
    """Return the mean of the best values of a metric in the runs of an arm, and their range."""
    best = [run.best[metric] for run in runs if run.arm == row[0].name and metric in run.best]
    if len(set(best)) < 2:
        return "".join(f"{value:.4g}" for value in best[:1])
    return format_spread(statistics.mean(best), (min(best), max(best)), ".4g")


def find_first(comparison: Comparison, arm: Arm) -> Arm:
    """Return the arm with which those of a group are compared."""
    return next(each for each in comparison.arms if each.group == arm.group)


def compare_by_seed(first: Arm, arm: Arm, runs: Sequence[Run]) -> str:
    """Return the epochs of an arm over those of the first, by seed: mean and 95% interval."""
    of_first, ours = (
        {run.seed: run.epochs for run in runs if run.arm == each.name and run.epochs}
        for each in (first, arm)
    )
    shares = [ours[seed] / of_first[seed] for seed in sorted(ours.keys() & of_first.keys())]
    if arm == first or len(shares) < 2:
        return ""
    half_width = two_sided_quantile(len(shares) - 1) * statistics.stdev(shares) / len(shares) ** 0.5
    mean = statistics.mean(shares)
    return format_spread(mean, (mean - half_width, mean + half_width), ".2f")


def _join(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3g}" for value in sorted(values))


def _mean(values: Sequence[float]) -> float | None:
    return statistics.mean(values) if values else None


def draw_by_batch_size(path: Path, request: Request, measured: Measured) -> None:
    """Draw every run of the reference and their means on the left, published results beside it."""
    (ours, published), definition = measured.found, request.definition
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
            axes.set(xlabel="global batch size", ylabel="epochs to target")
            axes.set_ylim(0, MARGIN * axes.get_ylim()[1])


def draw_by_setting(path: Path, request: Request, measured: Measured) -> None:
    """Draw every run, and the mean of each setting as a bar; published epochs and curves beside it.

    Runs that missed the target are counted. The curves show the first metric with a target, of
    every run whose evaluations are recorded.
    """
    comparison, runs = measured.found
    arms, definition = comparison.arms, comparison.vary(request.definition)
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
            axes.set(xlim=(0, MARGIN * axes.get_xlim()[1]), xlabel="epochs to target")
        if has_curves:
            _draw_curves(columns[-1], definition, comparison, runs)
        source = f" ({comparison.source})" if comparison.source else ""
        write_title(figure, f"{comparison.title}{source}")


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
    if axes.dataLim.y1 > FAR * target.target > 0:
        axes.set_yscale("log")
    axes.set(title=f"every run: {target.metric} while training", xlabel="epochs")
    axes.set_xlim(0)
    axes.legend()


COMPARE = Study("compare", load_comparison, measure, list_columns, draw_by_setting)
STUDY = Study(
    "epochs",
    list_by_batch_size,
    list_results,
    columns=(
        Column("batch size", lambda row: row[0]),
        Column("epochs to target", lambda row: row[1]),
        Column("source", lambda row: row[2]),
    ),
    figure=draw_by_batch_size,
    others=(COMPARE,),
    **read_command("epochs"),
)
