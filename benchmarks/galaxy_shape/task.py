"""galaxy_shape in PyTorch: build, train, evaluate."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cepheid.benchmarks.galaxy_shape.model import (
    make_channels_last_network,
    negative_log_likelihood,
    sum_metrics,
)
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.galaxies import TorchShapeTask
from cepheid.reference.torch.ranks.distributed import TorchRanks


def create(config: RunConfig, ranks: TorchRanks) -> "GalaxyShape":
    """Return the task for the timed loop."""
    return GalaxyShape(config, ranks)


class GalaxyShape(TorchShapeTask):
    """The ellipticity (e1, e2) of a galaxy from its six-band stamp, as a bivariate normal."""

    network: Callable[..., nn.Module] = staticmethod(make_channels_last_network)

    def make_network(self) -> nn.Module:
        """Return the network of the definition, initialised from torch's global generator."""
        return self.network(**self.network_options())

    def compute_loss(self, stamps: Tensor, labels: Tensor, /) -> Tensor:
        """Return the mean negative log likelihood of labels (n, d), in nats."""
        return negative_log_likelihood(*self.predict(stamps), labels).mean()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the whole evaluation set.

        They are the RMSE of (e1, e2), the mean negative log likelihood in nats, and the share of
        galaxies inside the 68% and 95% regions.
        """
        self.model.eval()
        rows = self.evaluation_rows[self.ranks.rank :: self.ranks.world_size]
        sums = torch.zeros(5, dtype=torch.float64, device=self.ranks.device)
        for padded, count in self.iterate_batches(rows):
            stamps, labels = map(self.to_device, self.read_arrays(padded))
            mean, scale = self.compiled_predict(stamps)
            sums += sum_metrics(mean[:count], scale[:count], labels[:count])
        return self.quality(self.ranks.sum(sums).tolist())
