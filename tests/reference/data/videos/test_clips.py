"""Clips of videos: drawn ones, and those of KITTI and KTH as they are distributed."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from cepheid.reference.data import videos
from cepheid.reference.data.store import StoreError
from cepheid.reference.data.videos import VideoParameters, distributed, drawn

DRAWN = VideoParameters(train_samples=6, evaluation_samples=3)
READ = VideoParameters(train_samples=3, evaluation_samples=2, source="KITTI", frames=4)


def frames_of(folder: Path) -> np.ndarray:
    return videos.load(folder).frames


# Drawn clips --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "pixels"), [("sky", 16), ("moving_digits", 64)])
def test_a_clip_is_a_function_of_seed_and_number(
    tmp_path: Path, source: videos.Kind, pixels: int
) -> None:
    parameters = replace(DRAWN, source=source, pixels=pixels)
    videos.prepare(tmp_path / "clips", parameters, processes=1)
    stored = frames_of(tmp_path / "clips")
    assert stored.shape == (9, 12, pixels, pixels, 1)
    assert stored.dtype == np.uint8
    np.testing.assert_array_equal(videos.draw_clips(parameters, range(7, 9))["frames"], stored[7:9])
    other = videos.draw_clips(replace(parameters, seed=1), range(1))["frames"]
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
    monkeypatch.setattr(drawn, "FAINTEST", 0.0)
    monkeypatch.setattr(drawn, "BRIGHTEST", 0.0)
    monkeypatch.setattr(drawn, "ASTEROIDS", 1)
    axis = np.arange(40)
    monkeypatch.setattr(drawn, "SKY", 0.0)
    clip = drawn.draw_sky(np.random.default_rng(3), 12, 40)[..., 0].astype(float)
    total = clip.sum(axis=(1, 2))
    down, across = ((clip.sum(axis=kept) * axis).sum(axis=1) / total for kept in ((2,), (1,)))
    speeds = np.hypot(np.diff(down), np.diff(across))
    np.testing.assert_allclose(speeds, speeds.mean(), atol=0.02)
    assert drawn.SPEED_PIXELS[0] <= speeds.mean() <= drawn.SPEED_PIXELS[1]


def test_digits_bounce_inside_the_frame_and_keep_their_speed() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        places = drawn.bounce(random, 36, 36, 64)
        assert places.min() >= 0
        assert places.max() <= 36
        steps = np.hypot(*np.diff(places, axis=0).T)
        assert steps.max() <= 6 + 1.5  # places are whole pixels


def test_overlapping_digits_never_wrap_around() -> None:
    clip = drawn.draw_digits(np.random.default_rng(1), 12, 64)
    assert clip.max() == 255
    assert len(drawn.STROKES) == 10
    images = [drawn.draw_digit(np.random.default_rng(0), digit, 28) for digit in range(10)]
    assert all(image.max() == 255 for image in images)
    assert len({image.tobytes() for image in images}) == 10
    for image in images:  # ink stays inside the square
        assert not image[0].any()
        assert not image[-1].any()


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
    red = stored[:, :, 8, 8, 0]
    assert red.tolist() == [
        [0, 10, 20, 30], [40, 50, 60, 70], [1, 11, 21, 31], [1, 11, 21, 31], [41, 51, 61, 71]
    ]  # fmt: skip
    assert (stored[..., 2] == 255).all()


def test_a_missing_frame_or_drive_of_kitti_is_named(tmp_path: Path) -> None:
    root = tmp_path / "KITTI"
    write_kitti(root, {"training": [13], "testing": [4]})
    with pytest.raises(StoreError, match=r"image_02: 1 clips, expected 2; fix: extract all"):
        videos.prepare(tmp_path / "clips", READ, processes=1)
    (root / "training/image_02/0000/000002.png").unlink()
    with pytest.raises(StoreError, match=r"0000: frame 000002.png is missing, got 000003.png"):
        videos.prepare(tmp_path / "clips", READ, processes=1)


def cut_frame_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def enlarge_frame(path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs the extra imagenet")
    image.new("1", (5000, 5000)).save(path)


def link_frame_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere.png")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_frame_short, "not a whole PNG file"),
        (enlarge_frame, "it has 25,000,000 pixels or more, expected"),
        (link_frame_to_nothing, "cannot be read"),
    ],
)
def test_a_damaged_frame_of_kitti_is_named(
    damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    write_kitti(tmp_path / "KITTI", {"training": [13], "testing": [8]})
    damage(tmp_path / "KITTI/training/image_02/0000/000005.png")
    with pytest.raises(StoreError, match=f"000005.png: {message}"):
        videos.prepare(tmp_path / "clips", READ, processes=1)


# KTH ----------------------------------------------------------------------------------------------


def write_kth(root: Path, lengths: dict[int, int]) -> None:
    """Write a video of each action and person, by the number of frames; levels rise with time."""
    av = pytest.importorskip("av", reason="needs the extra video")
    for action in distributed.KTH_ACTIONS:
        (root / action).mkdir(parents=True)
        for person, length in lengths.items():
            path = root / action / f"person{person:02d}_{action}_d1_uncomp.avi"
            with av.open(str(path), "w") as video:
                stream = video.add_stream("mpeg4", rate=Fraction(25))
                stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
                for number in range(length):
                    level = np.full((120, 160, 3), 40 + 20 * number, np.uint8)
                    for packet in stream.encode(av.VideoFrame.from_ndarray(level)):
                        video.mux(packet)
                for packet in stream.encode():
                    video.mux(packet)
    (root / "00sequences.txt").write_text("not read\n")


def test_persons_of_kth_are_split_and_clips_are_grey(tmp_path: Path) -> None:
    write_kth(tmp_path / "KTH", {1: 9, 16: 3, 17: 4, 25: 5})
    parameters = replace(READ, source="KTH", train_samples=12, evaluation_samples=12)
    videos.prepare(tmp_path / "clips", parameters, processes=1)
    stored = frames_of(tmp_path / "clips")
    assert stored.shape == (24, 4, 16, 16, 1)
    levels = stored[:, :, 8, 8, 0].astype(int)
    first = 40 + 20 * np.arange(4)
    assert abs(levels[0] - first).max() <= 4  # the codec loses a little
    assert abs(levels[1] - first - 80).max() <= 4
    assert abs(levels[12:] - first).max() <= 4


def test_an_absent_action_and_a_damaged_video_of_kth_are_named(tmp_path: Path) -> None:
    write_kth(tmp_path / "KTH", {1: 4, 17: 4})
    parameters = replace(READ, source="KTH", train_samples=6, evaluation_samples=6)
    path = tmp_path / "KTH/jogging/person17_jogging_d1_uncomp.avi"
    path.write_bytes(b"RIFF")
    with pytest.raises(StoreError, match=r"person17_jogging_d1_uncomp.avi: not a whole video"):
        videos.prepare(tmp_path / "clips", parameters, processes=1)
    for video in (tmp_path / "KTH/running").iterdir():
        video.unlink()
    path.unlink()
    with pytest.raises(StoreError, match=r"running: no videos such as person01_running_d1"):
        videos.prepare(tmp_path / "clips", parameters, processes=1)


def test_a_video_of_kth_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_kth(tmp_path / "KTH", {1: 4, 17: 4})
    parameters = replace(READ, source="KTH", train_samples=6, evaluation_samples=6)
    monkeypatch.setattr(distributed, "VIDEO_PIXELS_MAX", 3 * 160 * 120)
    message = (
        r"person01_boxing_d1_uncomp.avi: it has 76,800 pixels or more, expected at most 57,600"
    )
    with pytest.raises(StoreError, match=message):
        videos.prepare(tmp_path / "clips", parameters, processes=1)
