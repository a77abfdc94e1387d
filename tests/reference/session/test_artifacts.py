"""What is kept beside the log of a run: report, pictures, power log; no harm without them."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from cepheid.compliance.read import powerlog
from cepheid.reference.data import galaxies
from cepheid.reference.galaxies import pictures
from cepheid.reference.galaxies.shapes import RADIUS_SQUARED
from cepheid.reference.machine.counters import Counter
from cepheid.reference.machine.energy import Meter, Sensors, gather
from cepheid.reference.machine.ranks import SingleProcess
from cepheid.reference.run import logfile
from cepheid.reference.run.config import configure
from cepheid.reference.run.progress import Progress, Stage
from cepheid.reference.run.report import Table
from cepheid.reference.session.artifacts import PowerLog, keep_pictures, keep_power_log, keep_report
from cepheid.reference.session.result_folder import ResultFolder
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests.reference.run.scripted import Recorder

# Reports ------------------------------------------------------------------------------------------


TABLE = Table(
    "Bias",
    (
        {"quantity": "m", "e1": -0.11239, "e1_error": 0.0075, "galaxies": 12},
        {"quantity": "c", "e1": 0.00321, "e1_error": 0.00067, "galaxies": 12},
        {"quantity": "nothing", "e1": math.nan, "e1_error": math.inf, "galaxies": 0},
    ),
    "a note",
)


class Scripted:
    """A task of which only the report and the pictures are asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def report(self, on_progress: Callable[[int, int], None]) -> Any:
        on_progress(1, 1)
        return self.pictures()

    def pictures(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


CONFIG = configure(definition.load("galaxy_shape", "mini"), seed=7)
NO_ENERGY = {"none": "no sensors"}


def keep(task: object, folder: Path, energy: Mapping[str, object] = NO_ENERGY) -> Recorder:
    recorder = Recorder()
    keep_report(task, CONFIG, ResultFolder(folder, folder), energy, recorder)
    return recorder


def draw(task: object, folder: Path) -> Recorder:
    recorder = Recorder()
    keep_pictures(task, CONFIG, ResultFolder(folder, folder), recorder)
    return recorder


@pytest.mark.parametrize(
    ("error", "stdout", "stderr"),
    [
        (UserError("no data there"), ": no data there; the run counts", ""),
        (ModuleNotFoundError("x", name="matplotlib"), "matplotlib is not installed", ""),
        (OSError(28, "No space left"), "No space left; the run counts", ""),
        (ZeroDivisionError("a bug"), "see above; the run counts", "Traceback"),
    ],
)
@pytest.mark.parametrize("write", [keep, draw])
def test_failure_is_reported_and_costs_nothing(
    write: Callable[[object, Path], Recorder], error: Exception, stdout: str, stderr: str,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert stdout in write(Scripted(error), tmp_path).text
    assert capsys.readouterr().err.startswith(stderr)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("write", [keep, draw])
def test_a_task_without_report_and_pictures_says_nothing(
    write: Callable[[object, Path], Recorder], tmp_path: Path
) -> None:
    assert write(object(), tmp_path).messages == []


def test_tables_go_to_a_file_and_one_line_and_energy_without_tables(tmp_path: Path) -> None:
    recorder = keep(Scripted([TABLE]), tmp_path)
    assert recorder.messages == [f"run 0: report: {tmp_path / 'report_0.json'}"]
    (kept,) = tmp_path.iterdir()  # no temporary file is left
    content = json.loads(kept.read_text())
    assert content["seed"] == 7
    assert content["energy"] == NO_ENERGY
    assert content["definition_digest"] == CONFIG.definition.digest
    (table,) = content["tables"]
    assert table["rows"][0] == dict(TABLE.rows[0])
    assert table["rows"][2]["e1"] is None
    assert table["rows"][2]["e1_error"] is None
    keep(object(), tmp_path, {"joules": 12.5})
    content = json.loads((tmp_path / "report_0.json").read_text())
    assert content["energy"] == {"joules": 12.5}
    assert content["tables"] == []


# Pictures -----------------------------------------------------------------------------------------


def test_pictures_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "pictures_0.png"
    assert str(path) in draw(Scripted(Figure()), tmp_path).text
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes()[12:20] == b"IHDR" + (768).to_bytes(4)  # 6.4 inches in our style


def test_several_figures_become_one_moving_picture(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    figures = [Figure(figsize=(1, 1), facecolor=colour) for colour in ("red", "green", "blue")]
    draw(Scripted(figures), tmp_path)
    colours = []
    with image.open(tmp_path / "pictures_0.png") as picture:
        assert picture.default_image  # for programs that know no moving pictures
        for number in range(picture.n_frames):
            picture.seek(number)
            colours.append(picture.convert("RGB").getpixel((50, 50)))
    red, green, blue = (255, 0, 0), (0, 128, 0), (0, 0, 255)
    assert colours == [blue, red, green, blue]


def draw_stamps() -> Any:
    """Return eight galaxies to evaluate on, as the data of a run has them."""
    parameters = galaxies.SkyParameters(samples=8)
    sky = SimpleNamespace(**galaxies.draw(parameters, range(8)))
    return SimpleNamespace(parameters=parameters, sky=sky, evaluation_rows=np.arange(8))


def test_regions_and_truth_of_each_galaxy_are_drawn_and_none_twice() -> None:
    scale = np.array([[0.1, 0.0], [0.05, 0.2]])

    def estimate(stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((len(stamps), 2)), np.stack([scale] * len(stamps))

    panels = pictures.draw_posteriors(draw_stamps(), estimate).axes[1::2]
    assert len(panels) == len(pictures.SIGNAL_TO_NOISE)
    for panel in panels:
        (truth,) = panel.get_lines()
        x, y = np.asarray(truth.get_xydata(), np.float64)[0].tolist()
        assert panel.get_xlim()[0] < x < panel.get_xlim()[1]
        assert panel.get_ylim()[0] < y < panel.get_ylim()[1]
        # Every point on an edge is r standard deviations from the mean: |L⁻¹ x| = r.
        for patch, name in zip(panel.patches, pictures.REGIONS.values(), strict=True):
            edge = np.linalg.solve(scale, np.asarray(patch.get_path().vertices)[:-1].T)
            assert np.allclose((edge**2).sum(0), RADIUS_SQUARED[name[0]])
    assert pictures.find_nearest(np.array([30.0, 29.0, 500.0]), (30, 30, 30)) == [0, 1, 2]


def test_the_weight_draws_of_a_bayesian_network_are_drawn() -> None:
    means = np.random.default_rng(0).normal(size=(5, len(pictures.SIGNAL_TO_NOISE), 2))

    def estimate(stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return means.mean(0), np.stack([np.eye(2)] * len(stamps))

    figure = pictures.draw_posteriors(draw_stamps(), estimate, lambda stamps: means)
    for column, panel in enumerate(figure.axes[1::2]):
        _, dots = panel.get_lines()
        assert np.array_equal(dots.get_xydata(), means[:, column])


# Power logs ---------------------------------------------------------------------------------------


def write_log(folder: Path, index: int, start_seconds: float, stop_seconds: float) -> None:
    """A log with the two records that matter here."""
    lines = [
        ":::MLLOG " + json.dumps({"key": key, "metadata": {"monotonic_ms": 1000 * seconds}})
        for key, seconds in (("run_start", start_seconds), ("run_stop", stop_seconds))
    ]
    logfile.make_partial_path(folder / f"result_{index}.txt").write_text("\n".join(lines))


def make_meter(watts: float) -> Meter:
    """A meter whose readings, one a second from 100 to 104 s, are those of a constant power."""
    meter = Meter(Sensors((Counter("package-0", lambda: 0.0),), "storage"))
    meter._times_seconds = [100.0, 101.0, 102.0, 103.0, 104.0]
    meter._values = [[watts * number] for number in range(5)]
    return meter


def keep_energy(meter: Meter, folder: Path, index: int) -> tuple[str, dict[str, object]]:
    """The messages, and the energy for the report."""
    recorder = Recorder()
    measured = gather(meter, SingleProcess("none"))
    used = keep_power_log(measured, ResultFolder(folder, folder), index, recorder)
    return recorder.text, used


def test_energy_is_shown_and_the_power_log_kept_unless_a_sensor_failed(tmp_path: Path) -> None:
    write_log(tmp_path, 0, 100.5, 102.5)
    text, used = keep_energy(make_meter(50), tmp_path, 0)
    assert "run 0: 100 J, 50 W" in text
    assert used["joules"] == pytest.approx(100)
    assert used["not_measured"] == "storage"
    log = powerlog.read(tmp_path / "power_0.csv")
    assert not log.problems
    assert log.energy_joules(100_500, 102_500) == pytest.approx(100)
    meter = make_meter(50)
    meter.failure = "OSError: gone"
    (tmp_path / "power_0.csv").unlink()
    text, used = keep_energy(meter, tmp_path, 0)
    assert "run 0: no energy: OSError: gone" in text
    assert "failed" in str(used["none"])
    assert not list(tmp_path.glob("power_*"))


def test_no_power_log_beside_runs_that_have_none(tmp_path: Path) -> None:
    (tmp_path / "result_0.txt").touch()
    write_log(tmp_path, 1, 100.5, 102.5)
    text, used = keep_energy(make_meter(50), tmp_path, 1)
    assert "no power log, because run 0 has none (rule T23)" in text
    assert used == {"none": "no power log, because run 0 has none"}  # S14: no joules without a log
    assert not list(tmp_path.glob("power_*"))


def test_the_power_log_is_there_before_the_data_are_digested(tmp_path: Path) -> None:
    """So a run that is killed once it counts has one; one that does not count leaves none."""
    write_log(tmp_path, 0, 100.5, 102.5)
    folder, seen = ResultFolder(tmp_path, tmp_path), []
    power = PowerLog(make_meter(50), SingleProcess("none"), folder, 0)
    power._meter._over.set()  # its readings are over
    tell = power.keep_before_digest(
        lambda progress: seen.append(folder.power_log(0).exists()), Recorder()
    )
    for stage in (Stage.TRAINING, Stage.VERIFYING):
        tell(Progress(stage, 1))
    assert seen == [False, True]
    assert power.used["joules"] == pytest.approx(100)
    power.discard()
    assert not folder.power_log(0).exists()
