"""The Bayesian network of Arcelin 2021 (section 3.2.2): the shape network with Gaussian weights.

Every kernel and the matrix of the dense layer are mean-field Gaussian, w = μ + σ·ε with a standard
deviation σ = softplus(s) of its own for each weight (Blundell et al. 2015, arXiv:1505.05424); the
prior is a Gaussian, the same for all weights. Biases, PReLU slopes and the batch normalisation are
deterministic, as published.

The network is ``galaxy_shape``'s own: what changes is what ``layer.weight`` gives. A
parametrisation (``torch.nn.utils.parametrize``) makes it a draw from the posterior, so that
whatever uses the weight, as the convolution that swallows the batch normalisation does, uses the
draw. The noise ε lies in buffers that ``WeightNoise`` fills, outside of anything compiled.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.torch.devices.values import find_values


class GaussianWeight(nn.Module):
    """μ ↦ μ + softplus(s)·ε: the parametrisation of a weight as one draw from its posterior.

    The mean is the weight's ``original``; ``untransformed_scale`` (s) and ``noise`` (ε, standard
    normal when it is drawn, 0 before) have its shape and its order in memory.
    """

    noise: Tensor

    def __init__(self, mean: Tensor, initial_scale: float) -> None:
        super().__init__()
        self.untransformed_scale = nn.Parameter(
            torch.full_like(mean, math.log(math.expm1(initial_scale)))
        )
        self.register_buffer("noise", torch.zeros_like(mean), persistent=False)

    @property
    def scale(self) -> Tensor:
        """σ, the standard deviation of each weight's posterior, in the shape of the mean."""
        return F.softplus(self.untransformed_scale)

    def forward(self, mean: Tensor) -> Tensor:
        """Return the weight for the current ``noise``, in the shape of ``mean``."""
        return mean + self.scale * self.noise


def make_bayesian(network: nn.Module, initial_relative_scale: float) -> None:
    """Give every kernel and matrix of ``network`` a Gaussian posterior, in place.

    Means stay as the network has them, Glorot-uniform; standard deviations start at
    ``initial_relative_scale`` times the He standard deviation of their layer.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers:
        he_scale = math.sqrt(2 / layer.weight[0].numel())
        posterior = GaussianWeight(layer.weight.detach(), initial_relative_scale * he_scale)
        parametrize.register_parametrization(layer, "weight", posterior)


def iterate_gaussian_weights(network: nn.Module) -> Iterator[tuple[Tensor, GaussianWeight]]:
    """Yield mean and posterior of each Gaussian weight, in the order of the layers.

    A mean has the shape of its weight, (out, in, y, x) or (out, in).
    """
    for layer in network.modules():
        if parametrize.is_parametrized(layer, "weight"):
            parametrizations: Any = layer.parametrizations
            yield parametrizations.weight.original, parametrizations.weight[0]


def kl_divergence(network: nn.Module, prior_scale: float) -> Tensor:
    """Return KL(posterior ‖ N(0, prior_scale²)) of all Gaussian weights, a scalar in nats.

    In closed form: Σ log(p/σ) + (σ² + μ²)/2p² − ½, with the prior's p (Kingma & Welling 2014,
    arXiv:1312.6114, appendix B).
    """
    terms = [
        (
            0.5 * ((mean / prior_scale).square() + (posterior.scale / prior_scale).square() - 1)
            - (posterior.scale / prior_scale).log()
        ).sum()
        for mean, posterior in iterate_gaussian_weights(network)
    ]
    return torch.stack(terms).sum()


class WeightNoise:
    """The noise of all Gaussian weights of a network, as one vector with a part for each weight.

    Make it when the network is on its device. The same (seed, purpose, keys) draw the same weights
    on every rank, and again in a resumed run.
    """

    def __init__(self, network: nn.Module) -> None:
        # Filled where they lie: a captured pass reads this memory, whoever made it (graphs.py).
        self._buffers = [posterior.noise for _, posterior in iterate_gaussian_weights(network)]
        sizes = [noise.numel() for noise in self._buffers]
        device = self._buffers[0].device
        self.values = torch.zeros(sum(sizes), device=device)
        self._parts = [
            part.as_strided(noise.shape, noise.stride(), part.storage_offset())
            for noise, part in zip(self._buffers, self.values.split(sizes), strict=True)
        ]
        self._random = find_values(device).make_generator()

    def draw(self, seed: int, purpose: str, *keys: int) -> None:
        """Draw all weights at once."""
        key = int(make_generator(seed, purpose, *keys).integers(2**63))
        self.values.normal_(generator=self._random.manual_seed(key))
        torch._foreach_copy_(self._buffers, self._parts)
