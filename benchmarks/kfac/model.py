"""The network of resnet50 (ResNet-D at full scale, as published), its inputs and its weights."""

import torch
from torch import Tensor, nn

from benchmarks.resnet50.model import ResNet, is_exempt

__all__ = ["ResNet", "mix_with_previous", "normalize_weights"]

MIXED_AT_ONCE = 256  # images, so that a large batch has no second copy in float32


def mix_with_previous(
    batch: tuple[Tensor, Tensor], before: tuple[Tensor, Tensor] | None, share: float
) -> tuple[Tensor, Tensor]:
    """Mix ``share`` of the images and labels of ``batch`` with the batch of the step before.

    ``before`` is that batch as it was trained on (Osawa et al. 2019, arXiv:1811.12019, section 6.1:
    "running mixup"). It is changed in place and returned: images, float32 (n, height, width, 3),
    and labels, float32 (n, classes). The images of ``batch`` may have any type.
    """
    images, labels = batch
    if before is None:
        return images.float(), labels
    mixed, mixed_labels = before
    for old, new in zip(mixed.split(MIXED_AT_ONCE), images.split(MIXED_AT_ONCE), strict=True):
        old.lerp_(new.float(), share)
    return mixed, mixed_labels.lerp_(labels, share)


@torch.no_grad()
def normalize_weights(model: nn.Module) -> None:
    """Rescale the weights of each convolution and linear layer to the norm √(2 · outputs).

    Source: Osawa et al. 2020, arXiv:2002.06015, as chainerkfac implements it.
    """
    weights: list[Tensor] = [p for p in model.parameters() if not is_exempt(p)]
    norms = torch.stack(list(torch._foreach_norm(weights)))
    wanted = torch.tensor([(2.0 * len(weight)) ** 0.5 for weight in weights], device=norms.device)
    for weight, factor in zip(weights, (wanted / (norms + 1e-9)).unbind(), strict=True):
        weight.mul_(factor)
