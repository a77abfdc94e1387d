"""galaxy_vae in Keras 3; it was published in Keras on TensorFlow."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from cepheid.benchmarks.galaxy_vae import framework_free, quality
from cepheid.benchmarks.galaxy_vae.framework_free import (
    Hyperparameters,
    Images,
    Sizes,
    is_input_noisy,
    split_input,
)
from cepheid.benchmarks.galaxy_vae.keras_model import (
    GalaxyVae,
    cut_off_overflow,
    kl_divergence,
    reconstruction_loss,
)
from cepheid.benchmarks.galaxy_vae.quality import Examined
from cepheid.reference.galaxies import properties
from cepheid.reference.keras import galaxies
from cepheid.reference.keras.backend import keras, read
from cepheid.reference.keras.task import KerasTask, Tensor
from cepheid.reference.run.report import Table


class KerasGalaxyVae(KerasTask):
    """Encoder, decoder and flow; also ``framework_free.Networks``, which describes its methods."""

    hyperparameter_type = Hyperparameters
    model: GalaxyVae
    data: Images
    shape = cached_property(galaxies.read_facts)
    reads_ahead = False  # it costs more than it saves in so short a step

    def make_network(self) -> GalaxyVae:
        """Return encoder, decoder and flow, initialised from Keras' global seed."""
        return GalaxyVae(Sizes.parse(self.definition.model, self.definition.data))

    def open_data(self) -> None:
        """Map the images."""
        galaxies.open_stamps(self, Images)

    def make_noise_arrays(self, count: int) -> tuple[np.ndarray, ...]:
        """Return noise in the shapes and types of a batch, (count, …)."""
        return framework_free.make_noise_arrays(self.shape, count)

    def variables_by_prefix(self) -> Mapping[str, Sequence[Any]]:
        """Return the variables of autoencoder and flow, which has a learning rate of its own."""
        model = self.model
        flow = [weight for network in model.flow.networks for weight in network.trainable_variables]
        autoencoder = [*model.encoder.trainable_variables, *model.decoder.trainable_variables]
        return {"opt_": autoencoder, "opt_flow_": flow}

    def computations(self) -> Mapping[str, Callable[..., Any]]:
        """Return all functions that are traced, by name."""
        return {
            "train": self.train_on,
            "encode": self._encode_scaled,
            "decode": self.model.make_images,
            "flow_nll": self._flow_nll,
            "sample": self._sample,
        }

    def compute_loss(self, images: Tensor, normal: Tensor) -> Tensor:
        """Return the mean loss of autoencoder and flow, whose gradients are independent.

        ``images`` are (n, bands, pixels, pixels); ``normal``, (n, latents), draws the latents.
        """
        observed, images = split_input(self.shape, images)
        scaled = self.model.scale_images(images)
        seen = self.model.scale_images(observed) if is_input_noisy(self.shape) else scaled
        mean, scale = self.model.encoder(seen, training=True)
        latents = mean + scale * normal
        logits = self.model.decoder(latents, training=True)
        kl_weight = self.hyperparameters.kl_weight
        autoencoder = reconstruction_loss(logits, scaled) + kl_weight * kl_divergence(mean, scale)
        return keras.ops.mean(autoencoder + self._flow_nll(keras.ops.stop_gradient(latents)))

    def repair_gradients(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the gradients of a part, all 0 if one overflows, which skips the step.

        They keep their shapes.
        """
        ops = keras.ops
        total = sum(ops.sum(ops.square(gradient)) for gradient in gradients)
        return [ops.where(ops.isfinite(total), gradient, 0) for gradient in gradients]

    def encode(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and standard deviations of latents, (n, latents) each."""
        mean, scale = self.traced["encode"](images)
        return read(mean), read(scale)

    def decode(self, latents: np.ndarray) -> np.ndarray:
        """Return the images of latents, (n, bands, pixels, pixels)."""
        return read(self.traced["decode"](latents))

    def sample(self, noise: np.ndarray) -> np.ndarray:
        """Return latents of new galaxies, (n, latents)."""
        return read(self.traced["sample"](noise))

    def examine(self, images: np.ndarray, noise: np.ndarray, generated: np.ndarray) -> Examined:
        """Measure one evaluation batch; shapes are those of ``framework_free.Networks``."""
        observed, images = split_input(self.shape, images)
        real = images.astype(np.float32)
        mean, scale = self.encode(observed)
        reconstructed, new = self.decode(mean), self.decode(generated)
        latents = mean + scale * noise
        return Examined(
            reconstruction_errors=np.square(reconstructed - real).sum((2, 3)),
            signals=np.square(real).sum((2, 3)),
            flow_nll=read(self.traced["flow_nll"](latents)),
            mean=mean,
            scale=scale,
            real=self._measure(real),
            reconstructed=self._measure(reconstructed),
            generated=self._measure(new),
        )

    def evaluate(self) -> dict[str, float]:
        """Return the quality of reconstructions, of the flow and of generated galaxies.

        Each process examines the whole set.
        """
        examined = framework_free.examine_all(
            self.data, self, framework_free.ALONE, lambda values: values
        )
        return quality.compute_metrics(examined, self.shape.bands)

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Return distances beside those of real galaxies, and errors by band and brightness."""
        return framework_free.make_report(self.data, self, on_progress)

    def pictures(self) -> Any:
        """Return a figure of real, reconstructed and generated galaxies."""
        return framework_free.draw_galaxies(self.data, self)

    def predict_noise(self) -> None:
        """Compute everything that an evaluation computes once, in its shapes."""
        images, normal = self.make_noise_arrays(self.evaluation_batch)
        self.examine(images, normal, normal)
        self.sample(np.resize(normal, (self.definition.evaluation_samples, normal.shape[1])))

    def _encode_scaled(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.model.encoder(self.model.scale_images(images), training=False)

    def _flow_nll(self, latents: Tensor) -> Tensor:
        return cut_off_overflow(-self.model.flow.log_prob(latents))

    def _sample(self, noise: Tensor) -> Tensor:
        return cut_off_overflow(self.model.flow.sample(noise))

    def _measure(self, images: np.ndarray) -> np.ndarray:
        data = self.definition.data
        return properties.measure(images, data["bands"], data["pixel_scale_arcsec"])


create = KerasGalaxyVae
