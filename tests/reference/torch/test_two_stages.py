"""What a two-stage detector needs, against versions that go box by box and pixel by pixel."""

import math

import pytest
import torch
from faster_coco_eval import mask
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cepheid.reference.torch.detection import roi_align, sampling
from cepheid.reference.torch.detection.default_boxes import (
    AnchorLevel,
    compute_overlaps,
    make_anchors,
    to_corners,
)
from cepheid.reference.torch.detection.roi_align import align_boxes, choose_levels
from cepheid.reference.torch.detection.sampling import (
    IGNORED,
    NEGATIVE,
    crop_masks,
    draw_sample,
    draw_uniform,
    encode_masks,
    match_boxes,
    paste_masks,
)
from cepheid.reference.torch.detection.suppression import BLOCK, suppress_in_turn
from tests.reference.torch.test_detection import draw_boxes as draw_unit_boxes
from tests.reference.torch.test_detection import make_generator, suppress_slowly

seeds = st.integers(0, 2**31)


def draw_boxes(*shape: int, seed: int, side: float = 64.0) -> Tensor:
    """Corners of boxes with an area inside of a square, float64 (*shape, 4)."""
    return side * draw_unit_boxes(*shape, seed=seed)


# Anchors -----------------------------------------------------------------------------------------


def test_the_published_anchors_of_an_image_of_800_by_1344() -> None:
    levels = [
        AnchorLevel(-(-800 // step), -(-1344 // step), step, 8.0 * step, (0.5, 1.0, 2.0))
        for step in (4, 8, 16, 32, 64)
    ]
    anchors = make_anchors(levels)
    assert len(anchors) == sum(level.count for level in levels) == 268_569
    corners = to_corners(anchors.double())
    sizes = (corners[:, 2:] - corners[:, :2]).prod(1).sqrt()
    assert sorted({round(size) for size in sizes.tolist()}) == [32, 64, 128, 256, 512]
    # Those of a place differ in shape alone, then the next column comes.
    assert torch.allclose(anchors[:4, 0], torch.tensor([2.0, 2.0, 2.0, 6.0]))
    assert torch.allclose(anchors[:3, 3] / anchors[:3, 2], torch.tensor([0.5, 1.0, 2.0]))


# Suppression and selection -----------------------------------------------------------------------


@given(
    seed=seeds, count=st.sampled_from([1, 5, BLOCK, BLOCK + 9]), largest=st.sampled_from([0.1, 0.5])
)
@settings(max_examples=12)
def test_suppression_is_that_of_a_loop(seed: int, count: int, largest: float) -> None:
    boxes = draw_boxes(3, count, seed=seed)
    is_valid = torch.rand(3, count, generator=make_generator(seed + 1)) < 0.8
    stays = suppress_in_turn(boxes, is_valid, largest)
    for row in range(3):
        expected = suppress_slowly(boxes[row, is_valid[row]].tolist(), largest)
        assert stays[row, is_valid[row]].tolist() == expected
        assert not stays[row, ~is_valid[row]].any()


# Matching and samples ----------------------------------------------------------------------------


@given(seed=seeds, has_claims=st.booleans())
@settings(max_examples=20)
def test_matching_is_that_of_a_loop(seed: int, has_claims: bool) -> None:
    boxes, candidates = draw_boxes(2, 4, seed=seed), draw_boxes(12, seed=seed + 1)
    candidates = torch.cat((candidates, candidates[:2]))  # two that are equally good
    labels = torch.tensor([[1, 3, 0, 2], [0, 0, 0, 0]])
    found = match_boxes(
        boxes, labels, candidates, least_positive=0.4, most_negative=0.2, has_claims=has_claims
    )
    for image in range(2):
        real = [k for k in range(4) if labels[image, k] > 0]
        overlaps = [
            [compute_overlaps(boxes[image, k, None], each[None]).item() for each in candidates]
            for k in range(4)
        ]
        for at in range(len(candidates)):
            best = max(real, key=lambda k: overlaps[k][at]) if real else None
            value = overlaps[best][at] if best is not None else -1.0
            claims = [k for k in real if overlaps[k][at] == max(overlaps[k]) > 0]
            expected = NEGATIVE if value < 0.2 else IGNORED if value < 0.4 else best
            if has_claims and claims:
                expected = best
            assert found[image, at] == expected


@given(seed=seeds, count=st.sampled_from([4, 8, 40]))
@settings(max_examples=20)
def test_a_sample_has_the_largest_numbers_and_enough_negatives(seed: int, count: int) -> None:
    found = torch.randint(-2, 2, (3, 30), generator=make_generator(seed))
    numbers = torch.rand(3, 30, generator=make_generator(seed + 1))
    sample = draw_sample(found, numbers, count, count // 4)
    for image in range(3):
        ranked = sorted(range(30), key=lambda k: -numbers[image, k].item())
        positives = [k for k in ranked if found[image, k] >= 0][: count // 4]
        negatives = [k for k in ranked if found[image, k] == NEGATIVE]
        expected = (positives + negatives)[: min(count, 30)]
        is_valid = sample.is_valid[image]
        assert sample.places[image][is_valid].tolist() == expected
        assert is_valid.sum() == len(expected)
        assert sample.is_positive[image].sum() == len(positives)


def test_a_negative_with_the_largest_number_stays_negative() -> None:
    sample = draw_sample(torch.tensor([[NEGATIVE, 0]]), torch.tensor([[1 - 2**-24, 0.5]]), 2, 1)
    chosen = dict(zip(sample.places[0].tolist(), sample.is_positive[0].tolist(), strict=True))
    assert chosen == {0: False, 1: True}


def test_places_on_a_large_sheet_are_exact_in_16_bits() -> None:
    """The coarsest level begins low on the sheet; its first row must not read the level above."""
    maps = [
        torch.full((1, 1, side, side), float(level), dtype=torch.bfloat16)
        for level, side in enumerate((336, 168, 84, 42))
    ]
    boxes = torch.tensor([[[0.0, 2.0, 800.0, 600.0]]])
    found = align_boxes(maps, (4, 8, 16, 32), boxes, 7, unit=56)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found.float(), torch.full_like(found.float(), 3.0))


def test_random_numbers_belong_to_their_key_seed_and_purpose() -> None:
    keys = torch.tensor([5, 6, 5])
    drawn = draw_uniform(keys, 4000, seed=3, purpose=0)
    assert torch.equal(drawn[0], drawn[2])
    assert torch.equal(draw_uniform(keys[1:2], 4000, 3, 0)[0], drawn[1])
    others = [draw_uniform(keys, 4000, 4, 0)[0], draw_uniform(keys, 4000, 3, 1)[0], drawn[1]]
    for other in others:
        pair = torch.stack((drawn[0], other))
        assert abs(torch.corrcoef(pair)[0, 1].item()) < 0.06
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = torch.histc(drawn[0], 10, 0, 1)
    assert ((counts - 400).abs() < 100).all()
    neighbours = torch.stack((drawn[0, :-1], drawn[0, 1:]))
    assert abs(torch.corrcoef(neighbours)[0, 1].item()) < 0.06


# RoIAlign ----------------------------------------------------------------------------------------


def align_slowly(features: Tensor, step: int, box: list[float], bins: int, offset: float) -> Tensor:
    """The features of one box, (channels, bins, bins), value by value, as Detectron does it."""
    _, height, width = features.shape
    left, top, right, bottom = (value / step for value in box)
    wide, high = right - left, bottom - top
    if offset == 0:
        wide, high = max(wide, 1.0), max(high, 1.0)
    result: Tensor = torch.zeros(len(features), bins, bins, dtype=features.dtype)
    for row in range(bins):
        for column in range(bins):
            for part_y in (0.25, 0.75):
                for part_x in (0.25, 0.75):
                    y = top + (row + part_y) * high / bins - offset
                    x = left + (column + part_x) * wide / bins - offset
                    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
                    y0, x0 = int(y), int(x)
                    for at_y, at_x in ((y0, x0), (y0, x0 + 1), (y0 + 1, x0), (y0 + 1, x0 + 1)):
                        weight = (1 - abs(y - at_y)) * (1 - abs(x - at_x))
                        if weight:
                            result[:, row, column] += weight / 4 * features[:, at_y, at_x]
    return result


@given(seed=seeds, bins=st.sampled_from([1, 3]), offset=st.sampled_from([0.0, 0.5]))
@settings(max_examples=10)
@pytest.mark.parametrize("largest_product", [0, 1024])
def test_features_of_boxes_are_those_of_a_loop(
    largest_product: int, seed: int, bins: int, offset: float
) -> None:
    generator = make_generator(seed)
    maps = [
        torch.randn(2, 3, size, size + 2, generator=generator, dtype=torch.float64)
        for size in (16, 8)
    ]
    boxes = draw_boxes(2, 4, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roi_align, "LARGEST_PRODUCT", largest_product)
        found = align_boxes(maps, [4, 8], boxes, bins, unit=10, offset=offset)
    levels = choose_levels(boxes, 10, 2)
    for image in range(2):
        for place, box in enumerate(boxes[image].tolist()):
            area = (box[2] - box[0]) * (box[3] - box[1])
            level = min(1, max(0, math.floor(math.log2(math.sqrt(area) / 10 + 1e-6))))
            assert levels[image, place] == level
            expected = align_slowly(maps[level][image], (4, 8)[level], box, bins, offset)
            assert torch.allclose(found[4 * image + place], expected)


@pytest.mark.parametrize("largest_product", [0, 1024])
def test_gradients_of_features_are_exact(
    largest_product: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roi_align, "LARGEST_PRODUCT", largest_product)
    maps = [torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    boxes = draw_boxes(1, 3, seed=5, side=16)
    torch.autograd.gradcheck(lambda *maps: align_boxes(maps, [4, 8], boxes, 2, unit=4), maps)


# Masks -------------------------------------------------------------------------------------------


def test_a_mask_that_is_cropped_to_its_box_and_pasted_is_itself() -> None:
    whole = torch.zeros(1, 16, 16)
    whole[0, 3:9, 2:12] = 1
    whole[0, 3:5, 2:6] = 0
    box = torch.tensor([[2.0, 3.0, 12.0, 9.0]])
    everything = torch.tensor([[0.0, 0.0, 16.0, 16.0]])
    inside = crop_masks(whole, everything, box, 60)
    assert torch.equal((paste_masks(inside, box, 16, 16) >= 0.5).float(), whole)


def test_masks_of_images_of_several_sizes_are_encoded_as_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where not all of a size are pasted together."""
    masks, boxes = torch.rand(7, 4, 4), draw_unit_boxes(7, seed=3).float()
    sizes = torch.tensor([[8, 12], [16, 16], [8, 12], [12, 8], [16, 16], [8, 12], [8, 12]])
    for at_once in (1, 200, 2**22):
        monkeypatch.setattr(sampling, "PIXELS_AT_ONCE", at_once)
        codes = encode_masks(boxes, masks, sizes)
        for code, box, drawn, size in zip(codes, boxes, masks, sizes.tolist(), strict=True):
            pasted = paste_masks(drawn[None], box[None] * torch.tensor([*size[::-1]] * 2), *size)
            assert torch.equal(torch.from_numpy(mask.decode(code)), (pasted[0] >= 0.5).byte())
    assert encode_masks(boxes[:0], masks[:0], sizes[:0]) == []


@pytest.mark.parametrize("largest_product", [0, 1024])
def test_boxes_of_a_training_that_diverged_have_features(
    largest_product: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roi_align, "LARGEST_PRODUCT", largest_product)
    maps = [torch.ones(1, 2, 4, 4), torch.full((1, 2, 2, 2), math.nan)]
    boxes = torch.tensor([[[math.nan] * 4, [0, 0, math.inf, 3]]])
    assert align_boxes(maps, [4, 8], boxes, 2, unit=4).shape == (2, 2, 2, 2)
