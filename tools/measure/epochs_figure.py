"""The figures of `cepheid measure epochs`: points by batch size, and by setting."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reference.measure.epochs import Comparison, PublishedResult, Run
from rules.definition import Definition
from rules.host import atomic_path, cannot_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, REPORTED = "#3a86d1", "#8a8a8a"
DOTS_PER_INCH = 120
ROOM = 1.1  # beyond the largest value


def by_batch_size(
    path: Path,
    chosen: Definition,
    ours: Mapping[int, Sequence[float]],
    theirs: Sequence[PublishedResult],
) -> None:
    """Every run of ours and their means on the left, published results on the right."""
    with drawn(path, columns=2 if theirs else 1) as (_, columns):
        left = columns[0]
        sizes = sorted(ours)
        for size in sizes:
            left.plot([size] * len(ours[size]), ours[size], ".", color=OURS, alpha=0.5)
        left.plot(sizes, [statistics.mean(ours[size]) for size in sizes], "-", color=OURS)
        left.set_title(f"{chosen.name}, {chosen.scale} scale: the reference, measured")
        if theirs:
            for name in sorted({result.round for result in theirs}):
                results = [result for result in theirs if result.round == name]
                sizes = [result.batch_size for result in results]
                columns[1].plot(sizes, [result.mean_epochs for result in results], ".", label=name)
            columns[1].set_title("full scale, as published: tuned submissions")
            columns[1].legend()
        for axes in columns:
            axes.set_xscale("log", base=2)
            axes.set_xlabel("global batch size")
            axes.set_ylabel("epochs to target")
            axes.set_ylim(0, ROOM * axes.get_ylim()[1])


def by_setting(path: Path, chosen: Definition, asked: Comparison, made: Sequence[Run]) -> None:
    """Every run, and the mean of each setting as a bar; what is published on the right."""
    has_published = any(arm.published_epochs for arm in asked.arms)
    with drawn(path, columns=2 if has_published else 1) as (figure, columns):
        for place, arm in enumerate(asked.arms):
            reached = [run.epochs for run in made if run.arm == arm.name and run.epochs]
            columns[0].plot(reached, [place] * len(reached), ".", color=OURS, alpha=0.5)
            if reached:
                columns[0].plot(statistics.mean(reached), place, "|", color=OURS, ms=24, mew=2)
            if has_published and arm.published_epochs:
                columns[1].plot(arm.published_epochs, place, "o", color=REPORTED)
        columns[0].set_title(f"{chosen.name}, {chosen.scale} scale: measured")
        columns[0].set_yticks(range(len(asked.arms)), [arm.name for arm in asked.arms])
        if has_published:
            columns[1].set_title(f"as published: {asked.published_at}")
            columns[1].set_yticks([])
        for axes in columns:
            axes.set_ylim(len(asked.arms) - 0.5, -0.5)
            axes.set_xlim(0, ROOM * axes.get_xlim()[1])
            axes.set_xlabel("epochs to target")
        figure.suptitle(f"{asked.title} ({asked.source})", fontsize=10)


@contextmanager
def drawn(path: Path, columns: int) -> Iterator[tuple["Figure", list[Any]]]:
    """A figure to draw in, which then appears as ``path`` in one step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8 * columns, 3.8), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    yield figure, list(axes)
    try:
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    except OSError as error:
        raise cannot_write(path, error) from error
