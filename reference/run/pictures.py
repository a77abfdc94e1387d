"""Pictures that people look at after a run: a figure beside the run's log.

Neither timed nor scored, made when the log is closed, on the first rank alone, as reports are.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rules.host import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 100


@runtime_checkable
class Pictures(Protocol):
    """A task whose model has something to show."""

    def pictures(self) -> "Figure":
        """One figure, from the model as the run left it. On several ranks only the first one is
        asked, so it must not wait for the others."""


def write(path: Path, figure: "Figure") -> None:
    """Write a figure as PNG; appears in one step. Raises OSError."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
