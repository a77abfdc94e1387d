"""What a two-stage detector learns from: truth, matches, samples with enough positives; its masks.

All shapes are static and nothing waits for a value, so that steps can be compiled. What is sampled
is a function of the run's seed and of the sample's place in the stream of training samples, the
same for any number of ranks and pieces.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cepheid.reference.data.detection.average_precision import Mask
from cepheid.reference.torch.detection.default_boxes import compute_overlaps

PIXELS_AT_ONCE = 2**22  # of masks that are pasted together


@dataclass(frozen=True)
class Truth:
    """What n images show, each with room for m objects, and where they end.

    ``keys`` (n,) are places in the stream of training samples. ``extents`` (n, 2) are the width and
    height of the images in pixels; what is beyond only fills up. ``boxes`` are corners in pixels,
    (n, m, 4); ``labels`` (n, m) are 0 where there is none; ``masks`` (n, m, s, s) are those of the
    objects within their boxes, 0 or 1.
    """

    keys: Tensor
    extents: Tensor
    boxes: Tensor
    labels: Tensor
    masks: Tensor

    def pack(self) -> Tensor:
        """Return all as one tensor, float32 (n, 1 + m, 5 + s²)."""
        objects = torch.cat((self.boxes, self.labels[..., None], self.masks.flatten(2)), dim=2)
        facts = torch.cat((self.keys[:, None], self.extents), dim=1)
        row = functional.pad(facts, (0, objects.shape[2] - 3))
        return torch.cat((row[:, None].float(), objects.float()), dim=1)

    @classmethod
    def unpack(cls, targets: Tensor) -> Self:
        """Return what ``pack`` has packed."""
        facts, objects = targets[:, 0], targets[:, 1:]
        side = round((objects.shape[2] - 5) ** 0.5)
        masks = objects[:, :, 5:].unflatten(2, (side, side))
        boxes, labels = objects[:, :, :4], objects[:, :, 4].long()
        return cls(facts[:, 0].long(), facts[:, 1:3], boxes, labels, masks)


def take_rows(values: Tensor, places: Tensor) -> Tensor:
    """Return the rows at ``places``, (n, s), of values (n, k, c); below 0 stands for the first."""
    return values.gather(1, places.clamp_min(0)[..., None].expand(-1, -1, values.shape[2]))


def average(values: Tensor, is_counted: Tensor, is_used: Tensor | None = None) -> Tensor:
    """Return the sum of the used values, (n, s), of each row over the number of counted ones."""
    is_used = is_counted if is_used is None else is_used
    return values.where(is_used, 0.0).sum(1) / is_counted.sum(1).clamp_min(1)


IGNORED, NEGATIVE = -2, -1
MULTIPLIERS = (0x9E3779B1, 0x85EBCA6B, 0x7FEB352D, 0x846CA68B)
LOW_32_BITS = 0xFFFFFFFF


@dataclass(frozen=True)
class Sample:
    """The boxes that count of each image, by their ``places`` among all, (n, s).

    Where not ``is_valid``, (n, s), there was none left to choose. Positives come first.
    """

    places: Tensor
    is_valid: Tensor
    is_positive: Tensor


@torch.no_grad()
def match_boxes(
    boxes: Tensor,
    labels: Tensor,
    candidates: Tensor,
    *,
    least_positive: float,
    most_negative: float,
    has_claims: bool = False,
) -> Tensor:
    """Return the number of the true box that each candidate shall find, (n, k), or a mark.

    True boxes are corners (n, m, 4); those with the label 0, (n, m), are none. Candidates are
    corners (n, k, 4) or (k, 4). A candidate belongs to the true box that it overlaps most, if by
    ``least_positive`` or more; it is NEGATIVE if by less than ``most_negative``, and IGNORED
    between the two. If ``has_claims``, the candidates that overlap a true box most belong to
    theirs as well, however little that is.
    """
    overlaps = compute_overlaps(boxes, candidates).where((labels > 0)[:, :, None], -1.0)
    best, of_box = overlaps.max(dim=1)
    found = of_box.where(best >= least_positive, IGNORED).where(best >= most_negative, NEGATIVE)
    if has_claims:
        most = overlaps.amax(dim=2, keepdim=True)
        is_claimed = ((overlaps == most) & (most > 0)).any(dim=1)
        found = of_box.where(is_claimed, found)
    return found


@torch.no_grad()
def draw_sample(found: Tensor, numbers: Tensor, count: int, most_positives: int) -> Sample:
    """Draw ``count`` of k candidates of each image, of them ``most_positives`` at most.

    ``found``, (n, k), is what ``match_boxes`` returns. ``numbers``, (n, k), are random in [0, 1):
    the largest ones win.
    """
    is_positive = found >= 0
    most = min(most_positives, found.shape[1])
    best, places = numbers.where(is_positive, -1.0).topk(most, dim=1)
    is_chosen = torch.zeros_like(is_positive).scatter_(1, places, best >= 0)
    ranked = (numbers + 1).where(found == NEGATIVE, 0.0)
    ranked = (numbers + 2).where(is_chosen, ranked)
    score, places = ranked.topk(min(count, found.shape[1]), dim=1)
    # Not by the score: the largest number and 1 are 2 in float32.
    return Sample(places, score > 0, is_chosen.gather(1, places))


def draw_uniform(keys: Tensor, count: int, seed: int, purpose: int) -> Tensor:
    """Return ``count`` numbers in [0, 1) for each of ``keys``, int64 (n,), as float32 (n, count).

    They are a hash of seed, purpose, key and place, so that any device draws the same ones.
    """
    places = torch.arange(count, device=keys.device)
    start = (seed * MULTIPLIERS[2] + purpose * MULTIPLIERS[3]) & LOW_32_BITS
    mixed = _mix((keys * MULTIPLIERS[0] + start) & LOW_32_BITS)
    mixed = _mix((mixed[:, None] + places * MULTIPLIERS[1]) & LOW_32_BITS)
    return (mixed >> 8).float() / 2**24


def _mix(values: Tensor) -> Tensor:
    """Scramble 32-bit values in int64."""
    values = values ^ (values >> 16)
    values = (values * MULTIPLIERS[2]) & LOW_32_BITS
    values = values ^ (values >> 15)
    values = (values * MULTIPLIERS[3]) & LOW_32_BITS
    return values ^ (values >> 16)


# Masks ------------------------------------------------------------------------------------------


def crop_masks(masks: Tensor, boxes: Tensor, places: Tensor, size: int) -> Tensor:
    """Return masks within ``places`` on a grid of ``size`` × ``size``, 0 or 1, float32 (d, …).

    ``masks`` (d, s, s) are those of objects within their ``boxes``, corners (d, 4); ``places`` are
    corners, (d, 4). Each value is that at the centre of its part of the place.
    """
    parts = (torch.arange(size, device=boxes.device, dtype=boxes.dtype) + 0.5) / size
    points = places[:, :2, None] + (places[:, 2:] - places[:, :2])[..., None] * parts
    extents = (boxes[:, 2:] - boxes[:, :2]).clamp_min(torch.finfo(boxes.dtype).tiny)
    x, y = (2 * (points - boxes[:, :2, None]) / extents[..., None] - 1).unbind(1)
    return (sample_masks(masks, x, y) >= 0.5).float()


def paste_masks(masks: Tensor, boxes: Tensor, height: int, width: int) -> Tensor:
    """Return masks (d, s, s), of boxes (d, 4), as values of each pixel, (d, height, width).

    They are bilinear between the centres of the parts of the box, and fall to 0 outside.
    """
    extents = (boxes[:, 2:] - boxes[:, :2]).clamp_min(1e-6)
    x, y = (
        2
        * (torch.arange(count, device=boxes.device, dtype=boxes.dtype) + 0.5 - boxes[:, axis, None])
        / extents[:, axis, None]
        - 1
        for axis, count in ((0, width), (1, height))
    )
    return sample_masks(masks, x, y)


def sample_masks(masks: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return bilinear values of masks (d, s, s) on grids with columns x (d, w) and rows y (d, h).

    -1 and 1 are the edges of a mask; it is 0 outside.
    """
    grid = torch.stack(
        (x[:, None, :].expand(-1, y.shape[1], -1), y[:, :, None].expand(-1, -1, x.shape[1])), dim=-1
    )
    return functional.grid_sample(masks[:, None], grid, align_corners=False)[:, 0]


def encode_masks(boxes: Tensor, masks: Tensor, sizes: Tensor) -> list[Mask]:
    """Return COCO's codes of masks (d, s, s) in boxes, (d, 4) in shares of sizes, heights first."""
    from faster_coco_eval import mask  # slow to import

    codes: dict[int, Mask] = {}
    for height, width in sizes.unique(dim=0).tolist():
        alike = (sizes == torch.tensor([height, width])).all(1).nonzero()[:, 0]
        for some in alike.split(max(1, PIXELS_AT_ONCE // (height * width))):
            scaled = boxes[some] * torch.tensor([width, height, width, height])
            pasted = paste_masks(masks[some], scaled, height, width) >= 0.5
            bits = np.asfortranarray(pasted.permute(1, 2, 0).to(torch.uint8).numpy())
            codes |= zip(some.tolist(), mask.encode(bits), strict=True)
    return [codes[number] for number in range(len(boxes))]
