"""Clips of videos: drawn ones, and those of KITTI as it is distributed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cepheid.reference.data import videos
from cepheid.reference.data.store import StoreError
from cepheid.reference.data.videos import VideoParameters, drawn

DRAWN = VideoParameters(train_samples=6, evaluation_samples=3)
READ = VideoParameters(train_samples=3, evaluation_samples=2, source="KITTI", frames=4)


def frames_of(folder: Path) -> np.ndarray:
    return videos.load(folder).frames


# Drawn clips --------------------------------------------------------------------------------------


def test_a_clip_is_a_function_of_seed_and_number(tmp_path: Path) -> None:
    videos.prepare(tmp_path / "clips", DRAWN, processes=1)
    stored = frames_of(tmp_path / "clips")
    assert stored.shape == (9, 12, 16, 16, 1)
    assert stored.dtype == np.uint8
    np.testing.assert_array_equal(videos.draw_clips(DRAWN, range(7, 9))["frames"], stored[7:9])
    other = videos.draw_clips(replace(DRAWN, seed=1), range(1))["frames"]
    assert not np.array_equal(other[0], stored[0])
    assert not np.array_equal(stored[0], stored[1])


def test_the_cepheid_brightens_fast_and_fades_slowly() -> None:
    light = drawn.pulsate(np.linspace(0, 2, 201))
    assert light.min() == pytest.approx(drawn.FAINTEST)
    assert light.max() == pytest.approx(drawn.BRIGHTEST)
    np.testing.assert_allclose(light[:100], light[100:200])
    assert np.mean(np.diff(light[:101]) > 0) == pytest.approx(drawn.RISE)


def test_asteroids_move_along_straight_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the star, and where nothing leaves the frame, the centre of light moves evenly."""
    for name, value in {"FAINTEST": 0.0, "BRIGHTEST": 0.0, "ASTEROIDS": 1, "SKY": 0.0}.items():
        monkeypatch.setattr(drawn, name, value)
    axis = np.arange(40)
    clip = drawn.draw_sky(np.random.default_rng(3), 12, 40)[..., 0].astype(float)
    total = clip.sum(axis=(1, 2))
    down, across = ((clip.sum(axis=kept) * axis).sum(axis=1) / total for kept in ((2,), (1,)))
    speeds = np.hypot(np.diff(down), np.diff(across))
    np.testing.assert_allclose(speeds, speeds.mean(), atol=0.02)
    assert drawn.SPEED_PIXELS[0] <= speeds.mean() <= drawn.SPEED_PIXELS[1]


# KITTI --------------------------------------------------------------------------------------------


def write_kitti(root: Path, drives: dict[str, list[int]]) -> None:
    """Write ``root`` as extracted: the lengths of drives by part; a frame's level is its number."""
    image = pytest.importorskip("PIL.Image", reason="needs the extra imagenet")
    for part, lengths in drives.items():
        for drive, length in enumerate(lengths):
            folder = root / part / "image_02" / f"{drive:04d}"
            folder.mkdir(parents=True)
            for number in range(length):
                level = 10 * number + drive
                image.new("RGB", (62, 19), (level, 0, 255)).save(folder / f"{number:06d}.png")
    (root / "training" / "calib").mkdir()  # other archives are extracted there too


def test_clips_of_kitti_are_consecutive_frames_of_a_drive(tmp_path: Path) -> None:
    write_kitti(tmp_path / "KITTI", {"training": [9, 5], "testing": [3, 11]})
    videos.prepare(tmp_path / "clips", READ, processes=1)
    stored = frames_of(tmp_path / "clips")
    assert stored.shape == (5, 4, 16, 16, 3)
    assert stored[:, :, 8, 8, 0].tolist() == [
        [0, 10, 20, 30], [40, 50, 60, 70], [1, 11, 21, 31], [1, 11, 21, 31], [41, 51, 61, 71]
    ]  # fmt: skip
    assert (stored[..., 2] == 255).all()


def test_a_missing_frame_or_drive_of_kitti_is_named(tmp_path: Path) -> None:
    root = tmp_path / "KITTI"
    write_kitti(root, {"training": [13], "testing": [4]})
    assert_refused(tmp_path, r"image_02: 1 clips, expected 2; fix: extract all")
    (root / "training/image_02/0000/000002.png").unlink()
    assert_refused(tmp_path, r"0000: frame 000002.png is missing, got 000003.png")


def assert_refused(root: Path, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        videos.prepare(root / "clips", READ, processes=1)


def enlarge_frame(path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs the extra imagenet")
    image.new("1", (5000, 5000)).save(path)


def link_frame_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere.png")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:60]), "not a whole PNG file"),
        (enlarge_frame, "it has 25,000,000 pixels, expected"),
        (link_frame_to_nothing, "cannot be read"),
    ],
)
def test_a_damaged_frame_of_kitti_is_named(
    damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    write_kitti(tmp_path / "KITTI", {"training": [13], "testing": [8]})
    damage(tmp_path / "KITTI/training/image_02/0000/000005.png")
    assert_refused(tmp_path, f"000005.png: {message}")
