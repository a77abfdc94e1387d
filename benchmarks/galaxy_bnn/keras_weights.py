"""Convert the weights of galaxy_bnn's network from PyTorch to Keras, as plain arrays.

Means and untransformed scales are converted like the weights in ``galaxy_shape.keras_weights``.
"""

from collections.abc import Mapping

import numpy as np

from cepheid.benchmarks.galaxy_shape import keras_weights
from cepheid.benchmarks.galaxy_shape.keras_weights import Weights

MEAN, SCALE = "parametrizations.weight.original", "parametrizations.weight.0.untransformed_scale"
KERNEL, KERNEL_SCALE = "kernel", "untransformed_scale"


def convert_to_keras(state: Mapping[str, np.ndarray]) -> Weights:
    """Return Keras' weights by path, from a state dict of a Bayesian ``ShapeNetwork``.

    Shapes are those of ``galaxy_shape.keras_weights``; a scale has that of its mean.
    """
    means = {name.replace(MEAN, "weight"): state[name] for name in state if SCALE not in name}
    scales = {name.replace(SCALE, "weight"): state[name] for name in state if SCALE in name}
    weights = keras_weights.convert_to_keras(means)
    for path, value in keras_weights.convert_to_keras({**means, **scales}).items():
        if path.endswith(KERNEL):
            weights[path.replace(KERNEL, KERNEL_SCALE)] = value
    return weights
