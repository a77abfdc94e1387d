"""Changes of colours against pixel by pixel computations of the standard library."""

import colorsys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor

from cepheid.reference.data.detection.colours import (
    CHANGES,
    Jitter,
    Strengths,
    change_colours,
    draw_jitter,
)

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
SSD = Strengths(0.125, 0.5, 0.5, 0.05)


@pytest.fixture
def images() -> Tensor:
    drawn = torch.randint(0, 256, (5, 6, 7, 3), generator=torch.Generator().manual_seed(2))
    drawn[0, 0] = 77  # grey has no hue
    drawn[0, 1, 0] = torch.tensor([255, 0, 0])
    levels: Tensor = drawn.to(torch.uint8)
    return levels


def change_slowly(image: np.ndarray, number: int, amount: float) -> np.ndarray:
    """One change of an image (y, x, 3) in [0, 1], pixel by pixel."""
    changed = np.empty_like(image)
    greys = image @ [0.299, 0.587, 0.114]
    for at in np.ndindex(image.shape[:2]):
        pixel = image[at]
        if number == BRIGHTNESS:
            changed[at] = pixel * amount
        elif number == CONTRAST:
            changed[at] = greys.mean() + amount * (pixel - greys.mean())
        elif number == SATURATION:
            changed[at] = greys[at] + amount * (pixel - greys[at])
        else:
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
            changed[at] = colorsys.hsv_to_rgb((hue + amount) % 1.0, saturation, value)
    clipped: np.ndarray = np.clip(changed, 0, 1)
    return clipped


@pytest.mark.parametrize(
    ("number", "amount"),
    [(0, 1.1), (0, 0.8), (1, 1.5), (1, 0.5), (2, 1.5), (2, 0.0), (3, 0.05), (3, -0.4), (3, 0.5)],
)
def test_one_change_is_what_the_standard_library_computes(
    images: Tensor, number: int, amount: float
) -> None:
    for image in images.float() / 255:
        expected = change_slowly(image.double().numpy(), number, amount)
        planes = image.permute(2, 0, 1).contiguous()
        CHANGES[number](planes, amount)
        np.testing.assert_allclose(planes.permute(1, 2, 0), expected, atol=2e-6)


def test_each_image_has_its_own_changes_in_its_own_order(images: Tensor) -> None:
    jitter = draw_jitter(SSD, 3, 0, len(images))
    assert len({tuple(order.tolist()) for order in jitter.order}) > 2
    changed = change_colours(images, jitter)
    for image, amounts, order, found in zip(
        images, jitter.amounts.tolist(), jitter.order.tolist(), changed, strict=True
    ):
        expected = image.double().numpy() / 255
        for number in order:
            expected = change_slowly(expected, number, amounts[number])
        assert np.abs(found.numpy() - expected * 255).max() < 0.51


def test_nothing_changes_without_strength(images: Tensor) -> None:
    jitter = draw_jitter(Strengths(), 3, 0, len(images))
    assert torch.equal(change_colours(images, jitter), images)


def test_amounts_are_uniform_in_their_range_and_orders_equally_likely() -> None:
    jitter = draw_jitter(SSD, 1, 0, 5000)
    for number, (strength, centre) in enumerate(zip(SSD.all, (1, 1, 1, 0), strict=True)):
        amounts = jitter.amounts[:, number]
        assert float(amounts.min()) == pytest.approx(centre - strength, abs=0.002)
        assert float(amounts.max()) == pytest.approx(centre + strength, abs=0.002)
        assert float(amounts.mean()) == pytest.approx(centre, abs=0.02)
    counts = np.unique(jitter.order.numpy(), axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert counts.min() > 150


def test_changes_depend_on_seed_and_position_alone() -> None:
    whole = draw_jitter(SSD, 1, 100, 400)
    part = draw_jitter(SSD, 1, 250, 50)
    for field in ("amounts", "order"):
        assert torch.equal(getattr(whole, field)[150:200], getattr(part, field))
    assert isinstance(part, Jitter)
    assert not torch.equal(part.amounts, draw_jitter(SSD, 2, 250, 50).amounts)
