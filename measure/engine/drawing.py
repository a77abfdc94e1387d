"""What all figures of measurements share: axes side by side, and a file that appears at once."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.rules.errors import UserError, cannot_write
from cepheid.rules.host import atomic_path
from cepheid.rules.installation import FIGURE_STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS, REPORTED = "C0", "C5"  # colours of the style
COLUMN_INCHES = 4.8


@contextmanager
def draw_figure(
    path: Path, columns: int, column_inches: float = COLUMN_INCHES
) -> Iterator[tuple["Figure", list[Any]]]:
    """Yield a figure with ``columns`` axes side by side, and write it to ``path`` afterwards.

    Raises UserError where the file cannot be written, ModuleNotFoundError without matplotlib.
    """
    from matplotlib.figure import Figure

    with use_style():
        figure = Figure(figsize=(column_inches * columns, 3.8), layout="constrained")
        axes = figure.subplots(1, columns, squeeze=False)[0]
        yield figure, list(axes)
        save_figure(figure, path)


def use_style() -> AbstractContextManager[None]:
    """Return a context in which figures look as all of ours do; they are saved in it too."""
    from matplotlib import rc_context

    return rc_context(fname=FIGURE_STYLE)


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG; the file appears when it is complete.

    Raises UserError where it cannot be written.
    """
    try:
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", metadata={"Software": None})
    except OSError as error:
        raise cannot_write(path, error) from error


def make_folder(folder: Path, option: str) -> None:
    """Make the folder that a command-line option names. Raises UserError where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{option} {folder}: cannot make this folder ({error.strerror})") from error
