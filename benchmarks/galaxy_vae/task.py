"""galaxy_vae in PyTorch: build, train, evaluate.

One loop trains both the autoencoder, on the images, and the flow, on latents that are drawn from
the encoder's posteriors in the same step. No gradient flows back through these latents. The flow
follows the encoder while that changes, and converges when the learning rates have decayed. So there
is one phase, and the log is that of any training.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from cepheid.benchmarks.galaxy_vae.framework_free import VaeTask
from cepheid.benchmarks.galaxy_vae.model import (
    GalaxyVae,
    cut_off_overflow,
    kl_divergence,
    measure_properties,
    reconstruction_loss,
)
from cepheid.benchmarks.galaxy_vae.quality import Examined
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Execution
from cepheid.reference.torch.compilation import Compiled
from cepheid.reference.torch.flow.sampling import make_eager_sampler
from cepheid.reference.torch.galaxies import TorchGalaxyTask
from cepheid.reference.torch.ranks.distributed import TorchRanks


def create(config: RunConfig, ranks: TorchRanks) -> "GalaxyVaeTask":
    """Return the task for the timed loop."""
    return GalaxyVaeTask(config, ranks)


class GalaxyVaeTask(VaeTask, TorchGalaxyTask):
    """Encoder, decoder and flow."""

    ranks: TorchRanks
    model: GalaxyVae

    def make_network(self) -> GalaxyVae:
        """Return encoder, decoder and flow, initialised from torch's global generator."""
        network = GalaxyVae(self.shape)
        convert_conv2d_weight_memory_format(network, torch.channels_last)
        return network

    def build(self) -> int:
        """Make model and optimizer from the seed; return the number of trainable parameters."""
        insist = self.config.execution.compile == "on"
        self.compiled_decode = Compiled(self.decode_images, enabled=insist, insist=insist)
        return super().build()

    def parameters_by_prefix(self) -> Mapping[str, Iterable[nn.Parameter]]:
        """Return the parameters of autoencoder and flow, which has a learning rate of its own."""
        model = self.model
        autoencoder = [*model.encoder.parameters(), *model.decoder.parameters()]
        return {"opt_": autoencoder, "opt_flow_": model.flow.parameters()}

    def repair_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Set gradients that overflow to zero: they skip a step and do not end the run."""
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.nan_to_num_(0, 0, 0)

    def predict(self, images: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations of the latents of images, (n, latents) each."""
        with self.autocast():
            mean, scale = self.model.encode(images)
        return mean, scale

    def decode_images(self, latents: Tensor) -> Tensor:
        """Return the images of latents, (n, latents) to (n, bands, pixels, pixels)."""
        with self.autocast():
            return self.model.decoder.make_images(latents)

    def compute_loss(self, images: Tensor, normal: Tensor, /) -> Tensor:
        """Return the mean loss of autoencoder and flow, whose gradients are independent.

        ``images`` are (n, bands, pixels, pixels); ``normal``, (n, latents), draws the latents.
        """
        observed, images = self.split_input(images)
        mean, scale = self.predict(observed)
        latents = self.draw_latents(mean, scale, normal)
        with self.autocast():
            logits = self.model.decoder(latents)
        scaled = self.model.decoder.flux_scaling(self.reconstruction_target(images))
        kl_weight = self.hyperparameters.kl_weight
        autoencoder = reconstruction_loss(logits, scaled) + kl_weight * kl_divergence(mean, scale)
        flow_nll = cut_off_overflow(-self.model.flow.log_prob(latents.detach()))
        return (autoencoder + flow_nll).mean()

    def draw_latents(self, mean: Tensor, scale: Tensor, normal: Tensor) -> Tensor:
        """Return draws from the posteriors; all are (n, latents)."""
        return mean + scale * normal

    def reconstruction_target(self, images: Tensor) -> Tensor:
        """Return the images to reconstruct, in the shape of ``images``."""
        return images

    @torch.no_grad()
    def encode(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and standard deviations of latents, (n, latents) each; see ``VaeTask``."""
        self.model.eval()
        mean, scale = self.compiled_predict(self.to_device(images))
        return _to_array(mean), _to_array(scale)

    @torch.no_grad()
    def decode(self, latents: np.ndarray) -> np.ndarray:
        """Return the images of latents, (n, bands, pixels, pixels); see ``VaeTask``."""
        self.model.eval()
        return _to_array(self.compiled_decode(self.to_device(latents)))

    @torch.no_grad()
    def sample(self, noise: np.ndarray) -> np.ndarray:
        """Return latents of new galaxies, (n, latents); see ``VaeTask``."""
        sample = make_eager_sampler(self.model.flow)
        return _to_array(cut_off_overflow(sample(self.to_device(noise))))

    @torch.no_grad()
    def examine(self, images: np.ndarray, noise: np.ndarray, generated: np.ndarray) -> Examined:
        """Measure one evaluation batch, on this rank's device; shapes as ``VaeTask``."""
        self.model.eval()
        observed, real = map(self.to_device, self.split_input(images))
        mean, scale = self.compiled_predict(observed)
        reconstructed = self.compiled_decode(mean)
        new = self.compiled_decode(self.to_device(generated))
        latents = mean + scale * self.to_device(noise)
        return Examined(
            reconstruction_errors=_to_array((reconstructed - real).square().sum((2, 3))),
            signals=_to_array(real.float().square().sum((2, 3))),
            flow_nll=_to_array(cut_off_overflow(-self.model.flow.log_prob(latents))),
            mean=_to_array(mean),
            scale=_to_array(scale),
            real=self._measure(real),
            reconstructed=self._measure(reconstructed),
            generated=self._measure(new),
        )

    def sum_over_ranks(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of ``values``, of any shape, over all ranks; see ``VaeTask``."""
        return _to_array(self.ranks.sum(self.to_device(values)))

    def predict_noise(self) -> None:
        """Encode and decode once in the shapes of an evaluation."""
        images, _ = self.make_noise_arrays(self.evaluation_batch)
        mean, _ = self.compiled_predict(self.to_device(self.split_input(images)[0]))
        self.compiled_decode(mean)

    def use_execution(self, settings: Execution) -> None:
        """Compute with these execution settings from now on."""
        super().use_execution(settings)
        self.compiled_decode.enabled = settings.compile == "on"

    def _measure(self, images: Tensor) -> np.ndarray:
        data = self.definition.data
        return measure_properties(images, data["bands"], data["pixel_scale_arcsec"])


def _to_array(values: Tensor) -> np.ndarray:
    array: np.ndarray = values.cpu().numpy()
    return array
