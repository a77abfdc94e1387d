"""Broken variants of galaxy_shape: each must miss the targets within the full budget.

They are mistakes and tricks that a quality target must detect.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from cepheid.benchmarks.galaxy_shape.model import negative_log_likelihood
from cepheid.benchmarks.galaxy_shape.task import WORKLOAD, predict
from cepheid.reference.galaxies.stamps import Galaxies
from cepheid.reference.torch import broken
from cepheid.reference.torch.workload import Network, Workload


def predict_blindly(shape: Galaxies, network: Network, stamps: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and scale matrices of the symmetric part of stamps (n, bands, y, x).

    It is averaged over quarter turns: size and flux stay, the spin-2 signal vanishes.
    """
    return predict(shape, network, average_quarter_turns(stamps.float()))


def average_quarter_turns(stamps: Tensor) -> Tensor:
    """Return the mean of each stamp over its quarter turns, (batch, bands, pixels, pixels)."""
    turns = [torch.rot90(stamps, turn, (2, 3)) for turn in range(4)]
    return torch.stack(turns).mean(0)


def predict_one_covariance(
    shape: Galaxies, network: Network, stamps: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the network's means (n, d) and a constant scale matrix, (n, d, d).

    It is that of the target RMSE, so that the means may be right but the uncertainties are not.
    """
    mean, scale = predict(shape, network, stamps)
    target = next(t.target for t in shape.definition.quality if t.metric == "e_rmse")
    identity = torch.eye(scale.shape[1], device=scale.device)
    return mean, (target * identity).expand(scale.shape)


def compute_blind_loss(shape: Galaxies, network: Network, stamps: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of ``predict_blindly``, a scalar."""
    return negative_log_likelihood(*predict_blindly(shape, network, stamps), labels).mean()


def compute_loss_of_means(
    shape: Galaxies, network: Network, stamps: Tensor, labels: Tensor
) -> Tensor:
    """Return the mean loss of ``predict_one_covariance``, a scalar."""
    return negative_log_likelihood(*predict_one_covariance(shape, network, stamps), labels).mean()


VARIANTS: Mapping[str, Workload[Galaxies]] = {
    "shuffled_labels": broken.shuffle_labels(WORKLOAD),
    "frozen": broken.freeze(WORKLOAD),
    "blind_to_orientation": WORKLOAD.vary(predict=predict_blindly, compute_loss=compute_blind_loss),
    "fixed_covariance": WORKLOAD.vary(
        predict=predict_one_covariance, compute_loss=compute_loss_of_means
    ),
}
