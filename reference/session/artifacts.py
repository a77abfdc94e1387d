"""What a run leaves beside its log: weights, power log, report, pictures.

Weights and power log are written before the log is closed, so that a run that was killed and counts
has them; nothing here can cost such a run. Weights alone must not be lost in silence: where they
cannot be written, the session ends. Reports and pictures are neither
timed nor scored; the first rank alone makes them.
"""

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from cepheid.reference.machine.energy import Measured, Meter, gather
from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.run import checkpoint, logfile, report
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.progress import OnProgress, Progress, Stage
from cepheid.reference.session.observer import Observer
from cepheid.reference.session.result_folder import ResultFolder
from cepheid.rules import extras
from cepheid.rules.errors import UserError
from cepheid.rules.host import FIGURE_STYLE, atomic_path, atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image as ImageFile

FRAME_MILLISECONDS = 400
PICTURE_BYTES_MAX = 40_000
SMALLER = ((1.0, 256), (1.0, 64), (0.7, 64))  # shares of the pixels, and colours


class FinalWeights:
    """The weights with which a training run ends, in the folder of its first rank."""

    def __init__(
        self, task: Any, config: RunConfig, folder: ResultFolder | None, suffix: str
    ) -> None:
        self._task, self._config, self._folder = task, config, folder
        self._path = folder.weights(config.index, suffix) if folder else None
        self._problem: UserError | None = None
        self._is_kept = False

    def keep_before_digest(self, show: OnProgress) -> OnProgress:
        """Return a callback that calls ``show``, and writes the weights once the run has stopped.

        A run counts after its data are digested. So a run that was killed and counts has weights.
        """

        def on_progress(progress: Progress) -> None:
            is_training = self._config.definition.kind == "train"  # else no weights change
            if progress.stage is Stage.VERIFYING and is_training:
                self._keep()
            show(progress)

        return on_progress

    def _keep(self) -> None:
        state = self._task.state()  # on every rank: they may share the optimizer's state
        if self._path is None:
            return
        try:
            checkpoint.save(self._path, state)
            self._is_kept = True
        except UserError as error:
            self._problem = error

    def discard(self) -> None:
        """Delete the weights of a run that does not count."""
        if self._path and self._is_kept:
            self._path.unlink(missing_ok=True)

    def raise_if_lost(self) -> None:
        """Raise UserError where the weights could not be written."""
        if self._problem and self._folder:
            index = self._config.index
            counts = f"run {index} counts ({self._folder.log(index)}), but its weights are lost"
            raise UserError(f"{counts}: {self._problem}") from self._problem


class PowerLog:
    """The power log of a run (rule T23), ``power_<k>.csv``, in the folder of its first rank.

    ``used`` is the energy of the run for its report, once that is known.
    """

    def __init__(self, meter: Meter, ranks: Ranks, folder: ResultFolder | None, index: int) -> None:
        self._meter, self._ranks, self._folder, self._index = meter, ranks, folder, index
        self.used: Mapping[str, Any] = {}

    def keep_before_digest(self, show: OnProgress, observer: Observer) -> OnProgress:
        """Return a callback that calls ``show``, and writes the log once the run has stopped."""

        def on_progress(progress: Progress) -> None:
            if progress.stage is Stage.VERIFYING:
                self._meter.finish()
                measured = gather(self._meter, self._ranks)  # on every rank
                if self._folder:
                    self.used = keep_power_log(measured, self._folder, self._index, observer)
            show(progress)

        return on_progress

    def discard(self) -> None:
        """Delete the power log of a run that does not count."""
        if self._folder and self.used:
            self._folder.power_log(self._index).unlink(missing_ok=True)


def keep_power_log(
    measured: Measured, folder: ResultFolder, index: int, observer: Observer
) -> dict[str, Any]:
    """Write ``power_<k>.csv`` (rule T23), and return the energy of the run for its report.

    A result has a power log for each of its runs or for none. So none is written where another run
    was made without sensors, and a report without one names no energy (S14).
    """
    start_ms, stop_ms = (_read_clock_ms(folder, index, key) for key in ("run_start", "run_stop"))
    used = measured.report(start_ms, stop_ms)
    if not measured.traces:
        if measured.failure:
            observer.tell(f"run {index}: no energy: {measured.failure}")
        return used
    observer.tell(f"run {index}: {used['joules']:,.0f} J, {used['mean_watts']:.0f} W")
    others = [run for run in folder.present() if run != index]
    without = [run for run in others if not folder.power_log(run).exists()]
    if without:
        observer.tell(f"run {index}: no power log, because run {without[0]} has none (rule T23)")
        return {"none": f"no power log, because run {without[0]} has none"}
    with _keep_going("power log", index, observer):
        atomic_write(folder.power_log(index), measured.format_power_log())
        return used
    return {"none": "the power log could not be written"}


def keep_report(
    task: Any,
    config: RunConfig,
    folder: ResultFolder,
    used: Mapping[str, Any],
    observer: Observer,
) -> None:
    """Make the report of a task that has one, and write it with the energy ``used``."""
    has_tables = isinstance(task, report.Reports)
    if not has_tables and "joules" not in used:
        return
    with _keep_going("report", config.index, observer):
        tables: tuple[report.Table, ...] = ()
        if has_tables:
            with observer.count("report (not timed, not scored)") as on_count:
                tables = tuple(task.report(on_count))
        path = folder.report(config.index)
        report.write(path, config, tables, used)
        observer.tell(f"run {config.index}: report: {path}")


def keep_pictures(task: Any, config: RunConfig, folder: ResultFolder, observer: Observer) -> None:
    """Make and write the pictures of a task that has some, once for all runs of a result."""
    if not isinstance(task, Pictures) or next(folder.path.glob("pictures_*.png"), None):
        return
    with _keep_going("pictures", config.index, observer):
        path = folder.pictures(config.index)
        write_pictures(path, task)
        observer.tell(f"run {config.index}: pictures: {path}")


@contextmanager
def _keep_going(what: str, index: int, observer: Observer) -> Iterator[None]:
    """Report an error of the block and go on, because it must not cost the runs to come."""
    try:
        yield
    except ModuleNotFoundError as error:
        why = extras.explain_missing(str(error.name))
        observer.tell(f"run {index}: no {what}: {why}; the run counts")
    except (UserError, OSError) as error:
        observer.tell(f"run {index}: no {what}: {error}; the run counts all the same")
    except Exception:  # a bug of ours, for which a report needs the traceback
        traceback.print_exc()
        observer.tell(f"run {index}: no {what}, see above; the run counts all the same")


def _read_clock_ms(folder: ResultFolder, index: int, key: str) -> float:
    """Read the monotonic clock at the last record with this key, in ms; the log is still open."""
    record = logfile.find_last_record(logfile.make_partial_path(folder.log(index)), key)
    assert record is not None
    return float(record["metadata"]["monotonic_ms"])


@runtime_checkable
class Pictures(Protocol):
    """A task whose model has something to show."""

    def pictures(self) -> "Figure | Sequence[Figure]":
        """Return a figure, from the model as the run left it, or those of a moving picture.

        Only the first rank calls it, so it must not wait for other ranks.
        """


def write_pictures(path: Path, task: Pictures) -> None:
    """Draw the pictures of a task and write them as a small PNG, atomically. Raises OSError.

    Several figures become an animated PNG, of which programs that do not know these show the last
    one. They lose colours, then pixels, then motion, to have ``PICTURE_BYTES_MAX``: noise can stay
    larger.
    """
    from matplotlib import rc_context
    from PIL import Image  # which matplotlib needs anyway

    images = []
    with rc_context(fname=FIGURE_STYLE):
        drawn = task.pictures()
        for figure in drawn if isinstance(drawn, Sequence) else [drawn]:
            content = BytesIO()
            figure.savefig(content, format="png")
            images.append(Image.open(content).convert("RGB"))
    small = _shrink(images)
    if len(small) > PICTURE_BYTES_MAX and len(images) > 1:
        small = _shrink(images[-1:])
    with atomic_path(path) as temporary:
        temporary.write_bytes(small)


def _shrink(images: "Sequence[ImageFile]") -> bytes:
    """Return images as a PNG with fewer colours, then pixels, until it is small enough."""
    from PIL import Image

    written: list[bytes] = []
    for share, colours in SMALLER:
        size = [round(share * pixels) for pixels in images[0].size]
        shown = [
            image.resize(size, Image.Resampling.BOX).quantize(
                colours, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
            )
            for image in images
        ]
        moving = {"save_all": True, "append_images": shown, "default_image": True, "loop": 0,
                  "duration": FRAME_MILLISECONDS} if len(shown) > 1 else {}  # fmt: skip
        content = BytesIO()
        shown[-1].save(content, format="PNG", optimize=True, **moving)
        written.append(content.getvalue())
        if len(written[-1]) <= PICTURE_BYTES_MAX:
            break
    return min(written, key=len)
