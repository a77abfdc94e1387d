"""Broken variants of galaxy_vae: each must miss the targets within the full budget.

They are mistakes and tricks that a quality target must detect.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from cepheid.benchmarks.galaxy_vae.framework_free import split_input
from cepheid.benchmarks.galaxy_vae.task import WORKLOAD, compare_with, draw_latents, prepare_update
from cepheid.reference.galaxies.stamps import Galaxies
from cepheid.reference.torch import broken
from cepheid.reference.torch.workload import Network, Update, Workload


def compare_with_others(
    shape: Galaxies, network: Network, images: Tensor, normal: Tensor
) -> Tensor:
    """Return the mean loss, a scalar, where each target is another galaxy of the batch."""
    observed, target = split_input(shape, images)
    return compare_with(shape, network, (observed, target.roll(1, 0)), normal)


def compare_with_one_band(
    shape: Galaxies, network: Network, images: Tensor, normal: Tensor
) -> Tensor:
    """Return the mean loss, a scalar, where all bands shall give r: galaxies without colours."""
    observed, target = split_input(shape, images)
    r = shape.bands.index("r")
    grey = target[:, r : r + 1].expand(target.shape)
    return compare_with(shape, network, (observed, grey), normal)


def compare_blindly(shape: Galaxies, network: Network, images: Tensor, normal: Tensor) -> Tensor:
    """Return the mean loss, a scalar, of a decoder that sees no latents (posterior collapse)."""

    def draw_nothing(mean: Tensor, scale: Tensor, normal: Tensor) -> Tensor:
        return draw_latents(mean, scale, normal) * 0

    return compare_with(shape, network, split_input(shape, images), normal, draw_nothing)


def update_without_flow(shape: Galaxies, update: Update) -> None:
    """Prepare an update of the autoencoder only: new galaxies are decoded from N(0, 1)."""
    _, flow = update.groups
    for parameter in flow["params"]:
        parameter.grad = torch.zeros_like(parameter)
    prepare_update(shape, update)


VARIANTS: Mapping[str, Workload[Galaxies]] = {
    "shuffled_targets": WORKLOAD.vary(compute_loss=compare_with_others),
    "frozen": broken.freeze(WORKLOAD),
    "untrained_flow": WORKLOAD.vary(prepare_update=update_without_flow),
    "blind_decoder": WORKLOAD.vary(compute_loss=compare_blindly),
    "one_band": WORKLOAD.vary(compute_loss=compare_with_one_band),
}
