"""The Bayesian network in plain code: the reference is timed against it.

It is galaxy_shape's plain network, as published, with Gaussian weights: default memory layout,
default Adam, no compilation, no autocast, float32. The tests compare the two.
"""

from torch import nn

from cepheid.benchmarks.galaxy_bnn.task import WORKLOAD as REFERENCE
from cepheid.benchmarks.galaxy_bnn.task import make_gaussian
from cepheid.benchmarks.galaxy_shape.plain import make_network as make_shape_network
from cepheid.reference.galaxies.stamps import Galaxies
from cepheid.reference.torch.broken import use_default_optimizer
from cepheid.reference.torch.workload import Norms


def make_network(shape: Galaxies, norms: Norms) -> nn.Module:
    """Return the plain network with Gaussian weights."""
    return make_gaussian(shape, make_shape_network(shape, norms))


WORKLOAD = use_default_optimizer(REFERENCE).vary(make_network=make_network)
"""The task with this network and torch's default optimizer; for precision=fp32 and compile=off."""
