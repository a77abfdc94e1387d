"""The history: the best result of each benchmark over the rounds, and changes since the last."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cepheid.leaderboard.plots.plot import Axis, Plot, Series, make_plot, make_table
from cepheid.leaderboard.rows.cells import format_value
from cepheid.leaderboard.rows.entry import Entry, make_slug
from cepheid.leaderboard.site.history import Line, Since, Step, trace_bests
from cepheid.leaderboard.site.view import Site, render

PAGE = "history.html"


@dataclass(frozen=True)
class Cell:
    """A step of a line in words; ``page`` is that of its result, empty for an earlier round."""

    step: Step
    score: str
    page: str


@dataclass(frozen=True)
class Section:
    """A benchmark at a scale in a division: its rounds as a table and as a plot."""

    name: str
    title: str
    cells: tuple[Cell, ...]
    plot: Plot | None


def make_pages(site: Site) -> Iterator[tuple[str, str]]:
    """Make one page, if there are earlier rounds."""
    if not site.rounds:
        return
    pages = {entry.id: entry.page for entry in site.entries}
    labels = [one.label for one in site.rounds]
    current = labels[-1]
    sections = [_make_section(line, labels, current, pages) for line in trace_bests(site.rounds)]
    changed: list[tuple[Entry, str, Since]] = [
        (entry, entry.name, site.since[entry.id])
        for entry in site.entries
        if entry.id in site.since
    ]
    gone = sorted(site.rounds[-2].results.keys() - site.rounds[-1].results.keys())
    yield (
        PAGE,
        render(
            site, "history.html", PAGE, sections=sections, labels=labels, changed=changed, gone=gone
        ),
    )


def _make_section(
    line: Line, labels: Sequence[str], current: str, pages: dict[str, str]
) -> Section:
    benchmark, scale, division = line.group
    title = ", ".join(filter(None, (benchmark, scale and f"{scale} scale", f"{division} division")))
    cells = tuple(
        Cell(
            step,
            format_value(line.kind, step.value),
            pages.get(step.id, "") if step.round == current else "",
        )
        for step in line.steps
    )
    name = make_slug("-".join(filter(None, line.group)))
    return Section(name, title, cells, _plot_line(line, f"history-{name}", title, labels))


def _plot_line(line: Line, name: str, title: str, labels: Sequence[str]) -> Plot | None:
    """Plot the best result of each round, a series for each stretch of comparable rounds."""
    parts = sorted({step.part for step in line.steps})
    series = []
    for part in parts:
        steps = [step for step in line.steps if step.part == part]
        series.append(
            Series(
                _name_stretch([step.round for step in steps]),
                tuple((labels.index(step.round) + 1.0, step.value) for step in steps),
                part,
                ends=tuple(_find_ends(step) for step in steps),
            )
        )
    rows = [
        (step.round, step.day, step.id, format_value(line.kind, step.value), str(step.change or ""))
        for step in line.steps
    ]
    return make_plot(
        name,
        f"Best result over the rounds: {title}",
        Axis(
            "round",
            is_log=False,
            values=tuple(float(number) for number in range(1, len(labels) + 1)),
            show=lambda value: _name_round(labels, value),
        ),
        Axis(line.kind.unit_name, is_log=True),
        series,
        table=make_table(["round", "day", "result", line.kind.unit_name, "against before"], rows),
        description="The best result of each round with its 95% interval"
        + ("." if len(parts) == 1 else f". {_explain_parts(line)}"),
    )


def _name_stretch(rounds: Sequence[str]) -> str:
    """Name comparable rounds by the first and the last of them."""
    return rounds[0] if rounds[0] == rounds[-1] else f"{rounds[0]} to {rounds[-1]}"


def _explain_parts(line: Line) -> str:
    """Say why the rounds fall into several stretches, each in a colour of its own."""
    verdicts = {step.change.verdict for step in line.steps if step.change}
    reasons = {
        "other definition": "the definition of the benchmark has changed",
        "unknown": "an index does not say what a comparison needs",
    }
    told = [text for verdict, text in reasons.items() if verdict in verdicts]
    return f"Rounds of different colours are not comparable: {', or '.join(told)}."


def _find_ends(step: Step) -> tuple[float, float] | None:
    if step.low is None or step.high is None or step.low <= 0:
        return None
    return step.low, step.high


def _name_round(labels: Sequence[str], value: float) -> str:
    number = round(value)
    return (
        labels[number - 1][:24] if abs(value - number) < 1e-9 and 0 < number <= len(labels) else ""
    )
