"""Plots of quality against time as SVG text to put into a page. matplotlib draws, CSS colours."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compliance.runlog import RunLog
from rules.definition import QualityTarget

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Middle tones: they stand out on a white and on a nearly black page.
COLOURS = (
    "#3a86d1", "#d9731a", "#2a9d6f", "#c25a94", "#8a6fd1", "#b08900", "#2a9fb0", "#d4483b",
)  # fmt: skip
OTHERS_COLOUR = "#8a8f98"
_INK = "#010203"  # stands for the text colour of the page
_SIZE_INCHES = (4.4, 2.9)
_LOG_TIME_RATIO = 8  # systems further apart than this are drawn on a logarithmic time axis


@dataclass(frozen=True)
class Curves:
    """The runs of one result, all in one colour."""

    colour: str
    runs: tuple[RunLog, ...]


def quality_against_time(
    curves: Sequence[Curves], metric: str, target: QualityTarget | None, name: str
) -> str:
    """An ``<svg>`` element: one line for each run, the target as a dashed line.

    ``name`` tells plots of one page apart. Text and axes take the colour of the text around them.
    """
    import matplotlib
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and scaled
        "svg.hashsalt": name,  # the same logs give the same page, and no id is there twice
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9,
        "axes.edgecolor": _INK,
        "axes.labelcolor": _INK,
        "text.color": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
    }
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        axes = figure.add_subplot()
        _draw(axes, curves, metric, target)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return _for_page(text.getvalue(), f"{metric} against minutes since run_start")


def _draw(
    axes: "Axes", curves: Sequence[Curves], metric: str, target: QualityTarget | None
) -> None:
    ends = []
    for result in curves:
        for run in result.runs:
            points = [p for p in run.quality_curve if metric in p.metrics]
            if not points:
                continue
            minutes = [point.seconds / 60 for point in points]
            values = [point.metrics[metric] for point in points]
            style = "-" if run.converged else ":"
            axes.plot(minutes, values, style, color=result.colour, linewidth=1.3, alpha=0.85)
            mark = "o" if run.converged else "x"
            axes.plot(minutes[-1:], values[-1:], mark, color=result.colour, markersize=4)
            ends.append(minutes[-1])
    is_log = bool(ends) and min(ends) > 0 and max(ends) > _LOG_TIME_RATIO * min(ends)
    if is_log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set_xlim(left=0)
    if target is not None:
        axes.axhline(target.target, color=_INK, linewidth=1, linestyle=(0, (5, 4)), alpha=0.75)
        axes.annotate(  # on the left, where a run has not come near it yet
            f"target {target.target:g}",
            (0, target.target),
            xycoords=("axes fraction", "data"),
            xytext=(3, 3 if target.better == "lower" else -3),
            textcoords="offset points",
            verticalalignment="bottom" if target.better == "lower" else "top",
        )
    axes.set_xlabel("minutes since run_start" + (", logarithmic" if is_log else ""))
    axes.set_ylabel(metric)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.08)


def _for_page(document: str, title: str) -> str:
    """The ``<svg>`` of a document, scalable, in the page's colours and without spare ids."""
    svg = document[document.index("<svg") :].rstrip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    head, body = svg.split(">", 1)
    view = re.search(r'viewBox="[0-9. ]+"', head)
    assert view is not None
    # Matplotlib names every group; in a page with many plots these ids would collide.
    body = re.sub(r' id="(?:figure|axes|patch|line2d|text|matplotlib|xtick|ytick)[^"]*"', "", body)
    body = body.replace(_INK, "currentColor").replace("xlink:href", "href")
    return f'<svg class="plot" role="img" aria-label="{title}" {view.group()}>{body}'
