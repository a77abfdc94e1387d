"""The base of the galaxy benchmarks in Keras."""

import numpy as np

from cepheid.reference.galaxies.shapes import ShapeTask
from cepheid.reference.galaxies.task import GalaxyTask
from cepheid.reference.keras.backend import POLICIES, keras, tf
from cepheid.reference.keras.task import KerasTask

COMPUTED_LAYERS = ("trunk_", "head", "encoder.", "decoder.")  # compute at the run's precision


class KerasGalaxyTask(GalaxyTask, KerasTask):
    """A task in Keras that trains on stamps of galaxies."""

    def clip_norm(self, prefix: str) -> float:
        """Return the largest norm of the gradient of a part of the model."""
        return self.hyperparameters.clip_norm(prefix)

    def set_precision(self, precision: str) -> None:
        """Compute at ``precision``, fp32 or bf16, in everything traced from now on."""
        set_precision(self.model, precision)


class KerasShapeTask(ShapeTask, KerasGalaxyTask):
    """A task whose network predicts means (n, d) and scale matrices (n, d, d) of shapes."""

    @property
    def target_count(self) -> int:
        """The number d of targets."""
        return len(self.definition.model["targets"])

    def estimate_batch(self, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means (n, d) and scale matrices (n, d, d) of one evaluation batch of stamps."""
        mean, scale = self.traced["predict"](tf.constant(stamps))
        return mean.numpy(), scale.numpy()


def set_precision(network: keras.Model, precision: str) -> None:
    """Let convolutions, slopes and dense layers compute at ``fp32`` or ``bf16``.

    It holds for everything traced from now on. All weights, the normalisation, the likelihood and a
    flow stay in float32.
    """
    for layer in network.layers:
        if layer.name.startswith(COMPUTED_LAYERS):
            layer.dtype_policy = keras.DTypePolicy(POLICIES[precision])
