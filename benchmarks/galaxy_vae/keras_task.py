"""galaxy_vae in Keras 3 on TensorFlow, the framework it was published in; in one process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.galaxy_shape.keras_model import Tensor
from benchmarks.galaxy_shape.keras_task import KerasGalaxyShape
from benchmarks.galaxy_vae import properties
from benchmarks.galaxy_vae.framework_free import VaeTask
from benchmarks.galaxy_vae.keras_model import (
    GalaxyVae,
    kl_divergence,
    reconstruction_loss,
    within_reach,
)
from benchmarks.galaxy_vae.quality import Examined
from benchmarks.galaxy_vae.stamps import middle
from reference.keras.backend import keras, tf
from reference.run.config import RunConfig
from reference.run.ranks import Ranks


def create(config: RunConfig, ranks: Ranks) -> "KerasGalaxyVae":
    """The task that the timed loop drives."""
    return KerasGalaxyVae(config, ranks)


class KerasGalaxyVae(VaeTask, KerasGalaxyShape):
    """Encoder, decoder and flow."""

    model: GalaxyVae

    def network(self, **layers: Any) -> GalaxyVae:
        """Of the definition, with weights from the global seed."""
        return GalaxyVae(**self.layout())

    def trained(self) -> Mapping[str, Sequence[Any]]:
        """The autoencoder, and the flow with a learning rate of its own."""
        model = self.model
        flow = [weight for network in model.flow.networks for weight in network.trainable_variables]
        autoencoder = [*model.encoder.trainable_variables, *model.decoder.trainable_variables]
        return {"opt_": autoencoder, "opt_flow_": flow}

    def computations(self) -> Mapping[str, Callable[..., Any]]:
        """All that is traced, by name."""
        return {
            "train": self._train_on,
            "encode": self._posterior_of,
            "decode": self.model.images,
            "flow_nll": self._flow_nll,
            "sample": self._sample,
        }

    def next_batch(self) -> tuple[np.ndarray, ...]:
        """Images, and N(0, 1) to draw latents by."""
        return self.next_arrays()

    def mean_loss(self, images: Tensor, normal: Tensor) -> Tensor:
        """Of the autoencoder and of the flow, whose gradients do not meet."""
        scaled = self.model.scaled(images)
        mean, scale = self.model.encoder(scaled, training=True)
        latents = mean + scale * normal
        logits = self.model.decoder(latents, training=True)
        kl_weight = float(self.config.hyperparameters["kl_weight"])
        autoencoder = reconstruction_loss(logits, scaled) + kl_weight * kl_divergence(mean, scale)
        return keras.ops.mean(autoencoder + self._flow_nll(tf.stop_gradient(latents)))

    def usable(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Gradients of a part, all of them 0 where one overflows: no step, but not the end."""
        is_finite = tf.math.is_finite(tf.linalg.global_norm(gradients))
        return [tf.where(is_finite, gradient, 0) for gradient in gradients]

    def encoded(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See ``VaeTask``."""
        mean, scale = self._functions["encode"](tf.constant(images))
        return mean.numpy(), scale.numpy()

    def decoded(self, latents: np.ndarray) -> np.ndarray:
        """See ``VaeTask``."""
        images: np.ndarray = self._functions["decode"](tf.constant(latents)).numpy()
        return images

    def made(self, noise: np.ndarray) -> np.ndarray:
        """See ``VaeTask``."""
        latents: np.ndarray = self._functions["sample"](tf.constant(noise)).numpy()
        return latents

    def examine(self, images: np.ndarray, noise: np.ndarray, made: np.ndarray) -> Examined:
        """See ``VaeTask``."""
        real = images.astype(np.float32)
        mean, scale = self.encoded(images)
        reconstructed, generated = self.decoded(mean), self.decoded(made)
        latents = tf.constant(mean + scale * noise)
        return Examined(
            reconstruction_errors=np.square(reconstructed - real).sum((2, 3)),
            signals=np.square(real).sum((2, 3)),
            flow_nll=self._functions["flow_nll"](latents).numpy(),
            mean=mean,
            scale=scale,
            real=self._measured(real),
            reconstructed=self._measured(reconstructed),
            generated=self._measured(generated),
        )

    def over_ranks(self, values: np.ndarray) -> np.ndarray:
        """``values``: there is one rank."""
        return values

    def predict_noise(self) -> None:
        """Once all that an evaluation computes, in its shapes."""
        images, normal = self._synthetic(self.evaluation_batch)
        self.examine(images, normal, normal)
        self.made(np.resize(normal, (self.definition.evaluation_samples, normal.shape[1])))

    def _posterior_of(self, images: Tensor) -> tuple[Tensor, Tensor]:
        mean, scale = self.model.encoder(self.model.scaled(images), training=False)
        return mean, scale

    def _flow_nll(self, latents: Tensor) -> Tensor:
        return within_reach(-self.model.flow.log_prob(latents))

    def _sample(self, noise: Tensor) -> Tensor:
        return within_reach(self.model.flow.sample(noise))

    def _synthetic(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        images, _ = super()._synthetic(count)
        model = self.definition.model
        normal = np.zeros((count, model["latents"]), np.float32)
        return np.abs(middle(images, model["pixels"])), normal

    def _measured(self, images: np.ndarray) -> np.ndarray:
        data = self.definition.data
        return properties.measured(images, data["bands"], data["pixel_scale_arcsec"])
