"""Pictures for people after a run: a figure beside the run's log.

They are neither timed nor scored. As for reports, the first rank alone makes them after the log is
closed.
"""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from cepheid.rules.host import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 100
FRAME_MILLISECONDS = 400


@runtime_checkable
class Pictures(Protocol):
    """A task whose model has something to show."""

    def pictures(self) -> "Figure | Sequence[Figure]":
        """Return a figure, from the model as the run left it, or those of a moving picture.

        Only the first rank calls it, so it must not wait for other ranks.
        """


def write(path: Path, figure: "Figure | Sequence[Figure]") -> None:
    """Write a figure as PNG, atomically; several ones as an animated PNG. Raises OSError.

    Programs that do not know animated PNG files show the last one of them.
    """
    with atomic_path(path) as temporary:
        if isinstance(figure, Sequence):
            _write_moving(temporary, figure)
        else:
            figure.savefig(temporary, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})


def _write_moving(path: Path, figures: "Sequence[Figure]") -> None:
    from PIL import Image  # which matplotlib needs anyway

    images = []
    for figure in figures:
        drawn = BytesIO()
        figure.savefig(drawn, format="png", dpi=DOTS_PER_INCH)
        images.append(Image.open(drawn).convert("P", palette=Image.Palette.ADAPTIVE))
    images[-1].save(
        path,
        format="PNG",
        save_all=True,
        append_images=images,
        default_image=True,
        duration=FRAME_MILLISECONDS,
        loop=0,
    )
