"""Pictures after a run: kept as a whole, and no harm where they cannot be made."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="needs the extra site")
pytest.importorskip("galsim", reason="needs the extra galsim")

from matplotlib.figure import Figure

from cepheid.reference.data import galaxies
from cepheid.reference.galaxies import pictures
from cepheid.reference.galaxies.coverage import RADIUS_SQUARED
from cepheid.reference.run.config import configure
from cepheid.reference.session.artifacts import keep_pictures
from cepheid.reference.session.result_folder import ResultFolder
from cepheid.rules import definition
from tests.reference.run.recorder import Recorder

CONFIG = configure(definition.load("galaxy_shape", "mini"), seed=7)


class Showing:
    """A task of which only the pictures are asked."""

    def __init__(self, answer: Figure | list[Figure] | Exception) -> None:
        self.answer = answer

    def pictures(self) -> Figure | list[Figure]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def keep(task: object, folder: Path) -> str:
    recorder = Recorder()
    keep_pictures(task, CONFIG, ResultFolder(folder, folder), recorder)
    return recorder.text


def test_pictures_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "pictures_0.png"
    assert str(path) in keep(Showing(Figure()), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes()[12:20] == b"IHDR" + (768).to_bytes(4)  # 6.4 inches in our style


def test_several_figures_become_one_moving_picture(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    figures = [Figure(figsize=(1, 1), facecolor=colour) for colour in ("red", "green", "blue")]
    keep(Showing(figures), tmp_path)
    colours = []
    with image.open(tmp_path / "pictures_0.png") as picture:
        assert picture.default_image  # for programs that know no moving pictures
        for number in range(picture.n_frames):
            picture.seek(number)
            colours.append(picture.convert("RGB").getpixel((50, 50)))
    red, green, blue = (255, 0, 0), (0, 128, 0), (0, 0, 255)
    assert colours == [blue, red, green, blue]


@pytest.mark.parametrize(
    ("error", "stdout", "stderr"),
    [
        (ModuleNotFoundError("x", name="matplotlib"), "matplotlib is not installed", ""),
        (OSError(28, "No space left"), "No space left; the run counts", ""),
        (ZeroDivisionError("a bug"), "see above; the run counts", "Traceback"),
    ],
)
def test_failure_is_reported_and_costs_nothing(
    error: Exception, stdout: str, stderr: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stdout in keep(Showing(error), tmp_path)
    assert capsys.readouterr().err.startswith(stderr)
    assert not list(tmp_path.iterdir())


def test_a_task_without_pictures_says_nothing(tmp_path: Path) -> None:
    assert keep(object(), tmp_path) == ""


def test_regions_and_truth_of_each_galaxy_are_drawn() -> None:
    parameters = galaxies.SkyParameters(samples=8)
    drawn: Any = galaxies.draw(parameters, range(8))
    manifest: Any = None
    sky = galaxies.Galaxies(**drawn, manifest=manifest)
    scale = np.array([[0.1, 0.0], [0.05, 0.2]])

    def estimate(stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((len(stamps), 2)), np.stack([scale] * len(stamps))

    figure = pictures.draw_posteriors(parameters, sky, np.arange(8), estimate)
    panels = figure.axes[1::2]
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


def test_no_galaxy_is_shown_twice() -> None:
    assert pictures.find_nearest(np.array([30.0, 29.0, 500.0]), (30, 30, 30)) == [0, 1, 2]


def test_the_weight_draws_of_a_bayesian_network_are_drawn() -> None:
    parameters = galaxies.SkyParameters(samples=8)
    drawn: Any = galaxies.draw(parameters, range(8))
    manifest: Any = None
    sky = galaxies.Galaxies(**drawn, manifest=manifest)
    means = np.random.default_rng(0).normal(size=(5, len(pictures.SIGNAL_TO_NOISE), 2))

    def estimate(stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return means.mean(0), np.stack([np.eye(2)] * len(stamps))

    figure = pictures.draw_posteriors(parameters, sky, np.arange(8), estimate, lambda stamps: means)
    for column, panel in enumerate(figure.axes[1::2]):
        _, dots = panel.get_lines()
        assert np.array_equal(dots.get_xydata(), means[:, column])
