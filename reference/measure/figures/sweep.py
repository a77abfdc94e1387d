"""The figure of a sweep, like figures 2 to 4 of the paper: times on the left, ratios on the right.

Below stands what a reader must know: how much was measured, on what, and the caveats of the times
that are set beside it. matplotlib draws.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reference.measure.published import Machine, Published
from reference.measure.sweep import EPOCHS, MEASURES
from reference.measure.sweep_records import Sweep
from rules.errors import cannot_write
from rules.host import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

THIS_COLOUR, OTHER_COLOUR = "#1b1b1b", "#8a6fd1"
REPORTED_COLOURS = ("#3a86d1", "#2a9d6f")
ONE_COLOUR = "#d4483b"
WIDTH_INCHES, PLOTS_INCHES, LINE_INCHES = 10.0, 4.0, 0.165
CAPTION_COLUMNS = 172
DOTS_PER_INCH = 120
MANY_DECADES = 10_000  # where only powers of ten are written beside the axis
ROOM_FOR_LEGEND = 100.0  # above the largest value of generation
LOG_RATIO = 12  # values further apart than this stand on a logarithmic axis


@dataclass(frozen=True)
class Line:
    """One machine in the figure: seconds by size, with their spread where it was measured."""

    label: str
    colour: str
    style: str
    seconds: Mapping[int, float]
    spread: Mapping[int, tuple[float, float]]


def write(path: Path, made: Sweep, reported: Published | None, other: Sweep | None) -> None:
    """Draw ``made``, and ``other`` and what is reported beside it, as PNG; appears in one step.

    Raises UserError where the file cannot be written, ModuleNotFoundError without matplotlib.
    """
    from matplotlib.figure import Figure

    lines = caption(made, reported, other)
    height = PLOTS_INCHES + LINE_INCHES * len(lines) + 0.15
    figure = Figure(figsize=(WIDTH_INCHES, height))
    below = 1 - PLOTS_INCHES / height
    grid = figure.add_gridspec(
        1, 2, left=0.09, right=0.985, bottom=below + 0.125, top=0.93, wspace=0.2
    )
    left, right = (figure.add_subplot(grid[0, column]) for column in range(2))
    machines = _lines(made, reported, other)
    _draw_times(left, machines, made)
    _draw_ratios(right, machines, made)
    figure.text(
        0.012, below, "\n".join(lines), fontsize=8, verticalalignment="top", linespacing=1.35
    )
    try:
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    except OSError as error:
        raise cannot_write(path, error) from error


def caption(made: Sweep, reported: Published | None, other: Sweep | None) -> list[str]:
    """What stands below the figure, in lines of its width."""
    parts = [f"{made.benchmark}, {made.scale} scale: {MEASURES[made.measure]}, {_network(made)}."]
    parts.append(f"This machine: {_how(made)}.")
    if other:
        parts.append(f"The other machine: {_how(other)}.")
    if reported:
        parts.append(f"Reported: {reported.source}.")
        if reported.scale != made.scale:
            parts.append(
                f"Those times are of the {reported.network}: at {made.scale} scale the network is "
                "a smaller one, so the ratios say nothing about the machines."
            )
        beyond = [p.size for p in made.points if p.size > max(reported.in_figure)]
        if beyond and any(machine.seconds.keys() & set(beyond) for machine in reported.machines):
            parts.append(f"Beyond {max(reported.in_figure)}: from the author's notebook.")
        parts += reported.caveats
    parts.append("Right: above the red line this machine is the faster one.")
    return textwrap.wrap(" ".join(parts), CAPTION_COLUMNS)


def _network(made: Sweep) -> str:
    return f"network of {made.configuration['parameters']:,} parameters"


def _how(made: Sweep) -> str:
    """Machine, framework, precision, and how much of the measure was run."""
    told = made.points[0].implementation
    kinds = sorted({str(p.implementation.get("precision", "")) for p in made.points} - {""})
    parts = [made.machine, str(told.get("framework", "")), " or ".join(kinds)]
    if told.get("weights") == "untrained":
        parts.append("weights that nobody has trained")
    return f"{', '.join(filter(None, parts))}; {_how_much(made)}"


def _how_much(made: Sweep) -> str:
    if made.measure == "generation":
        counts = sorted({int(point.counts["repetitions"] or 0) for point in made.points})
        return f"medians of {_range(counts)} repetitions, bars: their middle half"
    epochs = sorted(EPOCHS * point.fraction for point in made.points)
    if epochs[0] == EPOCHS:
        return f"all {EPOCHS} epochs run, bars: the middle half of ten parts"
    return (
        f"scaled from {_range(epochs)} of the {EPOCHS} epochs, after a tenth of that as warm-up; "
        "bars: the middle half of ten parts"
    )


def _range(values: Sequence[float]) -> str:
    first, last = f"{values[0]:.3g}", f"{values[-1]:.3g}"
    return first if first == last else f"{first} to {last}"


def _lines(made: Sweep, reported: Published | None, other: Sweep | None) -> list[Line]:
    """This machine first, then the others."""
    lines = [_line(made, "this machine", THIS_COLOUR)]
    if other:
        lines.append(_line(other, f"other: {other.machine}", OTHER_COLOUR))
    if reported:
        largest = max(*reported.in_figure, *(point.size for point in made.points))
        for machine, colour in zip(reported.machines, REPORTED_COLOURS, strict=True):
            lines.append(_reported(machine, colour, largest))
    return lines


def _line(sweep: Sweep, label: str, colour: str) -> Line:
    seconds = {point.size: point.seconds for point in sweep.points}
    spread = {point.size: point.middle_half_seconds for point in sweep.points}
    return Line(label, colour, "o-", seconds, spread)


def _reported(machine: Machine, colour: str, largest: int) -> Line:
    seconds = {size: value for size, value in machine.seconds.items() if size <= largest}
    return Line(f"{machine.name}, as reported", colour, "s--", seconds, {})


def _draw_times(axes: "Axes", lines: Sequence[Line], made: Sweep) -> None:
    for line in lines:
        sizes, values = list(line.seconds), list(line.seconds.values())
        axes.plot(sizes, values, line.style, color=line.colour, label=line.label, markersize=5)
        for size, (first, third) in line.spread.items():
            axes.plot([size, size], [first, third], color=line.colour, linewidth=4, alpha=0.35)
    values = [value for line in lines for value in line.seconds.values()]
    sampling = {p.size: p.parts_seconds["sampling"] for p in made.points if p.parts_seconds}
    if sampling:
        axes.plot(list(sampling), list(sampling.values()), ":", color=THIS_COLOUR,
                  label="this machine, sampling alone")  # fmt: skip
        values += sampling.values()
    _scale(axes, lines, values)
    if sampling:
        axes.set_ylim(top=ROOM_FOR_LEGEND * max(values))
    axes.set_ylabel(
        f"seconds for {EPOCHS} epochs" if made.measure == "training" else "seconds for n images"
    )
    _finish(axes, made, f"{made.benchmark}, {made.scale} scale: time")


def _draw_ratios(axes: "Axes", lines: Sequence[Line], made: Sweep) -> None:
    """What each other machine takes over what this one takes."""
    this, others = lines[0], lines[1:]
    everything = [1.0]
    for line in others:
        sizes = sorted(this.seconds.keys() & line.seconds.keys())
        ratios = [line.seconds[size] / this.seconds[size] for size in sizes]
        label = line.label.split(",")[0]
        axes.plot(sizes, ratios, line.style, color=line.colour, label=f"{label} / this machine",
                  markersize=5)  # fmt: skip
        everything += ratios
    if len(others) > 1 and (gpu_over_ipu := _as_the_paper(others)):
        axes.plot(list(gpu_over_ipu), list(gpu_over_ipu.values()), ":", color="#8a8f98",
                  label="V100 / IPU GC2, as the paper draws it")  # fmt: skip
        everything += gpu_over_ipu.values()
    axes.axhline(1.0, color=ONE_COLOUR, linewidth=1.5)
    _scale(axes, lines, everything)
    axes.set_ylabel("ratio of times")
    _finish(axes, made, "ratio (red: as fast as this machine)")


def _as_the_paper(lines: Sequence[Line]) -> dict[int, float]:
    """The ratio of the paper's figure: what its GPU takes over what its IPU takes."""
    by_name = {line.label.split(",")[0]: line.seconds for line in lines}
    ipu, gpu = by_name.get("IPU GC2", {}), by_name.get("V100", {})
    return {size: gpu[size] / ipu[size] for size in sorted(gpu.keys() & ipu.keys())}


def _scale(axes: "Axes", lines: Sequence[Line], values: Sequence[float]) -> None:
    """Logarithmic axes where values lie far apart; on both plots the same sizes as ticks."""
    from matplotlib.ticker import LogLocator, NullFormatter

    sizes = sorted({size for line in lines for size in line.seconds})
    if max(sizes) > LOG_RATIO * min(sizes):
        axes.set_xscale("log")
        axes.set_xlim(min(sizes) / 1.15, max(sizes) * 1.15)
        sizes = [size for size in sizes if size in _apart(sizes)]
    else:
        space = 0.06 * (max(sizes) - min(sizes))
        axes.set_xlim(min(sizes) - space, max(sizes) + space)
    axes.set_xticks(sizes)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter("{x:g}")
    if max(values) > LOG_RATIO * min(values):
        axes.set_yscale("log")
        subs = (1, 2, 5) if max(values) < MANY_DECADES * min(values) else (1,)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.margins(y=0.12)
    else:
        axes.set_ylim(0, 1.12 * max(values))


def _apart(sizes: Sequence[int]) -> list[int]:
    """Sizes whose numbers do not touch on a logarithmic axis, from the smallest on."""
    step = (max(sizes) / min(sizes)) ** (1 / 12)
    kept = [sizes[0]]
    for size in sizes[1:]:
        if size >= step * kept[-1]:
            kept.append(size)
    return kept


def _finish(axes: "Axes", made: Sweep, title: str) -> None:
    axes.set_xlabel("batch size" if made.measure == "training" else "number of images")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.25, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8)
