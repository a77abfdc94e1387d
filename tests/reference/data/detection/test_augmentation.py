"""Parts of images and changes of colours against loops that follow their descriptions."""

import colorsys

import numpy as np
import pytest
import torch
from torch import Tensor

from cepheid.reference.data.detection import colours
from cepheid.reference.data.detection.crops import LEAST_OVERLAPS, WHOLE, cut_boxes, draw_parts
from cepheid.reference.data.random_streams import draw_rows

# Parts --------------------------------------------------------------------------------------------


def make_boxes(seed: int, count: int, most: int = 4) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    sides = random.uniform(0.05, 0.8, size=(count, most, 2))
    corners = random.uniform(0, 1 - sides)
    labels = random.integers(0, 4, size=(count, most))
    labels[:, 0] = 1
    boxes = np.concatenate([corners, corners + sides], axis=2) * (labels > 0)[..., None]
    return boxes.astype(np.float32), labels


def draw_slowly(
    boxes: np.ndarray, labels: np.ndarray, seed: int, position: int, most_tries: int
) -> tuple[float, ...]:
    """The part of one image, by the same random numbers."""
    for attempt in range(10_000):
        positions = range(position, position + 1)
        (numbers,) = draw_rows(seed, "part", positions, 1 + 4 * most_tries, attempt)
        mode = int(numbers[0] * 7)
        if mode == 0:
            return WHOLE
        for k in range(most_tries):
            a, b, c, d = numbers[1 + 4 * k : 5 + 4 * k]
            width, height = 0.3 + 0.7 * a, 0.3 + 0.7 * b
            left, top = (1 - width) * c, (1 - height) * d
            if not 0.5 <= width / height <= 2:
                continue
            overlaps, centres = [], []
            for box in boxes[labels > 0].astype(float):
                across = max(0.0, min(box[2], left + width) - max(box[0], left))
                down = max(0.0, min(box[3], top + height) - max(box[1], top))
                area = (box[2] - box[0]) * (box[3] - box[1])
                overlaps.append(across * down / (area + width * height - across * down))
                x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
                centres.append(left < x < left + width and top < y < top + height)
            if any(centres) and all(overlap > LEAST_OVERLAPS[mode] for overlap in overlaps):
                return (left, top, left + width, top + height)
    raise AssertionError("nothing was found")


@pytest.mark.parametrize(("seed", "most_tries"), [(0, 1), (1, 1), (2, 5)])
def test_parts_are_those_of_an_obvious_loop(seed: int, most_tries: int) -> None:
    boxes, labels = make_boxes(seed, 60)
    parts = draw_parts(boxes, labels, seed, 230, most_tries)
    expected = np.array(
        [draw_slowly(boxes[k], labels[k], seed, 230 + k, most_tries) for k in range(len(boxes))]
    )
    np.testing.assert_allclose(parts, expected)
    assert 10 < np.all(parts == WHOLE, axis=1).sum() < 55


def test_all_modes_occur_about_equally_often_where_all_fit() -> None:
    """One box that fills the image: the area of a part is then its overlap."""
    boxes = np.tile(np.array(WHOLE, np.float32), (1400, 1, 1))
    parts = draw_parts(boxes, np.ones((1400, 1), int), 1, 0, most_tries=100)
    areas = (parts[:, 2:] - parts[:, :2]).prod(axis=1)
    assert np.mean(areas == 1) == pytest.approx(1 / 7, abs=0.03)
    assert np.mean((areas > 0.9) & (areas < 1)) == pytest.approx(1 / 8, abs=0.04)
    assert areas.min() > 0.09


def test_boxes_are_cut_and_go_unless_the_image_stays_whole() -> None:
    boxes = np.array([[[0.4, 0.2, 0.8, 0.6], [0.0, 0.0, 0.4, 0.9], [0, 0, 0, 0]]], np.float32)
    labels = np.array([[3, 1, 0]])
    found, kept = cut_boxes(boxes, labels, np.array([[0.5, 0.0, 1.0, 0.5]]))
    np.testing.assert_array_equal(kept, [[3, 0, 0]])
    np.testing.assert_allclose(found, np.array([[[0, 0.4, 0.6, 1], [0] * 4, [0] * 4]]), atol=1e-6)
    assert found.dtype == np.float32
    # Of a whole image they stay, even beyond its edge; one without boxes stays whole.
    boxes = np.array([[[0.9, 0.5, 1.2, 0.7], [-0.3, 0.0, 0.1, 1.01]]], np.float32)
    found, labels = cut_boxes(boxes, np.array([[1, 2]]), np.array([WHOLE]))
    np.testing.assert_array_equal(found, boxes)
    np.testing.assert_array_equal(labels, [[1, 2]])
    parts = draw_parts(np.zeros((5, 3, 4), np.float32), np.zeros((5, 3), int), 1, 0)
    np.testing.assert_array_equal(parts, [WHOLE] * 5)


# Colours ------------------------------------------------------------------------------------------


BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
SSD = colours.Strengths(0.125, 0.5, 0.5, 0.05)


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
        colours.CHANGES[number](planes, amount)
        np.testing.assert_allclose(planes.permute(1, 2, 0), expected, atol=2e-6)


def test_each_image_has_its_own_changes_in_its_own_order_and_none_without_strength(
    images: Tensor,
) -> None:
    jitter = colours.draw_jitter(SSD, 3, 0, len(images))
    assert len({tuple(order.tolist()) for order in jitter.order}) > 2
    changed = colours.change_colours(images, jitter)
    for image, amounts, order, found in zip(
        images, jitter.amounts.tolist(), jitter.order.tolist(), changed, strict=True
    ):
        expected = image.double().numpy() / 255
        for number in order:
            expected = change_slowly(expected, number, amounts[number])
        assert np.abs(found.numpy() - expected * 255).max() < 0.51
    jitter = colours.draw_jitter(colours.Strengths(), 3, 0, len(images))
    assert torch.equal(colours.change_colours(images, jitter), images)


def test_changes_are_uniform_and_depend_on_seed_and_position_alone() -> None:
    jitter = colours.draw_jitter(SSD, 1, 0, 5000)
    for number, (strength, centre) in enumerate(zip(vars(SSD).values(), (1, 1, 1, 0), strict=True)):
        amounts = jitter.amounts[:, number]
        assert float(amounts.min()) == pytest.approx(centre - strength, abs=0.002)
        assert float(amounts.max()) == pytest.approx(centre + strength, abs=0.002)
        assert float(amounts.mean()) == pytest.approx(centre, abs=0.02)
    counts = np.unique(jitter.order.numpy(), axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert counts.min() > 150
    whole = colours.draw_jitter(SSD, 1, 100, 400)
    part = colours.draw_jitter(SSD, 1, 250, 50)
    for field in ("amounts", "order"):
        assert torch.equal(getattr(whole, field)[150:200], getattr(part, field))
    assert isinstance(part, colours.Jitter)
    assert not torch.equal(part.amounts, colours.draw_jitter(SSD, 2, 250, 50).amounts)
