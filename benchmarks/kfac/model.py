"""The network of resnet50 (ResNet-D at full scale, as published), its inputs and its weights."""

import math
import shutil
import tempfile
from collections.abc import Sequence

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from cepheid.benchmarks.resnet50.model import IMAGE_MEAN, is_exempt
from cepheid.reference.torch.devices.values import make_constant
from cepheid.rules.errors import UserError

MIXED_AT_ONCE = 256  # images, so that a large batch has no second copy in float32


class RunningMixup:
    """Mix each batch with that of the step before, as it was trained on.

    Source: Osawa et al. 2019, arXiv:1811.12019, section 6.1, "running mixup". ``batch`` is the last
    one, of ``size`` samples: images, float32 (size, height, width, 3), and labels, float32 (size,
    classes); None before the first step. If it comes in pieces it is kept on the CPU, and where it
    is large beside the memory that is free, in a file (``allocate``).
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.batch: tuple[Tensor, Tensor] | None = None
        self._begun_at = -1  # the samples of the step whose batch is mixed with nothing

    def resume(self, images: Tensor, labels: Tensor) -> None:
        """Go on from copies of a ``batch``."""
        self.batch = images.clone(), labels.clone()
        self._begun_at = -1

    def mix(
        self, piece: tuple[Tensor, Tensor], samples: int, first: int, share: float
    ) -> tuple[Tensor, Tensor]:
        """Mix ``share`` of a piece with those samples of the batch before, from ``first`` on.

        ``samples`` are those trained before this step. ``piece`` holds images of any type, (n,
        height, width, 3), and labels, (n, classes). The result is float32, in the same shapes and
        on the same device; it may be what is kept, so it must not be changed.
        """
        home = piece[0].device if len(piece[0]) == self.size else torch.device("cpu")
        if self.batch is None:
            images, labels = (allocate((self.size, *new.shape[1:]), home) for new in piece)
            self.batch, self._begun_at = (images, labels), samples
        elif self.batch[0].device != home:  # a batch to go on from
            self.batch = self.batch[0].to(home), self.batch[1].to(home)
        if samples == self._begun_at:
            share = 1.0
        images, labels = (
            _mix_in_place(kept[first : first + len(new)], new, share)
            for kept, new in zip(self.batch, piece, strict=True)
        )
        return images, labels


def _mix_in_place(kept: Tensor, new: Tensor, share: float) -> Tensor:
    """Mix ``share`` of ``new`` into ``kept``, (n, …) both, and return the result beside ``new``."""
    mixed = kept.to(new.device)
    for old, part in zip(mixed.split(MIXED_AT_ONCE), new.split(MIXED_AT_ONCE), strict=True):
        old.lerp_(part.float(), share)
    if mixed is not kept:
        kept.copy_(mixed)
    return mixed


@torch.no_grad()
def normalize_weights(model: nn.Module) -> None:
    """Rescale the weights of each convolution and linear layer to the norm √(2 · outputs).

    Source: Osawa et al. 2020, arXiv:2002.06015, as chainerkfac implements it.
    """
    weights: list[Tensor] = [p for p in model.parameters() if not is_exempt(p)]
    norms = torch.stack(list(torch._foreach_norm(weights)))
    wanted = make_constant(tuple((2.0 * len(weight)) ** 0.5 for weight in weights), norms.device)
    for weight, factor in zip(weights, (wanted / (norms + 1e-9)).unbind(), strict=True):
        weight.mul_(factor)


IN_MEMORY_MAX = 0.5  # of what is free; the rest is for what a step computes


def allocate(shape: Sequence[int], device: torch.device) -> Tensor:
    """Return zeros of ``shape``, (n, …), float32, on ``device``.

    On the CPU they lie in a file without a name, in the folder for temporary files (``TMPDIR``),
    where they would take more than half of the memory that is free. Raises UserError where that
    folder has too little space.
    """
    wanted = 4 * math.prod(shape)
    if device.type != "cpu" or wanted <= IN_MEMORY_MAX * psutil.virtual_memory().available:
        return torch.zeros(shape, device=device)
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise UserError(
            f"{folder}: has {free / 2**30:.1f} GiB free, but {wanted / 2**30:.1f} GiB that do not "
            "fit into memory must lie there; fix: set TMPDIR to a folder on a larger disk"
        )
    with tempfile.NamedTemporaryFile(prefix="cepheid-") as file:  # its pages outlive its name
        return torch.from_file(file.name, shared=True, size=math.prod(shape)).view(*shape)


MEAN_COLOUR = tuple(round(255 * share) for share in IMAGE_MEAN)
AREA = (0.02, 0.25)  # share of the picture, drawn evenly
ASPECT = 0.3  # height by width lies between this and its inverse, evenly in the logarithm


def erase_rectangles(
    images: Tensor, probability: float, noise: np.random.Generator, first: int, of: int
) -> None:
    """Fill a rectangle of each picture, with ``probability``, with the mean colour of ImageNet.

    It is filled in place. ``images`` are uint8 (n, height, width, 3), numbers ``first`` and
    following of a batch of ``of`` pictures: a picture loses the same rectangle on any number of
    ranks. Source: Zhong et al. 2017, arXiv:1708.04896; the colour is this suite's choice.
    """
    count, height, width, _ = images.shape
    chance, area, slant, top, left = noise.random((5, of))[:, first : first + count]
    area = (AREA[0] + area * (AREA[1] - AREA[0])) * height * width
    aspect = np.exp(math.log(ASPECT) * (1 - 2 * slant))
    rows = np.minimum(np.sqrt(area * aspect).round(), height).astype(int)
    columns = np.minimum(np.sqrt(area / aspect).round(), width).astype(int)
    top = np.floor(top * (height - rows + 1)).astype(int)
    left = np.floor(left * (width - columns + 1)).astype(int)
    mean = make_constant(MEAN_COLOUR, images.device, images.dtype)
    for each in np.flatnonzero(chance < probability):
        across = slice(left[each], left[each] + columns[each])
        images[each, top[each] : top[each] + rows[each], across] = mean
