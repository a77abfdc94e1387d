"""galaxy_vae in PyTorch: networks, loss, evaluation.

One loop trains both the autoencoder, on the images, and the flow, on latents that are drawn from
the encoder's posteriors in the same step. No gradient flows back through these latents. The flow
follows the encoder while that changes, and converges when the learning rates have decayed. So there
is one phase, and the log is that of any training.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from cepheid.benchmarks.galaxy_vae import framework_free, quality
from cepheid.benchmarks.galaxy_vae.framework_free import Hyperparameters, Sizes, split_input
from cepheid.benchmarks.galaxy_vae.model import (
    DrawLatents,
    GalaxyVae,
    cut_off_overflow,
    kl_divergence,
    measure_properties,
    reconstruction_loss,
    to_array,
)
from cepheid.benchmarks.galaxy_vae.quality import Examined
from cepheid.reference.galaxies.stamps import Galaxies
from cepheid.reference.run.report import Table
from cepheid.reference.torch import stamps as of_stamps
from cepheid.reference.torch.flow.sampling import make_eager_sampler
from cepheid.reference.torch.workload import (
    Evaluation,
    Inference,
    Inputs,
    Network,
    Norms,
    OnProgress,
    Recipe,
    Result,
    Seat,
    Update,
    Workload,
)


class TorchImages(framework_free.Images):
    """Images and N(0, 1) as tensors, for the trainer."""

    take = of_stamps.take

    def __init__(self, shape: Galaxies, seat: Seat) -> None:
        super().__init__(shape, seat.share, seat.load(), seat.source)


def make_network(shape: Galaxies, norms: Norms) -> nn.Module:
    """Return encoder, decoder and flow."""
    sizes = Sizes.parse(shape.definition.model, shape.definition.data)
    network = GalaxyVae(sizes, norms.make(**sizes.norm_options))
    convert_conv2d_weight_memory_format(network, torch.channels_last)
    return network


def make_optimizer(shape: Galaxies, network: Any) -> Recipe:
    """Return Adam with groups of autoencoder and flow, which has a learning rate of its own."""
    autoencoder = [*network.encoder.parameters(), *network.decoder.parameters()]
    return of_stamps.make_adam(shape, autoencoder, network.flow.parameters())


def make_noise(shape: Galaxies, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return noise in the shapes and types of a batch; ``generator`` is unused."""
    images, normal = framework_free.make_noise_arrays(shape, count)
    return torch.from_numpy(images), torch.from_numpy(normal)


def encode(shape: Galaxies, network: Network, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and standard deviations of the latents, (n, latents) each.

    Of images that have observed bands before the noise-free ones it sees the observed ones.
    """
    with network.autocast():
        mean, scale = network.module.encode(split_input(shape, images)[0])
    return mean, scale


def decode(shape: Galaxies, network: Network, latents: Tensor) -> Tensor:
    """Return the images of latents, (n, latents) to (n, bands, pixels, pixels)."""
    with network.autocast():
        return network.module.decoder.make_images(latents)


def compute_loss(shape: Galaxies, network: Network, images: Tensor, normal: Tensor) -> Tensor:
    """Return the mean loss of autoencoder and flow, whose gradients are independent.

    ``images`` are (n, bands, pixels, pixels); ``normal``, (n, latents), draws the latents.
    """
    return compare_with(shape, network, split_input(shape, images), normal)


def draw_latents(mean: Tensor, scale: Tensor, normal: Tensor) -> Tensor:
    """Return draws from the posteriors; all are (n, latents)."""
    return mean + scale * normal


def compare_with(
    shape: Galaxies,
    network: Network,
    images: tuple[Tensor, Tensor],
    normal: Tensor,
    draw: DrawLatents = draw_latents,
) -> Tensor:
    """Return the mean loss, a scalar, where the decoder shall give the second of ``images``."""
    observed, target = images
    mean, scale, logits, log_densities = network(observed, normal, draw)
    kl = shape.values.kl_weight * kl_divergence(mean, scale)
    wanted = network.module.decoder.flux_scaling(target)
    return (reconstruction_loss(logits, wanted) + kl + cut_off_overflow(-log_densities)).mean()


def prepare_update(shape: Galaxies, update: Update) -> None:
    """Clip gradients and set rates, those of the autoencoder and those of the flow.

    Gradients that overflow become zero: they skip a step and do not end the run.
    """
    of_stamps.prepare_update(shape, update, ("opt_", "opt_flow_"))
    for group in update.groups:
        gradients = [each.grad for each in group["params"] if each.grad is not None]
        # As vectors in the order of their memory, so that all need three operations together.
        vectors = [each.as_strided((each.numel(),), (1,)) for each in gradients]
        if vectors:
            finite = torch.cat(vectors).nan_to_num_(0, 0, 0)
            torch._foreach_copy_(vectors, finite.split([each.numel() for each in vectors]))


@dataclass(frozen=True)
class TorchNetworks:
    """The trained networks on arrays; shapes are those of ``framework_free.Networks``."""

    shape: Galaxies
    inference: Inference

    @property
    def evaluation_batch(self) -> int:
        """The samples of a batch."""
        return self.inference.size

    def encode(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and standard deviations of the latents."""
        mean, scale = self.inference(images)
        return to_array(mean), to_array(scale)

    def decode(self, latents: np.ndarray) -> np.ndarray:
        """Return the images of latents."""
        return to_array(self._decode(self.inference.to_device(latents)))

    def sample(self, noise: np.ndarray) -> np.ndarray:
        """Return latents of new galaxies."""
        sample = make_eager_sampler(self.inference.network.module.flow)
        return to_array(cut_off_overflow(sample(self.inference.to_device(noise))))

    def examine(self, images: np.ndarray, noise: np.ndarray, generated: np.ndarray) -> Examined:
        """Measure one evaluation batch, on this rank's device."""
        to_device, flow = self.inference.to_device, self.inference.network.module.flow
        observed, real = map(to_device, split_input(self.shape, images))
        mean, scale = self.inference(observed)
        reconstructed, new = self._decode(mean), self._decode(to_device(generated))
        latents = mean + scale * to_device(noise)
        return Examined(
            reconstruction_errors=to_array((reconstructed - real).square().sum((2, 3))),
            signals=to_array(real.float().square().sum((2, 3))),
            flow_nll=to_array(cut_off_overflow(-flow.log_prob(latents))),
            mean=to_array(mean),
            scale=to_array(scale),
            real=self._measure(real),
            reconstructed=self._measure(reconstructed),
            generated=self._measure(new),
        )

    def sum_over_ranks(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of ``values``, of any shape, over all ranks."""
        return to_array(self.inference.ranks.sum(self.inference.to_device(values)))

    def _decode(self, latents: Tensor) -> Any:
        return self.inference.functions["decode"](latents)

    def _measure(self, images: Tensor) -> np.ndarray:
        facts = self.shape.definition.data
        return measure_properties(images, facts["bands"], facts["pixel_scale_arcsec"])


def predict_noise(shape: Galaxies, inference: Inference, noise: tuple[Tensor, Tensor]) -> None:
    """Encode and decode once in the shapes of an evaluation."""
    mean, _ = inference(split_input(shape, noise[0])[0])
    inference.functions["decode"](mean)


def evaluate(shape: Galaxies, inference: Inference) -> Evaluation:
    """Return the quality of reconstructions, of the flow and of generated galaxies."""
    networks = TorchNetworks(shape, inference)
    data = inference.data
    examined = framework_free.examine_all(data, networks, data.share, networks.sum_over_ranks)
    return Evaluation(quality.compute_metrics(examined, shape.bands))


def report(shape: Galaxies, result: Result, on_progress: OnProgress) -> Sequence[Table]:
    """Return distances beside those of real galaxies, and errors by band and brightness."""
    networks = TorchNetworks(shape, result.inference)
    return framework_free.make_report(result.data, networks, on_progress)


def draw_galaxies(shape: Galaxies, result: Result) -> Any:
    """Return a figure of real, reconstructed and generated galaxies."""
    return framework_free.draw_galaxies(result.data, TorchNetworks(shape, result.inference))


WORKLOAD: Workload[Galaxies] = Workload(
    read_shape=partial(Galaxies.read, kind=Hyperparameters),
    make_network=make_network,
    norms=lambda shape: Inputs(),
    make_optimizer=make_optimizer,
    compute_loss=compute_loss,
    predict=encode,
    functions={"decode": decode},
    evaluation_batch=lambda shape: 125,  # on CPU an eighth faster than 256, with the same bits
    make_noise=make_noise,
    predict_noise=predict_noise,
    open_data=TorchImages,
    is_static=True,
    averages_early=True,
    prepare_update=prepare_update,
    evaluate=evaluate,
    report=report,
    pictures=draw_galaxies,
)
