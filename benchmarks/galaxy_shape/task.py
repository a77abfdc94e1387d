"""galaxy_shape in PyTorch: build, train, evaluate."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from benchmarks.galaxy_shape.framework_free import ShapeTask
from benchmarks.galaxy_shape.model import ShapeNetwork, negative_log_likelihood, whitened
from benchmarks.galaxy_shape.science import RADIUS_SQUARED
from reference.run.config import RunConfig
from reference.run.report import Table
from reference.torch import precision
from reference.torch.distributed import TorchRanks
from reference.torch.task import TorchTask

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def create(config: RunConfig, ranks: TorchRanks) -> "GalaxyShape":
    """The task that the timed loop drives."""
    return GalaxyShape(config, ranks)


def channels_last_network(**options: Any) -> ShapeNetwork:
    """Convolutions on CPUs and tensor cores prefer channels last; the numbers stay the same."""
    network = ShapeNetwork(**options)
    convert_conv2d_weight_memory_format(network, torch.channels_last)
    return network


class GalaxyShape(TorchTask, ShapeTask):
    """e1 and e2 of a galaxy from its six-band stamp, as a bivariate normal."""

    network: Callable[..., nn.Module] = staticmethod(channels_last_network)
    fused_optimizer: bool | None = True  # None: what torch takes by itself

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        ShapeTask.__init__(self, config)
        TorchTask.__init__(self, config, ranks)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam with the values of the configuration."""
        values = self.config.hyperparameters
        return torch.optim.Adam(
            self.parameter_groups(),
            lr=float(values["opt_base_learning_rate"]),
            betas=(float(values["opt_adam_beta_1"]), float(values["opt_adam_beta_2"])),
            eps=float(values["opt_adam_epsilon"]),
            fused=self.fused_optimizer,
        )

    def make_network(self) -> nn.Module:
        """The network of the definition, initialised from torch's global generator."""
        return self.network(**self.layout())

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What the optimizer trains, group by group."""
        return [{"params": list(self.model.parameters())}]

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

    @torch.no_grad()
    def predicted(self, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means (n, d) and scale matrices (n, d, d) of one evaluation batch, as it is stored."""
        mean, scale = self._predict(torch.from_numpy(stamps).to(self.ranks.device))
        return mean.cpu().numpy(), scale.cpu().numpy()

    def _outputs(self, stamps: Tensor) -> tuple[Tensor, Tensor]:
        return self._posterior(stamps)

    def _posterior(self, stamps: Tensor) -> tuple[Tensor, Tensor]:
        with precision.autocast(self.precision, self.ranks.device):
            mean, scale = self.model(stamps)
        return mean, scale

    def _mean_loss(self, stamps: Tensor, labels: Tensor) -> Tensor:
        return negative_log_likelihood(*self._posterior(stamps), labels).mean()

    def _synthetic(self, count: int) -> tuple[Tensor, Tensor]:
        data, model = self.definition.data, self.definition.model
        shape = (count, len(data["bands"]), data["pixels"], data["pixels"])
        # A generator of its own: warming up must not move the global one.
        noise = torch.Generator().manual_seed(0)
        stamps = torch.randn(shape, generator=noise).to(torch.float16)  # as they are stored
        labels = torch.zeros(count, len(model["targets"]))
        return stamps.to(self.ranks.device), labels.to(self.ranks.device)


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
