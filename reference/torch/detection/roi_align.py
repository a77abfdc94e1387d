"""RoIAlign (He et al. 2017, arXiv:1703.06870, section 3): features of boxes, on a fixed grid.

The maps of all levels lie below each other on one sheet, so that one call samples every box at its
own level, with static shapes.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from cepheid.reference.torch.detection.default_boxes import compute_areas
from cepheid.reference.torch.devices.values import make_constant

SAMPLES = 2  # in each direction of a bin
LARGEST_PRODUCT = 1024  # places of a sheet up to which products of matrices are faster


def choose_levels(boxes: Tensor, unit: float, levels: int) -> Tensor:
    """Return the level of boxes (…, 4), 0 for those whose size is below 2 ``unit`` pixels.

    Twice the size is one level more. In the paper (Lin et al. 2017, arXiv:1612.03144, equation 1)
    the unit is 56 pixels.
    """
    sizes = compute_areas(boxes).sqrt()
    return (sizes / unit + 1e-6).log2().floor().clamp(0, levels - 1).long()


def align_boxes(
    maps: Sequence[Tensor],
    steps: Sequence[int],
    boxes: Tensor,
    bins: int,
    *,
    unit: float,
    offset: float = 0.5,
) -> Tensor:
    """Return the features of boxes, corners (n, r, 4) in pixels, as (n × r, channels, bins, bins).

    ``maps`` are (n, channels, y, x), ``steps`` pixels apart. Each bin is the mean of SAMPLES ×
    SAMPLES values, bilinear between the places of the map, whose centres are ``offset`` from their
    corner: 0.5 is exact, 0 is what the first publications had.
    """
    boxes = boxes.nan_to_num(0, 0, 0)  # of a training that diverged: its loss says so, no index
    levels = choose_levels(boxes, unit, len(maps))
    sheet, tops = join_maps(maps)
    across = make_constant(tuple(each.shape[3] for each in maps), boxes.device)
    down = make_constant(tuple(each.shape[2] for each in maps), boxes.device)
    sizes = torch.stack((across, down), dim=1)
    corners = boxes / make_constant(tuple(steps), boxes.device)[levels][..., None]
    extents = (corners[..., 2:] - corners[..., :2]).clamp_min(1.0 if offset == 0 else 0.0)
    count = bins * SAMPLES
    parts = (torch.arange(count, device=boxes.device, dtype=boxes.dtype) + 0.5) / count
    places = corners[..., :2, None] + extents[..., None] * parts - offset  # (n, r, 2, count)
    largest = (sizes[levels] - 1).to(boxes.dtype)[..., None]
    places = torch.minimum(places.clamp_min(0), largest)
    x, y = places.unbind(2)
    y = y + tops[levels].to(boxes.dtype)[..., None]
    sample = multiply_sheet if sheet[0, 0].numel() <= LARGEST_PRODUCT else sample_sheet
    return sample(sheet, x, y, bins)


def multiply_sheet(sheet: Tensor, x: Tensor, y: Tensor, bins: int) -> Tensor:
    """Return what ``sample_sheet`` returns, (n × r, channels, bins, bins), by products of matrices.

    Shapes are those of ``sample_sheet``: first rows are multiplied, then columns.
    The weights of a bin are a product of those of its rows and columns, because its places are.
    """
    (number, channels, height, width), boxes = sheet.shape, x.shape[1]
    rows = weigh_places(y, height, bins).to(sheet.dtype)
    columns = weigh_places(x, width, bins).to(sheet.dtype)
    lines = sheet.transpose(1, 2).reshape(number, height, channels * width)
    lines = torch.bmm(rows.view(number, boxes * bins, height), lines)
    lines = lines.view(number * boxes, bins * channels, width)
    values = torch.bmm(lines, columns.view(number * boxes, bins, width).transpose(1, 2))
    return values.view(number * boxes, bins, channels, bins).transpose(1, 2)


def weigh_places(places: Tensor, size: int, bins: int) -> Tensor:
    """Return the weights of ``size`` pixels in each bin, (…, bins, size), for places (…, count)."""
    distances = (places[..., None] - torch.arange(size, device=places.device)).abs()
    weights = (1 - distances).clamp_min(0)
    return weights.view(*weights.shape[:-2], bins, SAMPLES, size).mean(-2)


def sample_sheet(sheet: Tensor, x: Tensor, y: Tensor, bins: int) -> Tensor:
    """Return means of bilinear values at places (n, r, count) of a sheet (n, channels, height, w).

    The result is (n × r, channels, bins, bins).
    """
    (number, channels, height, width), (_, boxes, count) = sheet.shape, x.shape
    # Places of grid_sample go from -1 at the left edge of the first pixel to 1.
    across = (2 * x + 1) / width - 1
    down = (2 * y + 1) / height - 1
    grid = torch.stack(
        (
            across[:, :, None, :].expand(-1, -1, count, -1),
            down[:, :, :, None].expand(-1, -1, -1, count),
        ),
        dim=-1,
    ).view(number, boxes * count, count, 2)
    # In 16 bits places on a large sheet would be rounded to others, even to those of other levels.
    exact = torch.promote_types(sheet.dtype, torch.float32)
    values = functional.grid_sample(sheet.to(exact), grid.to(exact), align_corners=False)
    means = functional.avg_pool2d(values, SAMPLES).to(sheet.dtype)  # (n, channels, r × bins, bins)
    shaped = means.view(number, channels, boxes, bins, bins)
    return shaped.transpose(1, 2).reshape(number * boxes, channels, bins, bins)


def join_maps(maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return maps (n, channels, y, x) below each other, and the row at which each begins."""
    width = max(each.shape[3] for each in maps)
    sheet = torch.cat([functional.pad(each, (0, width - each.shape[3])) for each in maps], dim=2)
    tops = tuple(accumulate((each.shape[2] for each in maps[:-1]), initial=0))
    return sheet.contiguous(), make_constant(tops, sheet.device)
