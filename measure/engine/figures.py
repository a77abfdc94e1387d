"""Figures of studies: their colours, their size, and how one is written to a file."""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.rules.errors import cannot_write
from cepheid.rules.host import FIGURE_STYLE, atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, REPORTED = "C0", "C5"  # colours of the style
COLUMN_INCHES, INCHES = 4.8, 3.8
TITLE_CHARACTERS = 60  # of a line, for each column of a figure
LEGEND_TOP, LEGEND_COLUMNS = -0.16, 2  # in heights of the axes, below their labels


@contextmanager
def draw_figure(
    path: Path, columns: int, column_inches: float = COLUMN_INCHES, inches: float = INCHES
) -> Iterator[tuple["Figure", list[Any]]]:
    """Yield a figure with ``columns`` axes side by side, and write it to ``path`` afterwards.

    The file is a PNG and appears when it is complete. Raises UserError where it cannot be written,
    ModuleNotFoundError without matplotlib.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(fname=FIGURE_STYLE):
        figure = Figure(figsize=(column_inches * columns, inches), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False)[0]
        yield figure, list(axes)
        for each in axes:
            if each.get_legend():  # below: nothing that is drawn may lie behind it
                place = {"loc": "upper center", "bbox_to_anchor": (0.5, LEGEND_TOP)}
                each.legend(*each.get_legend_handles_labels(), ncols=LEGEND_COLUMNS, **place)
        try:
            with atomic_path(path) as temporary:
                figure.savefig(temporary, format="png", metadata={"Software": None})
        except OSError as error:
            raise cannot_write(path, error) from error


def write_title(figure: "Figure", title: str) -> None:
    """Write a title above all columns, in lines of their width."""
    figure.suptitle(textwrap.fill(title, TITLE_CHARACTERS * len(figure.axes)))


def find_bars(spreads: Sequence[tuple[float, float, float]]) -> list[list[float]]:
    """Return the lengths of error bars below and above, of middles with their two ends.

    A middle may lie outside of its ends: a ratio of medians outside the quartiles of the turns.
    """
    below = [max(0.0, middle - low) for middle, low, _ in spreads]
    return [below, [max(0.0, high - middle) for middle, _, high in spreads]]


def draw_shares(axes: Any, shares: Sequence[float], names: Sequence[str], colour: str) -> None:
    """Draw shares as bars in percent, the first one on top."""
    places = range(len(shares))
    axes.barh(places, [100 * share for share in shares], color=colour)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
