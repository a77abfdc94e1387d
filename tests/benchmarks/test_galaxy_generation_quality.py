"""The quality of generated images tells galaxies from tricks, and real galaxies pass."""

from types import MappingProxyType

import numpy as np
import pytest
import torch
from torch import Tensor

from cepheid.benchmarks.galaxy_generation import memorisation, quality
from cepheid.measure.studies.shallow import copied
from cepheid.reference.run.generation import Times
from cepheid.rules import definition

BANDS, PIXELS = "gr", 16
MODEL = MappingProxyType({"mean_maxima": (5.0, 5.0)})
DATA = MappingProxyType({"bands": BANDS, "pixel_scale_arcsec": 0.2})


def galaxies(count: int, seed: int) -> Tensor:
    """Gaussian blobs of random flux, colour, size and shape: (count, bands, pixels, pixels)."""
    random = torch.Generator().manual_seed(seed)
    flux, colour, size, stretch, tilt = torch.rand(5, count, 1, 1, 1, generator=random)
    axis = torch.arange(PIXELS) - (PIXELS - 1) / 2
    y, x = axis[:, None], axis[None, :]
    wide, narrow = 2 + size + stretch, 2 + size
    along, across = x * tilt.cos() + y * tilt.sin(), y * tilt.cos() - x * tilt.sin()
    profile = torch.exp(-0.5 * ((along / wide) ** 2 + (across / narrow) ** 2))
    bands = torch.stack([torch.ones(count), 1 + colour.flatten()], dim=1)[..., None, None]
    images: Tensor = 10 ** (1 + flux) * bands * profile
    return images


HELD_OUT, TRAINING, NEW = galaxies(300, 1), galaxies(500, 2), galaxies(400, 3)


def compute_quality(images: Tensor) -> dict[str, float]:
    measured = quality.measure(images.numpy(), MODEL, DATA)
    return quality.compute_metrics(measured, HELD_OUT.numpy(), TRAINING.numpy(), MODEL, DATA)


def test_real_galaxies_pass_and_repetitions_and_a_few_copies_are_found() -> None:
    found = compute_quality(NEW)
    assert found["generated_distance"] < 0.2
    assert found["distinct_share"] > 0.95
    assert found["new_share"] > 0.95
    assert compute_quality(NEW[:1].expand_as(NEW))["distinct_share"] == 0
    twice = NEW[:200].repeat(2, 1, 1, 1)[torch.randperm(400)]
    assert compute_quality(twice)["distinct_share"] < 0.6
    mixed = torch.cat([NEW[:150], alter(copied.shift)[:150]])
    assert compute_quality(mixed)["copied_excess"] > 0


@pytest.mark.parametrize("orientation", range(8))
def test_training_images_are_not_new_however_they_are_turned(orientation: int) -> None:
    replayed = torch.rot90(TRAINING, orientation % 4, (2, 3))
    if orientation >= 4:
        replayed = replayed.flip(3)
    assert compute_quality(replayed)["new_share"] == 0


def alter(change: copied.Alter) -> Tensor:
    wide = np.pad(TRAINING.numpy(), ((0, 0), (0, 0), (4, 4), (4, 4)))
    return torch.from_numpy(change(wide, np.random.default_rng(4)))[:, :, 4:-4, 4:-4]


@pytest.mark.parametrize("change", [copied.shift, copied.rescale, copied.blend])
def test_altered_training_images_are_copies(change: copied.Alter) -> None:
    assert compute_quality(alter(change))["copied_excess"] > 0


@pytest.mark.parametrize("seed", range(3, 7))
def test_new_galaxies_are_no_copies(seed: int) -> None:
    assert compute_quality(galaxies(300, seed))["copied_excess"] <= 0


@pytest.mark.parametrize("scale", ["full", "mini"])
def test_the_definition_has_the_usual_shares_of_the_code(scale: str) -> None:
    known = definition.load("galaxy_generation", scale).relations.excesses["copied_excess"]
    assert known == {f"near_{name}_share": share for name, share in memorisation.USUAL.items()}


@pytest.mark.parametrize("way", memorisation.USUAL)
def test_descriptions_leave_alone_what_they_should(way: str) -> None:
    wide = np.pad(galaxies(40, 8).numpy(), ((0, 0), (0, 0), (8, 8), (8, 8)))
    turned = 3 * np.rot90(np.roll(wide, (2, -1), (2, 3)), 1, (2, 3))
    if way != "look":
        turned = turned * np.array([0.7, 1.4])[None, :, None, None]
    first, second = (
        memorisation.split(memorisation.describe(images, BANDS), BANDS)[way]
        for images in (wide, turned)
    )
    np.testing.assert_allclose(first, second, atol=0.02)


def test_no_light_is_described_by_finite_numbers() -> None:
    for images in (
        np.zeros((2, 2, 16, 16)),
        np.full((2, 2, 16, 16), np.nan),
        np.zeros((0, 2, 16, 16)),
    ):
        assert np.isfinite(memorisation.describe(images, BANDS)).all()


def test_noise_has_another_distribution_and_nan_is_never_as_far() -> None:
    assert compute_quality(torch.rand_like(NEW))["generated_distance"] > 1
    assert compute_quality(torch.full_like(NEW, torch.nan))["distinct_share"] == 0


def test_the_speed_table_extrapolates_to_cosmodc2() -> None:
    times = [Times(1, (0.001, 0.003), (0.001, 0.001)), Times(100, (0.05,), (0.05,))]
    table = quality.make_speed_table(times, "mini")
    assert table.rows[1]["images_per_second"] == pytest.approx(1000)
    assert "26.2 days" in table.note  # 2.26e9 / 1000 / 86,400
    assert "17.7 days" in table.note
    assert "Not comparable" in table.note
    assert "Not comparable" not in quality.make_speed_table(times, "full").note
