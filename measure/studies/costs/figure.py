"""The figure of `cepheid measure costs`: what an update is made of, step after step."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cepheid.measure.engine.drawing import COLUMN_INCHES, OURS, REPORTED, draw_figure
from cepheid.measure.studies.costs.cost_steps import Costs

CROWDED = 8  # bars
LEGEND_COLUMNS, LEGEND_ROOM = 4, 1.25  # above the bars, and so many times their height
BAR_INCHES = 0.5  # so that the names below them do not overlap
TITLE_CHARACTERS = 60  # of a line, for each column of a figure
COLOURS = ("C5", "C0", "C6", "C1", "C2", "C4", "C3", "0.85")  # the last one is light grey


def draw_phases(
    path: Path,
    costs: Costs,
    phases_ms: Mapping[str, Mapping[str, float]],
    order: Sequence[str],
    where: str,
) -> Path:
    """Draw the phases of each step's update on the left, reported totals, if any, on the right.

    ``phases_ms`` has milliseconds by step and phase, ``order`` the phases from bottom to top.
    Raises UserError where the file cannot be written.
    """
    reported = [step for step in (costs.baseline, *costs.steps) if step.published_ms]
    inches = max(COLUMN_INCHES, BAR_INCHES * len(phases_ms))
    with draw_figure(path, 2 if reported else 1, inches) as (figure, (left, *others)):
        _stack_phases(left, phases_ms, order)
        left.set_title(f"measured: {where}")
        for right in others:
            totals = [step.published_ms for step in reported]
            right.bar(range(len(reported)), totals, color=REPORTED)
            names = [step.name for step in reported]
            right.set_xticks(range(len(reported)), names, rotation=30, ha="right")
            right.set_title("as reported: totals")
        title = f"{costs.title} ({costs.source})"
        figure.suptitle(textwrap.fill(title, TITLE_CHARACTERS * (1 + len(others))))
    return path


def draw_ladder(
    path: Path,
    title: str,
    phases_ms: Mapping[str, Mapping[str, float]],
    speedups: Mapping[str, tuple[float, float, float]],
    order: Sequence[str],
    where: str,
) -> Path:
    """Draw the phases of each rung on the left; on the right how much faster it is than the first.

    ``speedups`` have median and quartiles. Raises UserError where the file cannot be written.
    """
    with draw_figure(path, columns=2) as (figure, (left, right)):
        _stack_phases(left, phases_ms, order)
        left.set_title(f"measured: {where}")
        places = range(len(speedups))
        middles = [middle for middle, _, _ in speedups.values()]
        spread = [  # a ratio of medians may lie outside the quartiles of the turns' ratios
            [max(0.0, middle - low) for middle, low, _ in speedups.values()],
            [max(0.0, high - middle) for middle, _, high in speedups.values()],
        ]
        right.bar(places, middles, yerr=spread, color=OURS, capsize=4)
        right.axhline(1, color=REPORTED, linewidth=0.8)
        right.set_xticks(places, list(speedups), rotation=30, ha="right")
        right.set_title("times as fast as the first (quartiles)")
        figure.suptitle(title)
    return path


def _stack_phases(
    axes: Any, phases_ms: Mapping[str, Mapping[str, float]], order: Sequence[str]
) -> None:
    coloured = zip(order, COLOURS, strict=False)
    shown = [
        pair for pair in coloured if any(each.get(pair[0], 0) > 0 for each in phases_ms.values())
    ]
    for position, phases in enumerate(phases_ms.values()):
        bottom = 0.0
        for phase, colour in shown:
            height = max(0.0, phases.get(phase, 0.0))
            axes.bar(position, height, bottom=bottom, color=colour, label="" if position else phase)
            bottom += height
    look: dict[str, Any] = {"rotation": 30}
    place: dict[str, Any] = {"loc": "upper center", "ncols": LEGEND_COLUMNS}
    if len(phases_ms) > CROWDED:
        look = {"rotation": 60, "rotation_mode": "anchor"}
        place = {"loc": "upper left", "bbox_to_anchor": (1, 1)}  # on the right, outside
    else:
        axes.set_ylim(top=LEGEND_ROOM * axes.get_ylim()[1])
    axes.set_xticks(range(len(phases_ms)), list(phases_ms), ha="right", **look)
    axes.set_ylabel("ms of an update")
    axes.legend(**place)
