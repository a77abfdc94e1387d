"""galaxy_shape in PyTorch: build, train, evaluate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from benchmarks.galaxy_shape.framework_free import ShapeTask
from benchmarks.galaxy_shape.model import ShapeNetwork, negative_log_likelihood, whitened
from benchmarks.galaxy_shape.science import RADIUS_SQUARED
from reference import execution, precision
from reference.compilation import Compiled
from reference.config import Execution, RunConfig
from reference.distributed import Ranks
from reference.report import Table
from reference.seeding import seed_everything
from rules.definition import Block

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def create(config: RunConfig, ranks: Ranks) -> "GalaxyShape":
    """The task that the timed loop drives."""
    return GalaxyShape(config, ranks)


def channels_last_network(**options: Any) -> ShapeNetwork:
    """Convolutions on CPUs and tensor cores prefer channels last; the numbers stay the same."""
    network = ShapeNetwork(**options)
    convert_conv2d_weight_memory_format(network, torch.channels_last)
    return network


class GalaxyShape(ShapeTask):
    """e1 and e2 of a galaxy from its six-band stamp, as a bivariate normal."""

    network: Callable[..., nn.Module] = staticmethod(channels_last_network)
    fused_optimizer: bool | None = True  # None: what torch takes by itself

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        super().__init__(config)
        self.ranks = ranks
        self.batch_per_rank = ranks.share_of(config.global_batch_size)

    def build(self) -> int:
        """Model and optimizer, from the seed; returns the number of trainable parameters."""
        seed_everything(self.config.seed)
        self.model = self.made_network().to(self.ranks.device)
        values = self.config.hyperparameters
        self.optimizer = torch.optim.Adam(
            self.parameter_groups(),
            lr=float(values["opt_base_learning_rate"]),
            betas=(float(values["opt_adam_beta_1"]), float(values["opt_adam_beta_2"])),
            eps=float(values["opt_adam_epsilon"]),
            fused=self.fused_optimizer,
        )
        asked = self.config.execution
        insist = asked.compile == "on"
        self._loss = Compiled(self._mean_loss, enabled=insist, insist=insist)
        self._predict = Compiled(self._posterior, enabled=insist, insist=insist)
        self._compute_as(asked)
        return sum(parameter.numel() for parameter in self.model.parameters())

    def made_network(self) -> nn.Module:
        """The network of the definition, initialised from torch's global generator."""
        return self.network(**self.layout())

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What the optimizer trains, group by group."""
        return [{"params": list(self.model.parameters())}]

    def warm_up(self) -> None:
        """Settle how to compute, then one step and one prediction on noise; weights, statistics and
        optimizer are put back."""
        before = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.model.train()
        self._step_on_noise(
            execution.settled(self.config.execution, self._step_on_noise, self.ranks)
        )
        self.optimizer.step()
        self.model.eval()
        with torch.no_grad():
            self.predict_noise()
        self.model.load_state_dict(before)
        self.optimizer.zero_grad()
        self.optimizer.state.clear()

    def predict_noise(self) -> None:
        """Once all that an evaluation computes, in its shapes."""
        self._predict(self._synthetic(self.evaluation_batch)[0])

    def implementation(self) -> Mapping[str, Any]:
        """What a reader asks for beside a time."""
        return {
            "framework": f"torch {torch.__version__}",
            "device": self._device_name(),
            "ranks": self.ranks.world_size,
            "threads_per_rank": torch.get_num_threads(),
            "precision": str(self.precision).removeprefix("torch."),
            "training_step": self._loss.note,
            "evaluation": self._predict.note,
            "execution": asdict(self.execution),
        }

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        """Steps up to ``block.samples``; returns the mean loss over the block, on every rank."""
        self.model.train()
        losses = []
        while self.samples < block.samples:
            losses.append(self.step())
            on_samples(self.samples)
        total = self.ranks.sum(torch.stack(losses).double().sum())
        return float(total) / len(losses) / self.ranks.world_size

    def step(self) -> Tensor:
        """One optimizer step on the next global batch; returns this rank's detached mean loss."""
        loss = self.loss_and_gradients()
        self.ranks.average_gradients(self.model.parameters())
        self.apply_gradients()
        return loss

    def loss_and_gradients(self) -> Tensor:
        """Forward and backward on this rank's share of the next global batch."""
        stamps, labels = self.next_batch()
        loss: Tensor = self._loss(stamps, labels)
        loss.backward()
        return loss.detach()

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """This rank's share of the global batch, each stamp flipped or transposed at random."""
        first = self.samples + self.ranks.rank * self.batch_per_rank
        positions, orientations = self.order.take(first, self.batch_per_rank)
        return self.read(self.training_rows[positions], orientations)

    def read(
        self, rows: np.ndarray, orientations: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor]:
        """Stamps and labels as ``read_arrays`` has them, on this rank's device."""
        stamps, labels = self.read_arrays(rows, orientations)
        device = self.ranks.device
        return torch.from_numpy(stamps).to(device), torch.from_numpy(labels).to(device)

    def apply_gradients(self) -> None:
        """Clip, set the rate for the samples trained after this step, and step."""
        values = self.config.hyperparameters
        self.samples += self.config.global_batch_size
        torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), float(values["opt_gradient_clip_norm"])
        )
        rate = self.learning_rate(float(values["opt_base_learning_rate"]))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """RMSE of (e1, e2), mean negative log likelihood in nats, and the share of galaxies inside
        the 68% and 95% regions, over the whole evaluation set."""
        self.model.eval()
        rows = self.evaluation_rows[self.ranks.rank :: self.ranks.world_size]
        sums = torch.zeros(5, dtype=torch.float64, device=self.ranks.device)
        for padded, count in self.in_batches(rows):
            stamps, labels = self.read(padded)
            mean, scale = self._predict(stamps)
            sums += _sums_of_metrics(mean[:count], scale[:count], labels[:count])
        return self.quality(self.ranks.sum(sums).tolist())

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Shear bias, PSF leakage, and errors by signal-to-noise and size; see ``science``."""
        self.model.eval()
        return super().report(on_progress)

    def pictures(self) -> "Figure":
        """What the network says of some galaxies of the evaluation set; see ``pictures``."""
        self.model.eval()
        return super().pictures()

    def synchronize(self) -> None:
        """Wait for this rank's device and for all other ranks."""
        self.ranks.barrier()

    def state(self) -> dict[str, Any]:
        """All that going on needs: weights, statistics, optimizer, samples trained."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "samples": self.samples,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``, on a task that was built with the same configuration."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.samples = int(state["samples"])

    @torch.no_grad()
    def predicted(self, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means (n, d) and scale matrices (n, d, d) of one evaluation batch, as it is stored."""
        mean, scale = self._predict(torch.from_numpy(stamps).to(self.ranks.device))
        return mean.cpu().numpy(), scale.cpu().numpy()

    def _posterior(self, stamps: Tensor) -> tuple[Tensor, Tensor]:
        with precision.autocast(self.precision, self.ranks.device):
            mean, scale = self.model(stamps)
        return mean, scale

    def _mean_loss(self, stamps: Tensor, labels: Tensor) -> Tensor:
        return negative_log_likelihood(*self._posterior(stamps), labels).mean()

    def _compute_as(self, how: Execution) -> None:
        """Compute as ``how`` says from now on."""
        self.execution = how
        execution.use_threads(how)
        self.precision = precision.TYPES.get(how.precision, torch.float32)  # until it is settled
        self._loss.enabled = self._predict.enabled = how.compile == "on"

    def _step_on_noise(self, how: Execution) -> str:
        self._compute_as(how)
        self._loss(*self._synthetic(self.batch_per_rank)).backward()
        return self._loss.failure

    def _synthetic(self, count: int) -> tuple[Tensor, Tensor]:
        data, model = self.definition.data, self.definition.model
        shape = (count, len(data["bands"]), data["pixels"], data["pixels"])
        # A generator of its own: warming up must not move the global one.
        noise = torch.Generator().manual_seed(0)
        stamps = torch.randn(shape, generator=noise).to(torch.float16)  # as they are stored
        labels = torch.zeros(count, len(model["targets"]))
        return stamps.to(self.ranks.device), labels.to(self.ranks.device)

    def _device_name(self) -> str:
        if self.ranks.device.type == "cuda":
            return torch.cuda.get_device_name(self.ranks.device)
        return "cpu"


def _sums_of_metrics(mean: Tensor, scale: Tensor, labels: Tensor) -> Tensor:
    """Sums over a batch, in float64: squared errors, NLL, inside 68%, inside 95%, samples."""
    radius_squared = whitened(mean, scale, labels).double().square().sum(1)
    return torch.stack(
        [
            (mean - labels).double().square().sum(),
            negative_log_likelihood(mean, scale, labels).double().sum(),
            (radius_squared < RADIUS_SQUARED["coverage_68"]).double().sum(),
            (radius_squared < RADIUS_SQUARED["coverage_95"]).double().sum(),
            torch.tensor(float(len(labels)), dtype=torch.float64, device=labels.device),
        ]
    )
