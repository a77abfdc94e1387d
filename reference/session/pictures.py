"""Pictures for people after a run: a figure beside the run's log.

They are neither timed nor scored. As for reports, the first rank alone makes them after the log is
closed.
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
        """Return one figure, from the model as the run left it.

        Only the first rank calls it, so it must not wait for other ranks.
        """


def write(path: Path, figure: "Figure") -> None:
    """Write a figure as PNG, atomically. Raises OSError."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
