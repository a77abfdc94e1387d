"""Pictures for people after a run: a figure beside the run's log.

They are neither timed nor scored. As for reports, the first rank alone makes them after the log is
closed.
"""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from cepheid.rules.host import atomic_path
from cepheid.rules.installation import FIGURE_STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FRAME_MILLISECONDS = 400


@runtime_checkable
class Pictures(Protocol):
    """A task whose model has something to show."""

    def pictures(self) -> "Figure | Sequence[Figure]":
        """Return a figure, from the model as the run left it, or those of a moving picture.

        Only the first rank calls it, so it must not wait for other ranks.
        """


def write(path: Path, task: Pictures) -> None:
    """Draw the pictures of a task and write them as PNG, atomically. Raises OSError.

    Several figures become an animated PNG. Programs that do not know these show the last one.
    """
    from matplotlib import rc_context

    with rc_context(fname=FIGURE_STYLE):
        figure = task.pictures()
        with atomic_path(path) as temporary:
            if isinstance(figure, Sequence):
                _write_moving(temporary, figure)
            else:
                figure.savefig(temporary, format="png", metadata={"Software": None})


def _write_moving(path: Path, figures: "Sequence[Figure]") -> None:
    from PIL import Image  # which matplotlib needs anyway

    images = []
    for figure in figures:
        drawn = BytesIO()
        figure.savefig(drawn, format="png")
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
