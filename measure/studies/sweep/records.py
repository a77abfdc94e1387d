"""A sweep of one machine beside those of others: kept, written, and drawn as the paper does.

``<size>.json`` appears when a size is done. ``sweep.json`` and ``sweep.csv`` are made from these.
The figure is like figures 2 to 4 of the paper: times on the left, ratios on the right. Its caption
says how much was measured, on what, and the caveats of the times beside it.
"""

import textwrap
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from cepheid.measure.engine.recorded_points import (
    PointFolder,
    describe_point,
    name_machine,
    read_points,
)
from cepheid.measure.engine.study import save_figure, use_style
from cepheid.measure.engine.turns import MIB
from cepheid.measure.studies.sweep.measures import EPOCHS, MEASURES, Point
from cepheid.rules.definition import locate_benchmarks
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_NAMES: Mapping[str, str] = {"training": "batch_size", "generation": "images"}
FILE = "sweep.json"


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

    def find_point(self, size: int) -> Point | None:
        """Return the measurement at a size, or None if there is none."""
        return next((point for point in self.points if point.size == size), None)

    def write(self, folder: PointFolder[Point]) -> None:
        """Write ``sweep.json``, and ``sweep.csv`` with the times of another machine, if given."""
        published = self.published
        content = {
            "measure": MEASURES[self.measure],
            "configuration": dict(self.configuration),
            "no_energy": self.no_energy,
            "points": list(map(describe_point, self.points)),
            "published": published and {
                "source": published.source,
                "network": published.network,
                "caveats": published.caveats,
                "seconds": {name: each.seconds for name, each in published.machines.items()},
            },
        }  # fmt: skip
        folder.write_json(FILE, content)
        folder.write_csv("sweep.csv", list(map(self._list_cells, self.points)))

    def _list_cells(self, point: Point) -> dict[str, Any]:
        """Return a line of the table for spreadsheets; what was not measured stays empty."""
        device_bytes, joules = point.peak_device_bytes, point.energy_joules
        measured = f"seconds_per_{EPOCHS}_epochs" if self.measure == "training" else "seconds"
        cells: dict[str, Any] = {
            "benchmark": self.configuration["benchmark"],
            "scale": self.configuration["scale"],
            "machine": self.machine,
            SIZE_NAMES[self.measure]: point.size,
            measured: f"{point.seconds:.6g}",
            "first_quartile_seconds": f"{point.middle_half_seconds[0]:.6g}",
            "third_quartile_seconds": f"{point.middle_half_seconds[1]:.6g}",
            "measured_fraction": f"{point.fraction:.6g}",
            "images_per_second": f"{point.images_per_second:.6g}",
            "peak_resident_mib": f"{point.peak_resident_bytes / MIB:.0f}",
            "peak_device_mib": "" if device_bytes is None else f"{device_bytes / MIB:.0f}",
            "energy_joules": "" if joules is None else f"{joules:.6g}",
            **{f"{name}_seconds": f"{value:.6g}" for name, value in point.parts_seconds.items()},
        }
        if self.other:
            there = self.other.find_point(point.size)
            cells["other_machine"] = self.other.machine
            cells["other_seconds"] = f"{there.seconds:.6g}" if there else ""
            cells["other_over_this"] = f"{there.seconds / point.seconds:.4g}" if there else ""
        for name, machine in self.published.machines.items() if self.published else ():
            seconds = machine.seconds.get(point.size)
            cells[f"{name}_reported_seconds"] = "" if seconds is None else seconds
            over = "" if seconds is None else f"{seconds / point.seconds:.4g}"
            cells[f"{name}_over_this"] = over
        return cells


def read_sweep(path: Path, expected: Mapping[str, Any]) -> Sweep:
    """Return the ``sweep.json`` of another machine.

    Raises UserError for any other file, and where it is not of the same measure as ``expected``.
    """
    facts, points = read_points(path, FILE, Point, "sweep")
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
WIDTH_INCHES, PLOTS_INCHES, LINE_INCHES = 10.0, 4.0, 0.165
CAPTION_COLUMNS = 172
MANY_DECADES = 10_000  # where only powers of ten are written beside the axis
ROOM_FOR_LEGEND = 0.45  # above the values of a logarithmic axis, of the height that they take
LOG_RATIO = 12  # values further apart than this stand on a logarithmic axis


@dataclass(frozen=True)
class Line:
    """One machine in the figure: seconds by size, with their spread where it was measured."""

    label: str
    colour: str
    style: str
    seconds: Mapping[int, float]
    spread: Mapping[int, tuple[float, float]]


def draw_sweep(path: Path, sweep: Sweep) -> None:
    """Draw a sweep as PNG, with another machine's and the reported times beside it.

    Raises UserError where the file cannot be written, ModuleNotFoundError without matplotlib.
    """
    from matplotlib.figure import Figure

    lines = write_caption(sweep)
    height = PLOTS_INCHES + LINE_INCHES * len(lines) + 0.15
    below = 1 - PLOTS_INCHES / height
    with use_style():
        figure = Figure(figsize=(WIDTH_INCHES, height))
        grid = figure.add_gridspec(
            1, 2, left=0.09, right=0.985, bottom=below + 0.125, top=0.93, wspace=0.2
        )
        left, right = (figure.add_subplot(grid[0, column]) for column in range(2))
        machines = list_lines(sweep)
        _draw_times(left, machines, sweep)
        draw_ratios(right, machines, sweep)
        text = "\n".join(lines)
        figure.text(0.012, below, text, verticalalignment="top", linespacing=1.35)
        save_figure(figure, path)


def write_caption(sweep: Sweep) -> list[str]:
    """Return the text below the figure, in lines of its width."""
    measure, published = MEASURES[sweep.measure], sweep.published
    network = f"network of {sweep.configuration['parameters']:,} parameters"
    parts = [f"{sweep.name}: {measure}, {network}."]
    parts.append(f"This machine: {_describe_machine(sweep)}.")
    if sweep.other:
        parts.append(f"The other machine: {_describe_machine(sweep.other)}.")
    if published:
        parts.append(f"Reported: {published.source}.")
        if published.scale != (scale := sweep.configuration["scale"]):
            parts.append(
                f"Those times are of the {published.network}: at {scale} scale the network "
                "is a smaller one, so the ratios say nothing about the machines."
            )
        beyond = [p.size for p in sweep.points if p.size > max(published.in_figure)]
        if beyond and any(
            machine.seconds.keys() & set(beyond) for machine in published.machines.values()
        ):
            parts.append(f"Beyond {max(published.in_figure)}: from the author's notebook.")
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
    return f"{', '.join(filter(None, parts))}; {_describe_extent(sweep)}"


def _describe_extent(sweep: Sweep) -> str:
    if sweep.measure == "generation":
        counts = sorted({int(point.counts["repetitions"] or 0) for point in sweep.points})
        return f"medians of {_format_range(counts)} repetitions, bars: their middle half"
    epochs = sorted(EPOCHS * point.fraction for point in sweep.points)
    if epochs[0] == EPOCHS:
        return f"all {EPOCHS} epochs run, bars: the middle half of ten parts"
    return (
        f"scaled from {_format_range(epochs)} of the {EPOCHS} epochs, after a tenth of that as "
        "warm-up; bars: the middle half of ten parts"
    )


def _format_range(values: Sequence[float]) -> str:
    first, last = f"{values[0]:.3g}", f"{values[-1]:.3g}"
    return first if first == last else f"{first} to {last}"


def list_lines(sweep: Sweep) -> list[Line]:
    """Return the lines of the figure, this machine first."""
    lines = [_make_line(sweep, "this machine", THIS_COLOUR)]
    if sweep.other:
        lines.append(_make_line(sweep.other, f"other: {sweep.other.machine}", OTHER_COLOUR))
    if published := sweep.published:
        largest = max(*published.in_figure, *(point.size for point in sweep.points))
        for (name, machine), colour in zip(
            published.machines.items(), REPORTED_COLOURS, strict=True
        ):
            seconds = {size: value for size, value in machine.seconds.items() if size <= largest}
            lines.append(Line(f"{name}, as reported", colour, "s--", seconds, {}))
    return lines


def _make_line(sweep: Sweep, label: str, colour: str) -> Line:
    seconds = {point.size: point.seconds for point in sweep.points}
    spread = {point.size: point.middle_half_seconds for point in sweep.points}
    return Line(label, colour, "o-", seconds, spread)


def _draw_times(axes: "Axes", lines: Sequence[Line], sweep: Sweep) -> None:
    for line in lines:
        sizes, values = list(line.seconds), list(line.seconds.values())
        axes.plot(sizes, values, line.style, color=line.colour, label=line.label, markersize=5)
        for size, (first, third) in line.spread.items():
            axes.plot([size, size], [first, third], color=line.colour, linewidth=4, alpha=0.35)
    values = [value for line in lines for value in line.seconds.values()]
    sampling = {p.size: p.parts_seconds["sampling"] for p in sweep.points if p.parts_seconds}
    if sampling:
        axes.plot(list(sampling), list(sampling.values()), ":", color=THIS_COLOUR,
                  label="this machine, sampling alone")  # fmt: skip
        values += sampling.values()
    _scale(axes, lines, values)
    axes.set_ylabel(
        f"seconds for {EPOCHS} epochs" if sweep.measure == "training" else "seconds for n images"
    )
    _finish(axes, sweep, f"{sweep.name}: time")


def draw_ratios(axes: "Axes", lines: Sequence[Line], sweep: Sweep) -> None:
    """Draw the times of each other machine over those of this one."""
    this, others = lines[0], lines[1:]
    values = [1.0]
    for line in others:
        sizes = sorted(this.seconds.keys() & line.seconds.keys())
        ratios = [line.seconds[size] / this.seconds[size] for size in sizes]
        label = line.label.split(",")[0]
        axes.plot(sizes, ratios, line.style, color=line.colour, label=f"{label} / this machine",
                  markersize=5)  # fmt: skip
        values += ratios
    if published := sweep.published:
        of_paper = _divide_published(published, {size for line in lines for size in line.seconds})
        axes.plot(list(of_paper), list(of_paper.values()), ":", color=PAPER_COLOUR,
                  label=f"{' / '.join(published.ratio)}, as the paper draws it")  # fmt: skip
        values += of_paper.values()
    axes.axhline(1.0, color=ONE_COLOUR, linewidth=1.5)
    _scale(axes, lines, values)
    axes.set_ylabel("ratio of times")
    _finish(axes, sweep, "ratio (red: as fast as this machine)")


def _divide_published(published: Published, sizes: Set[int]) -> dict[int, float]:
    """Return the ratio of the paper's figure by size, for those of ``sizes`` that it has."""
    dividend, divisor = (published.machines[name].seconds for name in published.ratio)
    both = dividend.keys() & divisor.keys() & sizes
    return {size: dividend[size] / divisor[size] for size in sorted(both)}


def _scale(axes: "Axes", lines: Sequence[Line], values: Sequence[float]) -> None:
    """Make axes logarithmic where values differ much, with the same ticks on both plots."""
    from matplotlib.ticker import LogLocator, NullFormatter

    sizes = sorted({size for line in lines for size in line.seconds})
    if max(sizes) > LOG_RATIO * min(sizes):
        axes.set_xscale("log")
        axes.set_xlim(min(sizes) / 1.15, max(sizes) * 1.15)
        sizes = [size for size in sizes if size in _pick_ticks(sizes)]
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
        axes.set_ylim(top=max(values) * (max(values) / min(values)) ** ROOM_FOR_LEGEND)
    else:
        axes.set_ylim(0, 1.12 * max(values))


def _pick_ticks(sizes: Sequence[int]) -> list[int]:
    """Return sizes whose numbers do not overlap on a logarithmic axis."""
    step = (max(sizes) / min(sizes)) ** (1 / 12)
    kept = [sizes[0]]
    for size in sizes[1:]:
        if size >= step * kept[-1]:
            kept.append(size)
    return kept


def _finish(axes: "Axes", sweep: Sweep, title: str) -> None:
    is_training = sweep.measure == "training"
    axes.set(xlabel="batch size" if is_training else "number of images", title=title)
    axes.grid(which="both")
    if axes.get_legend_handles_labels()[1]:
        axes.legend()
