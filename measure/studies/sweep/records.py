"""A sweep of one machine beside those of others: what is kept, and drawn as the paper does.

``<size>.json`` appears when a size is done, and ``sweep.json`` is made from these. The figure is
like figures 2 to 4 of the paper: times on the left, ratios on the right. Its caption says how much
was measured, on what, and the caveats of the times beside it.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from cepheid.measure.engine.figures import draw_figure
from cepheid.measure.engine.recorded_points import name_machine, read_points
from cepheid.measure.engine.study import Column
from cepheid.measure.engine.turns import MIB
from cepheid.measure.studies.sweep.measures import (
    EPOCHS,
    MEASURES,
    Point,
    format_ends,
    format_number,
)
from cepheid.rules.definition import locate_benchmarks
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_NAMES: Mapping[str, str] = {"training": "batch_size", "generation": "images"}


@dataclass(frozen=True)
class Machine:
    """A machine of a paper, with its seconds by batch size or number of images."""

    largest_power_watts: float
    seconds: Mapping[int, float]


@dataclass(frozen=True)
class Published:
    """Times that a paper reports for a benchmark: ``benchmarks/<name>/published.yaml``.

    They stand beside measurements, with their source and caveats. No rule compares with them.
    ``in_figure`` are the sizes that a figure shows; ``scale`` is the scale of our benchmark that
    has the published network; ``measure`` is one of ``MEASURES``. ``ratio`` names the machine
    whose times the figure divides by those of another one, and that other one.
    """

    source: str
    figure: int
    measure: str
    network: str
    scale: str
    in_figure: tuple[int, ...]
    machines: Mapping[str, Machine]
    ratio: tuple[str, str]
    caveats: tuple[str, ...]


def load_published(benchmark: str) -> Published | None:
    """Return the published times of a benchmark, or None where there are none."""
    path = locate_benchmarks() / benchmark / "published.yaml"
    if not path.is_file():
        return None
    return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), Published)


@dataclass(frozen=True)
class Sweep:
    """All points of one machine by size, and how they were measured.

    Beside them stand published times, and a sweep of another machine.
    """

    configuration: Mapping[str, Any]
    points: tuple[Point, ...]
    no_energy: str = ""  # why no energy was measured
    published: Published | None = None
    other: "Sweep | None" = None

    @property
    def name(self) -> str:
        """The benchmark and its scale in words."""
        return f"{self.configuration['benchmark']}, {self.configuration['scale']} scale"

    @property
    def measure(self) -> str:
        """The measure, one of ``MEASURES``."""
        return str(self.configuration["measure"])

    @property
    def machine(self) -> str:
        """The accelerator, or the processor and the number of threads that were taken."""
        return name_machine(self.configuration, (point.implementation for point in self.points))

    @property
    def seconds(self) -> Mapping[int, float]:
        """The seconds by size."""
        return {point.size: point.seconds for point in self.points}

    def describe(self) -> dict[str, Any]:
        """Return what ``sweep.json`` has beside the points."""
        published = self.published
        return {
            "measure": MEASURES[self.measure],
            "configuration": dict(self.configuration),
            "no_energy": self.no_energy,
            "machine": self.machine,
            "other_machine": self.other and self.other.machine,
            "published": published and {
                "source": published.source,
                "network": published.network,
                "caveats": published.caveats,
                "seconds": {name: each.seconds for name, each in published.machines.items()},
            },
        }  # fmt: skip

    def list_columns(self) -> Sequence[Column]:
        """Return the columns of the table, also that of ``sweep.json``, with other machines."""
        size, show = SIZE_NAMES[self.measure], format_number
        unit = f"seconds_per_{EPOCHS}_epochs" if self.measure == "training" else "seconds"
        columns = [
            Column(size.replace("_", " "), "size", "{:,}", size),
            Column("seconds", "seconds", show, unit),
            Column("middle half", "middle_half_seconds", format_ends, "middle_half_seconds"),
            *(
                Column(name, partial(_read_part, name), show, f"{name}_seconds")
                for name in self.points[0].parts_seconds
            ),
            Column("measured", lambda point: point.counts.get("timed_epochs"),
                   f"{{:.3g}} of {EPOCHS} epochs"),
            Column(None, "fraction", key="measured_fraction"),
            Column("images/s", "images_per_second", show, "images_per_second"),
            Column("peak MiB", _read_mib("peak_resident_bytes"), "{:,}", "peak_resident_mib"),
            Column("device MiB", _read_mib("peak_device_bytes"), "{:,}", "peak_device_mib"),
            Column("kJ", "energy_joules", lambda joules: f"{joules / 1000:.3g}", "energy_joules"),
        ]  # fmt: skip
        machines = {}
        if self.other:
            machines[f"other: {self.other.machine}", "other"] = self.other.seconds
        for name, each in self.published.machines.items() if self.published else ():
            machines[f"{name} (reported)", name] = each.seconds
        for (head, name), seconds in machines.items():
            columns.append(Column(head, partial(_find_seconds, seconds), show, f"{name}_seconds"))
            ratio = f"{name} / this" if name == "other" else None
            columns.append(Column(ratio, partial(_compare, seconds), "{:.2f}", f"{name}_over_this"))
        return columns


def _read_part(name: str, point: Point) -> float:
    return point.parts_seconds[name]


def _read_mib(name: str) -> Callable[[Point], int | None]:
    read = attrgetter(name)
    return lambda point: None if (size := read(point)) is None else round(size / MIB)


def _find_seconds(seconds: Mapping[int, float], point: Point) -> float | None:
    return seconds.get(point.size)


def _compare(seconds: Mapping[int, float], point: Point) -> float | None:
    return seconds[point.size] / point.seconds if point.size in seconds else None


def read_sweep(path: Path, expected: Mapping[str, Any]) -> Sweep:
    """Return the ``sweep.json`` of another machine.

    Raises UserError for any other file, and where it is not of the same measure as ``expected``.
    """
    facts, points = read_points(path, "sweep.json", Point, "sweep")
    configuration = facts["configuration"]
    for key in ("benchmark", "scale", "measure"):
        if configuration.get(key) != expected[key]:
            raise UserError(
                f"--against: its {key} is {configuration.get(key)}, expected {expected[key]} as "
                "here; only the same measure can be compared"
            )
    return Sweep(configuration, points, str(facts.get("no_energy", "")))


THIS_COLOUR, OTHER_COLOUR = "C6", "C2"
REPORTED_COLOURS = ("C0", "C3")
ONE_COLOUR, PAPER_COLOUR = "C4", "C5"
COLUMN_INCHES, PLOTS_INCHES, LINE_INCHES = 5.0, 4.0, 0.165
CAPTION_COLUMNS = 172
LOG_RATIO = 12  # values further apart than this stand on a logarithmic axis


@dataclass(frozen=True)
class Line:
    """One machine in the figure: seconds by size, with their spread where it was measured."""

    label: str
    colour: str
    seconds: Mapping[int, float]
    spread: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def style(self) -> str:
        """That of measured times, or of reported ones."""
        return "o-" if self.spread else "s--"


def list_lines(sweep: Sweep) -> list[Line]:
    """Return the lines of the figure, this machine first."""
    measured = [("this machine", THIS_COLOUR, sweep)]
    if sweep.other:
        measured.append((f"other: {sweep.other.machine}", OTHER_COLOUR, sweep.other))
    lines = [
        Line(label, colour, of.seconds, {each.size: each.middle_half_seconds for each in of.points})
        for label, colour, of in measured
    ]
    if published := sweep.published:
        largest = max(*published.in_figure, *sweep.seconds)
        reported = published.machines.items()
        for (name, machine), colour in zip(reported, REPORTED_COLOURS, strict=True):
            seconds = {size: value for size, value in machine.seconds.items() if size <= largest}
            lines.append(Line(f"{name}, as reported", colour, seconds))
    return lines


def draw_sweep(sweep: Sweep, path: Path) -> None:
    """Draw a sweep as PNG, with another machine's and the reported times beside it.

    Raises UserError where the file cannot be written, ModuleNotFoundError without matplotlib.
    """
    caption, lines = write_caption(sweep), list_lines(sweep)
    inches = PLOTS_INCHES + LINE_INCHES * len(caption)
    with draw_figure(path, 2, COLUMN_INCHES, inches) as (figure, (left, right)):
        draw_times(left, lines, sweep)
        draw_ratios(right, lines, sweep)
        look = {"ha": "left", "fontsize": "medium", "linespacing": 1.35}
        figure.supxlabel("\n".join(caption), x=0.012, **look)


def write_caption(sweep: Sweep) -> list[str]:
    """Return the text below the figure, in lines of its width."""
    network = f"network of {sweep.configuration['parameters']:,} parameters"
    parts = [f"{sweep.name}: {MEASURES[sweep.measure]}, {network}."]
    parts.append(f"This machine: {_describe_machine(sweep)}.")
    if sweep.other:
        parts.append(f"The other machine: {_describe_machine(sweep.other)}.")
    if published := sweep.published:
        parts.append(f"Reported: {published.source}.")
        if published.scale != (scale := sweep.configuration["scale"]):
            parts.append(
                f"Those times are of the {published.network}: at {scale} scale the network "
                "is a smaller one, so the ratios say nothing about the machines."
            )
        parts += published.caveats
    parts.append("Right: above the red line this machine is the faster one.")
    return textwrap.wrap(" ".join(parts), CAPTION_COLUMNS)


def _describe_machine(sweep: Sweep) -> str:
    """Return machine, framework, precision, and how much of the measure was run."""
    facts = sweep.points[0].implementation
    kinds = sorted({str(p.implementation.get("precision", "")) for p in sweep.points} - {""})
    parts = [sweep.machine, str(facts.get("framework", "")), " or ".join(kinds)]
    if facts.get("weights") == "untrained":
        parts.append("untrained weights")
    if sweep.measure == "generation":
        counts = sorted({int(point.counts["repetitions"] or 0) for point in sweep.points})
        ends = format_ends((counts[0], counts[-1]))
        extent = f"medians of {ends} repetitions, bars: their middle half"
    else:
        epochs = sorted(EPOCHS * point.fraction for point in sweep.points)
        part = f"scaled from {format_ends((epochs[0], epochs[-1]))} of the {EPOCHS} epochs"
        part = part if epochs[0] < EPOCHS else f"all {EPOCHS} epochs run"
        extent = f"{part}, after a tenth of that as warm-up; bars: the middle half of ten parts"
    return f"{', '.join(filter(None, parts))}; {extent}"


def draw_times(axes: "Axes", lines: Sequence[Line], sweep: Sweep) -> None:
    """Draw the seconds of each machine by size, with their spread."""
    for line in lines:
        _draw(axes, line.seconds, line.style, line.label, line.colour)
        for size, ends in line.spread.items():
            axes.plot([size, size], ends, color=line.colour, linewidth=4, alpha=0.35)
    sampling = {p.size: p.parts_seconds["sampling"] for p in sweep.points if p.parts_seconds}
    if sampling:
        _draw(axes, sampling, ":", "this machine, sampling alone", THIS_COLOUR)
    what = f"for {EPOCHS} epochs" if sweep.measure == "training" else "for n images"
    axes.set(ylabel=f"seconds {what}", title=f"{sweep.name}: time")
    _scale(axes, sweep)


def draw_ratios(axes: "Axes", lines: Sequence[Line], sweep: Sweep) -> None:
    """Draw the times of each other machine over those of this one."""
    this, *others = lines
    for line in others:
        label = f"{line.label.split(',')[0]} / this machine"
        _draw(axes, _divide(line.seconds, this.seconds), line.style, label, line.colour)
    if published := sweep.published:
        first, second = (published.machines[name].seconds for name in published.ratio)
        drawn = {size for line in lines for size in line.seconds}
        ratios = {size: each for size, each in _divide(first, second).items() if size in drawn}
        label = f"{' / '.join(published.ratio)}, as the paper draws it"
        _draw(axes, ratios, ":", label, PAPER_COLOUR)
    axes.axhline(1.0, color=ONE_COLOUR, linewidth=1.5)
    axes.set(ylabel="ratio of times", title="ratio (red: as fast as this machine)")
    _scale(axes, sweep)


def _divide(first: Mapping[int, float], second: Mapping[int, float]) -> dict[int, float]:
    """Return the ratios at the sizes that both have."""
    return {size: first[size] / second[size] for size in sorted(first.keys() & second.keys())}


def _draw(axes: "Axes", values: Mapping[int, float], style: str, label: str, colour: str) -> None:
    axes.plot(list(values), list(values.values()), style, label=label, color=colour, markersize=5)


def _scale(axes: "Axes", sweep: Sweep) -> None:
    """Make axes logarithmic where values differ much, and label the sizes that were measured."""
    lines: Any = [line for line in axes.get_lines() if str(line.get_label())[0] != "_"]
    values = [y for line in lines for y in line.get_ydata()] or [1.0]
    sizes = sorted(sweep.seconds)
    if sizes[-1] > LOG_RATIO * sizes[0]:
        axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.set_xticks([], minor=True)
    if max(values) > LOG_RATIO * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel("batch size" if sweep.measure == "training" else "number of images")
    axes.grid()
    axes.legend()
