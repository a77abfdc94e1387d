"""The figures of `cepheid measure project`: prediction beside publication, and time by devices."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from reference.measure.figures.drawing import OURS, REPORTED, draw_figure
from reference.measure.projection.measured import Projection
from reference.measure.projection.published import Family, Prediction

INTERPOLATED = "#d1803a"
STYLES = ((OURS, "x", "extrapolated"), (INTERPOLATED, "+", "interpolated"))


def draw_published(
    path: Path, families: Sequence[Family], predicted: Mapping[str, Sequence[Sequence[Prediction]]]
) -> None:
    """Draw minutes by devices for each family, published and predicted.

    Raises UserError where the file cannot be written, ModuleNotFoundError without matplotlib.
    """
    with draw_figure(path, columns=len(families)) as (_, columns):
        for axes, family in zip(columns, families, strict=True):
            known = family.systems.values()
            axes.plot(
                [each.devices for each in known],
                [each.seconds / 60 for each in known],
                "o",
                color=REPORTED,
                markersize=8,
                label="published",
            )
            for (colour, marker, how), rows in zip(STYLES, predicted[family.name], strict=False):
                axes.plot(
                    [row.known.devices for row in rows],
                    [row.predicted_seconds / 60 for row in rows],
                    marker,
                    color=colour,
                    markersize=8,
                    label=f"predicted, {how}",
                )
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xlabel("devices")
            axes.set_ylabel("minutes to the target")
            axes.set_title(family.title, fontsize=9)
            axes.legend(fontsize=8)


def draw_projection(path: Path, title: str, rows: Sequence[Projection], label: str) -> None:
    """Draw the projected minutes on the left, the parts of a step on the right.

    Raises UserError where the file cannot be written, ModuleNotFoundError without matplotlib.
    """
    with draw_figure(path, columns=2) as (figure, (left, right)):
        devices = [row.devices for row in rows]
        left.plot(devices, [row.seconds / 60 for row in rows], "o-", color=OURS)
        left.set_xscale("log", base=2)
        left.set_yscale("log")
        left.set_ylabel(f"minutes {label}")
        right.stackplot(
            range(len(rows)),
            [1000 * row.step.compute for row in rows],
            [1000 * row.step.exposed for row in rows],
            [1000 * row.step.update for row in rows],
            [1000 * row.step.waiting for row in rows],
            labels=["compute", "communication", "update", "waiting for input"],
        )
        right.set_xticks(range(len(rows)), [f"{count:,}" for count in devices], fontsize=7)
        right.set_ylabel("ms of a step")
        right.legend(fontsize=8)
        for axes in (left, right):
            axes.set_xlabel("devices")
        figure.suptitle(title, fontsize=10)
