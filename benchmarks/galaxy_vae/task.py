"""galaxy_vae in PyTorch: build, train, evaluate.

One loop trains both: the autoencoder on the images, and the flow on latents that are drawn from the
encoder's posteriors in the same step, through which no gradient flows back. The flow follows the
moving encoder, and has it at rest when the learning rates have decayed. So there is one phase, and
the log is that of any training.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import convert_conv2d_weight_memory_format

from benchmarks.galaxy_shape.task import GalaxyShape
from benchmarks.galaxy_vae import torch_properties
from benchmarks.galaxy_vae.framework_free import OVERFLOW, VaeTask
from benchmarks.galaxy_vae.model import GalaxyVae, kl_divergence, reconstruction_loss
from benchmarks.galaxy_vae.quality import Examined
from benchmarks.galaxy_vae.sampling import eager_sampler
from reference.run.config import Execution, RunConfig
from reference.torch import precision
from reference.torch.compilation import Compiled
from reference.torch.distributed import TorchRanks


def create(config: RunConfig, ranks: TorchRanks) -> "GalaxyVaeTask":
    """The task that the timed loop drives."""
    return GalaxyVaeTask(config, ranks)


class GalaxyVaeTask(VaeTask, GalaxyShape):
    """Encoder, decoder and flow."""

    ranks: TorchRanks
    model: GalaxyVae

    def make_network(self) -> GalaxyVae:
        """Encoder, decoder and flow, initialised from torch's global generator."""
        network = GalaxyVae(**self.layout())
        convert_conv2d_weight_memory_format(network, torch.channels_last)
        return network

    def build(self) -> int:
        """Model and optimizer, from the seed; returns the number of trainable parameters."""
        insist = self.config.execution.compile == "on"
        self._decode = Compiled(self._images, enabled=insist, insist=insist)
        return super().build()

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The autoencoder, and the flow with a learning rate of its own."""
        model = self.model
        autoencoder = [*model.encoder.parameters(), *model.decoder.parameters()]
        return [{"params": autoencoder}, {"params": list(model.flow.parameters())}]

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """``next_arrays`` on this rank's device."""
        images, normal = map(self._here, self.next_arrays())
        return images, normal

    def apply_gradients(self) -> None:
        """Clip, set the rates for the samples trained after this step, and step."""
        values = self.config.hyperparameters
        self.samples += self.config.global_batch_size
        for group, prefix in zip(self.optimizer.param_groups, ("opt_", "opt_flow_"), strict=True):
            norm = float(values[f"{prefix}gradient_clip_norm"])
            torch.nn.utils.clip_grad_norm_(group["params"], norm)
            for parameter in group["params"]:  # one that overflows is no step, not the end
                if parameter.grad is not None:
                    parameter.grad.nan_to_num_(0, 0, 0)
            group["lr"] = self.learning_rate(float(values[f"{prefix}base_learning_rate"]))
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def encoded(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See ``VaeTask``."""
        self.model.eval()
        mean, scale = self._predict(self._here(images))
        return _array(mean), _array(scale)

    @torch.no_grad()
    def decoded(self, latents: np.ndarray) -> np.ndarray:
        """See ``VaeTask``."""
        self.model.eval()
        return _array(self._decode(self._here(latents)))

    @torch.no_grad()
    def made(self, noise: np.ndarray) -> np.ndarray:
        """See ``VaeTask``."""
        return _array(within_reach(eager_sampler(self.model.flow)(self._here(noise))))

    @torch.no_grad()
    def examine(self, images: np.ndarray, noise: np.ndarray, made: np.ndarray) -> Examined:
        """See ``VaeTask``; images stay on this rank's device."""
        self.model.eval()
        real = self._here(images)
        mean, scale = self._predict(real)
        reconstructed, generated = self._decode(mean), self._decode(self._here(made))
        latents = mean + scale * self._here(noise)
        return Examined(
            reconstruction_errors=_array((reconstructed - real).square().sum((2, 3))),
            signals=_array(real.float().square().sum((2, 3))),
            flow_nll=_array(within_reach(-self.model.flow.log_prob(latents))),
            mean=_array(mean),
            scale=_array(scale),
            real=self._measured(real),
            reconstructed=self._measured(reconstructed),
            generated=self._measured(generated),
        )

    def over_ranks(self, values: np.ndarray) -> np.ndarray:
        """See ``VaeTask``."""
        return _array(self.ranks.sum(self._here(values)))

    def predict_noise(self) -> None:
        """Encode and decode once in the shapes of an evaluation."""
        mean, _ = self._predict(self._synthetic(self.evaluation_batch)[0])
        self._decode(mean)

    def _posterior(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Means and standard deviations of the latents of images, (n, latents) each."""
        with precision.autocast(self.precision, self.ranks.device):
            mean, scale = self.model.encode(images)
        return mean, scale

    def _images(self, latents: Tensor) -> Tensor:
        with precision.autocast(self.precision, self.ranks.device):
            return self.model.decoder.images(latents)

    def _mean_loss(self, images: Tensor, normal: Tensor) -> Tensor:
        """Of the autoencoder and of the flow, whose gradients do not meet."""
        mean, scale = self._posterior(images)
        latents = self._latents(mean, scale, normal)
        with precision.autocast(self.precision, self.ranks.device):
            logits = self.model.decoder(latents)
        scaled = self.model.decoder.flux_scaling(self._target(images))
        kl_weight = float(self.config.hyperparameters["kl_weight"])
        autoencoder = reconstruction_loss(logits, scaled) + kl_weight * kl_divergence(mean, scale)
        flow_nll = within_reach(-self.model.flow.log_prob(latents.detach()))
        return (autoencoder + flow_nll).mean()

    def _latents(self, mean: Tensor, scale: Tensor, normal: Tensor) -> Tensor:
        """Draws from the posteriors, all (n, latents)."""
        return mean + scale * normal

    def _target(self, images: Tensor) -> Tensor:
        """What is to be reconstructed."""
        return images

    def _compute_as(self, how: Execution) -> None:
        super()._compute_as(how)
        self._decode.enabled = how.compile == "on"

    def _synthetic(self, count: int) -> tuple[Tensor, Tensor]:
        images, _ = super()._synthetic(count)
        model = self.definition.model
        normal = torch.zeros(count, model["latents"], device=self.ranks.device)
        return images[..., : model["pixels"], : model["pixels"]].abs().contiguous(), normal

    def _measured(self, images: Tensor) -> np.ndarray:
        data = self.definition.data
        return torch_properties.measured(images, data["bands"], data["pixel_scale_arcsec"])

    def _here(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.ranks.device)


def within_reach(values: Tensor) -> Tensor:
    """Finite: a flow that is far from its latents overflows, which is bad and no error."""
    return values.nan_to_num(nan=OVERFLOW).clamp(-OVERFLOW, OVERFLOW)


def _array(values: Tensor) -> np.ndarray:
    array: np.ndarray = values.cpu().numpy()
    return array
