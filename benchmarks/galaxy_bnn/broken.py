"""Broken variants of galaxy_bnn: each must miss the targets within the full budget.

They are networks that only claim to be Bayesian, and mistakes in the training.
"""

from collections.abc import Mapping

import torch
from torch import nn

from cepheid.benchmarks.galaxy_bnn.model import iterate_gaussian_weights
from cepheid.benchmarks.galaxy_bnn.task import WORKLOAD, compute_likelihood_loss, make_network
from cepheid.reference.galaxies.stamps import Galaxies
from cepheid.reference.torch import broken
from cepheid.reference.torch.workload import Norms, Workload


def make_narrow_network(shape: Galaxies, norms: Norms) -> nn.Module:
    """Return a deterministic network in disguise: all draws of the weights are the same."""
    network = make_network(shape, norms)
    with torch.no_grad():
        for _, posterior in iterate_gaussian_weights(network):
            posterior.untransformed_scale.fill_(-20)  # a standard deviation of 2e-9
    return network


VARIANTS: Mapping[str, Workload[Galaxies]] = {
    "posterior_scale_zero": WORKLOAD.vary(make_network=make_narrow_network),
    # Only the likelihood is trained, so that the posteriors may become arbitrarily narrow.
    "without_kl": WORKLOAD.vary(compute_loss=compute_likelihood_loss),
    "shuffled_labels": broken.shuffle_labels(WORKLOAD),
    "frozen": broken.freeze(WORKLOAD),
}
