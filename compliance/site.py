"""The leaderboard as one HTML page that loads nothing: script, style and plots are in it."""

import base64
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from compliance import plots
from compliance.leaderboard import Row, groups
from compliance.leaderboard.numbers import interval, minutes, rcp_cell
from compliance.runlog import RunLog
from compliance.score import run_minutes
from rules.definition import Definition

_PICTURE_BYTES_MAX, _PICTURES_MAX = 2**20, 8  # they stand in the page itself
_PNG = b"\x89PNG\r\n\x1a\n"
_SPREAD_LEAST = 0.05  # half width of the spread's scale, as a share of the mean


@dataclass(frozen=True)
class Dot:
    """One run in the drawing of the spread. ``place`` is in percent of its width."""

    place: float
    kind: str  # counted, dropped, or missed for a run that did not converge
    title: str


@dataclass(frozen=True)
class Spread:
    """The runs of a scored result around their mean, and its interval, in percent of the width."""

    dots: tuple[Dot, ...]
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """A row as the page shows it."""

    row: Row
    rank: int | None
    colour: str
    minutes: str
    interval: str
    spread: Spread | None
    rcp: str
    logs: tuple[tuple[str, str], ...]  # number and link of each log


@dataclass(frozen=True)
class Plot:
    """A plot and what it shows."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Picture:
    """What a run of a result left to look at, as a ``data:`` link, and of which run."""

    link: str
    caption: str


@dataclass(frozen=True)
class Section:
    """One table: a benchmark at a scale in a division."""

    anchor: str
    benchmark: str
    scale: str
    division: str
    title: str
    targets: str
    provisional: str
    metrics: tuple[str, ...]
    lines: tuple[Line, ...]
    spread_percent: str
    is_compared: bool  # with the reference's samples to target
    plots: tuple[Plot, ...]
    pictures: tuple[Picture, ...]


def page(table: Sequence[Row], round_name: str, folder: Path) -> str:
    """The page as text. Links to the logs are relative to ``folder``, where it will stand."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,  # names and reasons come from whoever wrote the logs
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections = [_section(group, rows, folder) for group, rows in groups(table).items()]
    template = environment.get_template("leaderboard.html")
    return template.render(sections=sections, round=round_name, logs=sum(row.runs for row in table))


def _section(group: tuple[str, str, str], rows: Sequence[Row], folder: Path) -> Section:
    definition = next((row.judged.definition for row in rows if row.judged.definition), None)
    shown = [row for row in rows if row.verdict != "rejected"]
    colours = {id(row): _colour(number) for number, row in enumerate(shown)}
    half_width = max((_deviation(row) for row in shown), default=0.0)
    half_width = max(half_width * 1.08, _SPREAD_LEAST)
    scored = [row for row in rows if row.verdict == "scored"]
    lines = [
        Line(
            row,
            scored.index(row) + 1 if row in scored else None,
            colours.get(id(row), ""),
            "" if row.score_minutes is None else minutes(row.score_minutes),
            interval(row),
            _spread(row, half_width),
            rcp_cell(row),
            tuple((str(_number(run, i)), _link(run, folder)) for i, run in enumerate(_runs(row))),
        )
        for row in rows
    ]
    benchmark, scale, division = group
    return Section(
        anchor="-".join(group),
        benchmark=benchmark,
        scale=scale,
        division=division,
        title=definition.title if definition else "",
        targets=" and ".join(map(str, definition.quality)) if definition else "",
        provisional=rows[0].provisional_targets,
        metrics=_metrics(definition),
        lines=tuple(lines),
        spread_percent=f"{100 * half_width:.0f}",
        is_compared=any(line.rcp for line in lines),
        plots=tuple(_plots("-".join(group), definition, shown, colours)),
        pictures=tuple(filter(None, map(_picture, shown[:_PICTURES_MAX]))),
    )


def _metrics(definition: Definition | None) -> tuple[str, ...]:
    return tuple(target.metric for target in definition.quality) if definition else ()


def _colour(number: int) -> str:
    return plots.COLOURS[number] if number < len(plots.COLOURS) else plots.OTHERS_COLOUR


def _runs(row: Row) -> tuple[RunLog, ...]:
    return tuple(row.judged.folder.runs)


def _number(run: RunLog, position: int) -> int:
    return position if run.index is None else run.index


def _link(run: RunLog, folder: Path) -> str:
    """A relative link; quoted, so that no folder's name can be taken for a scheme or for markup."""
    relative = os.path.relpath(os.path.abspath(run.path), os.path.abspath(folder))
    return quote(Path(relative).as_posix(), errors="surrogateescape")


def _deviation(row: Row) -> float:
    """The largest deviation of a run or of the interval from the mean, as a share of the mean."""
    mean = row.score_minutes
    if not mean:
        return 0.0
    times = [run_minutes(run) for run in _runs(row)]
    ends = [*filter(math.isfinite, times), *_interval(row, mean)]
    return max(abs(value - mean) / mean for value in ends)


def _interval(row: Row, mean: float) -> tuple[float, float]:
    """The interval of a score, or the mean alone where there is none."""
    if row.score_low is None or row.score_high is None:
        return mean, mean
    return row.score_low, row.score_high


def _spread(row: Row, half_width: float) -> Spread | None:
    mean, definition = row.score_minutes, row.judged.definition
    if not mean or definition is None:
        return None

    def place(value: float) -> float:
        return round(50 + 50 * (value - mean) / mean / half_width, 2) if mean else 50.0

    ordered = sorted((run_minutes(run), _number(run, i)) for i, run in enumerate(_runs(row)))
    dots = []
    for rank, (value, number) in enumerate(ordered):
        if not math.isfinite(value):
            dots.append(Dot(100.0, "missed", f"run {number} did not converge"))
            continue
        dropped = rank < definition.runs.drop_fastest or rank >= (
            len(ordered) - definition.runs.drop_slowest
        )
        kind, note = ("dropped", ", dropped from the mean") if dropped else ("counted", "")
        dots.append(Dot(place(value), kind, f"run {number}: {minutes(value)} minutes{note}"))
    low, high = _interval(row, mean)
    return Spread(tuple(dots), place(low), place(high))


def _picture(row: Row) -> Picture | None:
    """The picture of the first run of a result that has one, if it is one and not too large."""
    for position, run in enumerate(_runs(row)):
        number = _number(run, position)
        path = run.path.with_name(f"pictures_{number}.png")
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _PICTURE_BYTES_MAX:
            continue
        content = path.read_bytes()
        if content.startswith(_PNG):
            link = f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"
            return Picture(link, f"{row.submitter}/{row.system}, after run {number}")
    return None


def _plots(
    name: str,
    definition: Definition | None,
    shown: Sequence[Row],
    colours: Mapping[int, str],
) -> list[Plot]:
    """One plot for each quality metric, over all results that are not rejected."""
    curves = [plots.Curves(colours[id(row)], _runs(row)) for row in shown]
    if definition is None or not any(run.quality_curve for c in curves for run in c.runs):
        return []
    return [
        Plot(
            plots.quality_against_time(curves, target.metric, target, f"{name}-{target.metric}"),
            f"{target.metric}, {target.better} is better",
        )
        for target in definition.quality
    ]
