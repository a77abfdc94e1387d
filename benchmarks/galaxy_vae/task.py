"""galaxy_vae in PyTorch: build, train, evaluate.

One loop trains both: the autoencoder on the images, and the flow on latents that are drawn from the
encoder's posteriors in the same step, through which no gradient flows back. The flow follows the
moving encoder, and has it at rest when the learning rates have decayed. So there is one phase, and
the log is that of any training.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import convert_conv2d_weight_memory_format

from benchmarks.galaxy_shape.framework_free import turned
from benchmarks.galaxy_shape.task import GalaxyShape
from benchmarks.galaxy_vae import properties, quality
from benchmarks.galaxy_vae.model import GalaxyVae, kl_divergence, reconstruction_loss
from benchmarks.galaxy_vae.quality import Examined
from benchmarks.galaxy_vae.sampling import eager_sampler
from reference import precision
from reference.compilation import Compiled
from reference.config import Execution, RunConfig
from reference.data import galaxies
from reference.distributed import Ranks
from reference.report import Table
from reference.seeding import generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OVERFLOW = 1e4


def create(config: RunConfig, ranks: Ranks) -> "GalaxyVaeTask":
    """The task that the timed loop drives."""
    return GalaxyVaeTask(config, ranks)


class GalaxyVaeTask(GalaxyShape):
    """Noise-free stamps to 32 latents and back, and new galaxies from noise.

    Of galaxy_shape it has the stamps and their order, the schedule, and how to compute.
    """

    model: GalaxyVae

    def made_network(self) -> GalaxyVae:
        """Encoder, decoder and flow, initialised from torch's global generator."""
        model, data = self.definition.model, self.definition.data
        network = GalaxyVae(
            bands=len(data["bands"]),
            pixels=data["pixels"],
            filters=model["filters"],
            latents=model["latents"],
            flow_layers=model["flow_layers"],
            flow_hidden=model["flow_hidden"],
            prelu=model["prelu"],
            mean_maxima=model["mean_maxima"],
            batch_norm_epsilon=model["batch_norm_epsilon"],
            batch_norm_momentum=model["batch_norm_momentum"],
        )
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

    def open_data(self) -> None:
        """Map the noise-free stamps; rows [0, train) are for training, the next ones for
        evaluation."""
        super().open_data()
        self.stamps = galaxies.load(self.folder).noise_free

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """This rank's share of the global batch: images (n, bands, pixels, pixels) in units of the
        sky noise, each flipped or transposed at random, and N(0, 1) to draw latents by, (n, 32)."""
        first = self.ranks.rank * self.batch_per_rank
        positions, orientations = self.order.take(self.samples + first, self.batch_per_rank)
        images = turned(self.stamps, self.training_rows[positions], orientations)
        normal = self._normal(self.config.global_batch_size, "latents of step", self.samples)
        share = normal[first : first + self.batch_per_rank]
        return torch.from_numpy(images).to(self.ranks.device), share.to(self.ranks.device)

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

    def evaluate(self) -> dict[str, float]:
        """Quality of reconstructions, of the flow and of generated galaxies; see ``quality``."""
        return quality.metrics(self.examined(), self.definition.data["bands"])

    @torch.no_grad()
    def examined(self) -> Examined:
        """All that is measured on the evaluation set and on as many new galaxies, on every rank."""
        self.model.eval()
        count, device = len(self.evaluation_rows), self.ranks.device
        latent_noise = self._normal(count, "latents of the evaluation").to(device)
        noise = self._normal(count, "generated galaxies").to(device)
        mine = np.arange(self.ranks.rank, count, self.ranks.world_size)
        made = torch.zeros(count, noise.shape[1], device=device)
        made[mine] = self._made(noise[mine])
        parts = []
        for first in range(0, len(mine), self.evaluation_batch):
            chosen = mine[first : first + self.evaluation_batch]
            # The last batch is filled up to the compiled shape; what was added is cut off again.
            padded = np.resize(chosen, self.evaluation_batch)
            images = torch.from_numpy(self.stamps[self.evaluation_rows[padded]]).to(device)
            mean, scale = self._predict(images)
            reconstructed, generated = self._decode(mean), self._decode(made[padded])
            latents = mean + scale * latent_noise[padded]
            found = Examined(
                reconstruction_errors=(reconstructed - images).square().sum((2, 3)),
                signals=images.float().square().sum((2, 3)),
                flow_nll=within_reach(-self.model.flow.log_prob(latents)),
                mean=mean,
                scale=scale,
                real=self._measured(images),
                reconstructed=self._measured(reconstructed),
                generated=self._measured(generated),
            )
            parts.append(found.first(len(chosen)))
        return quality.together(parts, mine, count, self.ranks)

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Distances beside those of real galaxies from others, and errors by band and
        signal-to-noise; see ``quality``."""
        on_progress(0, 1)
        alone = Ranks(0, 1, self.ranks.device)
        self.ranks, ranks = alone, self.ranks
        found = self.examined()
        self.ranks = ranks
        others = torch.from_numpy(self.stamps[self.training_rows[: len(self.evaluation_rows)]])
        snr = galaxies.load(self.folder).labels["snr"][self.evaluation_rows]
        tables = quality.report(found, self._measured(others), snr, self.definition.data["bands"])
        on_progress(1, 1)
        return tables

    @torch.no_grad()
    def pictures(self) -> "Figure":
        """Real, reconstructed and generated galaxies; see ``pictures``."""
        from benchmarks.galaxy_shape.pictures import nearest  # astropy is slow to load
        from benchmarks.galaxy_vae import pictures

        self.model.eval()
        sky, rows = galaxies.load(self.folder), self.evaluation_rows
        snr = np.asarray(sky.labels["snr"][rows])
        chosen = rows[nearest(snr, pictures.SIGNAL_TO_NOISE)]
        padded = np.resize(chosen, self.evaluation_batch)
        mean, _ = self._predict(torch.from_numpy(self.stamps[padded]).to(self.ranks.device))
        noise = self._normal(len(padded), "generated galaxies").to(self.ranks.device)
        reconstructed, generated = self._decode(mean), self._decode(self._made(noise))
        return pictures.panel(
            galaxies.parameters_of(self.definition.data),
            real=self.stamps[chosen],
            reconstructed=reconstructed[: len(chosen)].cpu().numpy(),
            generated=generated.cpu().numpy(),
        )

    def predict_noise(self) -> None:
        """Encode and decode once in the shapes of an evaluation."""
        mean, _ = self._predict(self._synthetic(self.evaluation_batch)[0])
        self._decode(mean)

    def _made(self, noise: Tensor) -> Tensor:
        """Latents of new galaxies from N(0, 1), (n, latents) each."""
        return within_reach(eager_sampler(self.model.flow)(noise))

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
        normal = torch.zeros(count, self.definition.model["latents"], device=self.ranks.device)
        return images.abs(), normal

    def _measured(self, images: Tensor) -> Tensor:
        data = self.definition.data
        return properties.measured(images, data["bands"], data["pixel_scale_arcsec"])

    def _normal(self, count: int, purpose: str, *keys: int) -> Tensor:
        """N(0, 1) for ``count`` latent vectors, the same on every rank."""
        random = generator(self.config.seed, purpose, *keys)
        shape = (count, self.definition.model["latents"])
        return torch.from_numpy(random.standard_normal(shape, dtype=np.float32))


def within_reach(values: Tensor) -> Tensor:
    """Finite: a flow that is far from its latents overflows, which is bad and no error."""
    return values.nan_to_num(nan=OVERFLOW).clamp(-OVERFLOW, OVERFLOW)
