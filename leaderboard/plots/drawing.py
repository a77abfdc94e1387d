"""Markup that pages hold by the thousand: a template takes ten times as long for each cell.

Every text is escaped, as a template does. Plots are drawn as SVG: those of the pages of results,
and those of all pages without scripts.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from html import escape as escape_markup
from typing import TYPE_CHECKING

from cepheid.compliance.finding import escape
from cepheid.leaderboard.plots.plot import (
    GREY,
    SHAPES,
    Guide,
    Mark,
    Plot,
    Point,
    Scale,
    Series,
    find_front,
    find_ideal,
    get_shape,
    name_look,
    pick_best,
)

if TYPE_CHECKING:  # not part of the core
    from markupsafe import Markup

WIDTH, HEIGHT = 480.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, WIDTH - 14.0, 12.0, HEIGHT - 46.0  # of the frame
TITLED_MAX = 400  # marks, of which each then says what it is
_MARKUP = re.compile("[&<>\"']")
_PAPER = re.compile(
    r"\b(?:doi:(10\.[0-9]{4,9}/[\w.-]*\w)|arXiv:([0-9]{4}\.[0-9]{4,5}))\b", re.ASCII
)


def write_text(value: object) -> str:
    """Write a value as text of a page: no markup, no control characters."""
    text = escape(str(value))
    return escape_markup(text) if _MARKUP.search(text) else text


def mark(markup: str) -> "Markup":
    """Return text whose markup templates leave as it is."""
    from markupsafe import Markup

    return Markup(markup)


def element(name: str, content: str = "", **attributes: object) -> str:
    """Write an element around its content, which is markup.

    In names of attributes _ stands for -, and at their end for nothing; None is left out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{write_text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def titled(text: str) -> str:
    """Write what a drawn thing says of itself; nothing without a text."""
    return f"<title>{write_text(text)}</title>" if text else ""


def draw_shape(colour: int) -> "Markup":
    """Draw the mark of a colour around its place."""
    return mark(SHAPES[get_shape(colour)])


def soften(name: object) -> "Markup":
    """Write a name that may break after marks between words, not inside a word or a number."""
    return mark(re.sub(r"([_/-]|\.(?!\d))(?=[^_./-])", r"\1<wbr>", write_text(name)))


def write_links(source: str) -> "Markup":
    """Write a source as text in which identifiers of papers are links."""

    def link(found: re.Match[str]) -> str:
        doi, number = found.groups()
        address = f"doi.org/{doi}" if doi else f"arxiv.org/abs/{number}"
        return f'<a href="https://{address}" rel="noreferrer">{found[0]}</a>'

    return mark(_PAPER.sub(link, write_text(source)))


def write_rows(rows: Iterable[Sequence[str]]) -> "Markup":
    """Write the rows of a plain table. Most hold numbers, so a row is looked at as a whole."""
    written = []
    for row in rows:
        text = "".join(row)
        is_plain = text.isprintable() and not _MARKUP.search(text)
        cells = "</td><td>".join(row if is_plain else map(write_text, row))
        written.append(f"<tr><td>{cells}</td></tr>")
    return mark("\n".join(written))


def draw(plot: Plot) -> "Markup":
    """Draw a plot and its legend."""
    x, y, series = plot.x, plot.y, plot.series
    points = [point for one in series for point in one.points]
    ys = [point[1] for point in points] + [guide.value for guide in plot.guides]
    ys += [value for one in series for pair in one.ends if pair for value in pair]
    ys += [value for one in series for corner in one.band for value in corner[1:]]
    across = x.make_scale([point[0] for point in points], LEFT, RIGHT)
    up = y.make_scale(ys, BOTTOM, TOP)
    labels = [
        axis.label + (", log scale" if scale.is_log else "")
        for axis, scale in ((x, across), (y, up))
    ]
    said = plot.note.strip() or f"{y.label} against {x.label}, {len(points):,} points."
    drawn = [_draw_series(one, plot, across, up, len(points) <= TITLED_MAX) for one in series]
    if front := _find_stairs(plot):
        line = _draw_line(front, across, up, "dashed", plot.front)
        drawn.insert(0, element("g", line, class_=name_look(GREY)))
    beside = f"translate(13 {(TOP + BOTTOM) / 2}) rotate(-90)"
    parts = [
        element("title", write_text(plot.title), id=f"{plot.name}-title"),
        element("desc", write_text(said), id=f"{plot.name}-desc"),
        _draw_axes(plot, across, up),
        element("path", class_="frame", d=f"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}"),
        draw_text(labels[0], "middle", class_="label", x=(LEFT + RIGHT) / 2, y=HEIGHT - 8),
        draw_text(labels[1], "middle", class_="label", transform=beside),
        *reversed(drawn),
        *(_draw_guide(guide, up) for guide in plot.guides),
    ]
    frame = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img"}
    named = f"{plot.name}-title {plot.name}-desc"
    svg = element("svg", "\n".join(parts), **frame, aria_labelledby=named)
    return mark(f"{svg}\n{_draw_legend(plot)}")


def _draw_axes(plot: Plot, across: Scale, up: Scale) -> str:
    lines, texts = [], []
    for tick in across.make_ticks(plot.x.show, plot.x.values):
        lines.append(element("line", x1=tick.place, x2=tick.place, y1=TOP, y2=BOTTOM))
        texts.append(draw_text(tick.label, "middle", x=tick.place, y=BOTTOM + 16))
    for tick in up.make_ticks(plot.y.show, plot.y.values):
        lines.append(element("line", x1=LEFT, x2=RIGHT, y1=tick.place, y2=tick.place))
        texts.append(draw_text(tick.label, "end", x=LEFT - 6, y=tick.place + 4))
    grid = element("g", "".join(lines), class_="grid")
    return f"{grid}\n{element('g', ''.join(texts), class_='ticks')}"


def draw_text(text: str, anchor: str, **attributes: object) -> str:
    """Draw a text that begins, ends or has its middle at its place."""
    return element("text", write_text(text), text_anchor=anchor, **attributes)


def _draw_line(points: Iterable[Point], across: Scale, up: Scale, kind: str, title: str) -> str:
    places = " ".join(f"{across(a):g},{up(b):g}" for a, b in points)
    return element("polyline", titled(title), class_=kind, points=places)


def _draw_series(one: Series, plot: Plot, across: Scale, up: Scale, is_titled: bool) -> str:
    parts = []
    if one.band:
        corners = [(a, low) for a, low, _ in one.band] + [(a, b) for a, _, b in one.band[::-1]]
        places = " ".join(f"{across(a):g},{up(b):g}" for a, b in corners)
        parts.append(element("polygon", points=places))
    line: Sequence[Point] = pick_best(one.points) if one.is_best else one.points
    if one.is_best and line:
        parts.append(_draw_line(find_ideal(line), across, up, "dashed", ""))
    if one.line != "none" and len(line) > 1:
        parts.append(_draw_line(line, across, up, one.line, one.label))
    if one.mark == "cross_at_end" and one.points:
        a, b = one.points[-1]
        parts.append(_draw_mark("cross", 0, across(a), up(b), f"{one.label}: did not converge"))
    elif one.mark != "none":
        for place, (a, b) in enumerate(one.points):
            if pair := one.ends[place] if one.ends else None:
                at, low, high = across(a), up(pair[0]), up(pair[1])
                parts.append(element("line", class_="ends", x1=at, x2=at, y1=low, y2=high))
            title = f"{one.label}: {plot.x.show(a)}, {plot.y.show(b)}" if is_titled else ""
            key = one.keys[place] if one.keys else ""
            parts.append(_draw_mark(one.mark, one.colour, across(a), up(b), title, key))
    of = one.key or None
    return element("g", "".join(parts) or " ", class_=name_look(one.colour), data_of=of)


def _draw_mark(kind: Mark, colour: int, x: float, y: float, title: str, key: str = "") -> str:
    if kind == "cross":
        return element("path", titled(title), class_="cross", d=f"M{x - 6} {y}h12M{x} {y - 6}v12")
    place = f"translate({x} {y}) scale(.72)"
    shape = titled(title) + SHAPES[get_shape(colour)]
    return element("g", shape, class_="mark", data_of=key or None, transform=place)


def _draw_guide(guide: Guide, up: Scale) -> str:
    """Draw a guide with its label above the line, or below it near the upper edge."""
    y = up(guide.value)
    line = element("line", class_="guide", x1=LEFT, x2=RIGHT, y1=y, y2=y)
    label_y = y - 5 if y > TOP + 20 else y + 14
    return line + draw_text(guide.label, "start", class_="label over", x=LEFT + 5, y=label_y)


def _find_stairs(plot: Plot) -> list[Point]:
    """Find the corners of the line that joins the front; nothing without one."""
    points = [point for one in plot.series for point in one.points]
    front = find_front(points) if plot.front else []
    corners = front[:1]
    for before, after in itertools.pairwise(front):
        corners += [(after[0], before[1]), after]
    return corners if len(front) > 1 else []


def _draw_legend(plot: Plot) -> str:
    """Draw the legend as a list, nothing for one line."""
    known = {(s.colour, s.line, s.mark, s.legend): None for s in plot.series if s.points}
    if _find_stairs(plot):
        known[GREY, "dashed", "none", plot.front] = None
    lines = []
    for colour, line, kind, label in (one for one in known if one[-1]):
        parts = ""
        if line != "none":
            parts += element("polyline", class_=line, points="1,6 25,6")
        if kind == "dot":
            parts += _draw_mark("dot", colour, 13, 6, "")
        elif kind == "cross":
            parts += element("path", class_="cross", d="M7 6h12M13 0v12")
        sample = element("svg", parts, class_="sample", viewBox="0 0 26 12", aria_hidden="true")
        lines.append(element("li", sample + write_text(label), class_=name_look(colour)))
    return element("ul", "\n".join(lines), class_="legend") if len(lines) > 1 else ""
