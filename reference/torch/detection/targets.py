"""What images show, as one tensor of a batch, and what losses of its objects need."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional


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
