"""The figures of `cepheid measure project`: prediction beside publication, and time by devices."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cepheid.measure.engine.drawing import OURS, REPORTED, draw_figure
from cepheid.measure.studies.projection.measured import Projection
from cepheid.measure.studies.projection.published import Family, Prediction

MARKERS = ("x", "+")  # of the fits: extrapolated, interpolated


def draw_published(
    path: Path, families: Sequence[Family], predicted: Mapping[str, Sequence[Sequence[Prediction]]]
) -> None:
    """Draw minutes by devices, published and predicted, and the errors of the predictions.

    Raises UserError where the file cannot be written, ModuleNotFoundError without matplotlib.
    """
    with draw_figure(path, columns=2) as (figure, (left, right)):
        for number, family in enumerate(families):
            colour = f"C{number}"
            known = family.systems.values()
            left.plot(
                [each.devices for each in known],
                [each.seconds / 60 for each in known],
                "o",
                color=colour,
                fillstyle="none",
                markersize=8,
                label=family.title.partition("(")[0].strip(),
            )
            for marker, rows in zip(MARKERS, predicted[family.name], strict=False):
                devices = [row.known.devices for row in rows]
                left.plot(devices, [row.predicted_seconds / 60 for row in rows], marker, c=colour)
                open_rows = [row for row in rows if not row.is_fitted]
                right.plot(
                    [row.known.devices for row in open_rows],
                    [100 * row.error for row in open_rows],
                    marker,
                    color=colour,
                )
        right.axhline(0, color=REPORTED, linewidth=1)
        left.set_yscale("log")
        left.set_ylabel("minutes to the target")
        left.set_title("o published, x extrapolated, + interpolated")
        right.set_ylabel("% by which the prediction misses")
        right.set_title("systems that were not fitted")
        left.legend()
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xlabel("devices")
        figure.suptitle("Time to train, predicted from two published times")


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
        right.set_xticks(range(len(rows)), [f"{count:,}" for count in devices])
        right.set_ylabel("ms of a step")
        right.legend()
        for axes in (left, right):
            axes.set_xlabel("devices")
        figure.suptitle(title)
