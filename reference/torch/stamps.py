"""What the galaxy benchmarks share on torch: stamps as tensors, Adam and its update, estimates."""

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from cepheid.reference.galaxies.stamps import (
    Estimate,
    Galaxies,
    Stamps,
    estimate_all,
    make_noise_arrays,
)
from cepheid.reference.torch.pieces import Pieces, cut
from cepheid.reference.torch.workload import Inference, Recipe, Seat, Update


def take(data: Stamps, samples: int, size: int) -> Pieces:
    """Return this rank's share of the batch after ``samples`` as tensors, in pieces of ``size``."""
    inputs, targets = data.read_batch(samples)
    return cut(torch.from_numpy(inputs), torch.from_numpy(targets), size)


class TorchStamps(Stamps):
    """Stamps and labels as tensors, for the trainer."""

    take = take

    def __init__(self, shape: Galaxies, seat: Seat) -> None:
        super().__init__(shape, seat.share, seat.load(), seat.source)


def make_noise(shape: Galaxies, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return noise in the shapes and types of stamps and labels; ``generator`` is unused."""
    stamps, labels = make_noise_arrays(shape, count)
    return torch.from_numpy(stamps), torch.from_numpy(labels)


def make_adam(shape: Galaxies, *parts: Iterable[nn.Parameter]) -> Recipe:
    """Return Adam with a group for each part of the parameters."""
    groups = [{"params": list(part)} for part in parts]
    return Recipe(torch.optim.Adam, groups, {"fused": True, **shape.values.torch_options})


def prepare_update(shape: Galaxies, update: Update, prefixes: Sequence[str] = ("opt_",)) -> None:
    """Clip the gradients of each part and set its rate; their names begin with the prefixes."""
    for prefix, group in zip(prefixes, update.groups, strict=True):
        update.clip([group], shape.values.clip_norm(prefix))
        group["lr"] = shape.values.learning_rate(prefix, update.samples)


def make_estimate(inference: Inference) -> Estimate:
    """Return what estimates means (n, d) and scale matrices (n, d, d) of any number of stamps."""

    def estimate_batch(stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, scale = inference(stamps)
        return mean.cpu().numpy(), scale.cpu().numpy()

    return partial(estimate_all, estimate_batch, inference.size)
