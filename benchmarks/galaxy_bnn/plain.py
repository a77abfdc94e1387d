"""The Bayesian network in plain code: the reference is timed against it.

It is galaxy_shape's plain network, as published, with Gaussian weights: default memory layout,
default Adam, no compilation, no autocast, float32. The tests compare the two.
"""

from cepheid.benchmarks.galaxy_bnn.estimators import PLAIN
from cepheid.benchmarks.galaxy_bnn.task import GalaxyBnn
from cepheid.benchmarks.galaxy_shape.plain import make_network_like_reference
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules.errors import UserError


def create(config: RunConfig, ranks: TorchRanks) -> "PlainGalaxyBnn":
    """Return the task; ``config`` has precision=fp32 and compile=off.

    Raises UserError for an estimator other than one draw for the whole batch.
    """
    return PlainGalaxyBnn(config, ranks)


class PlainGalaxyBnn(GalaxyBnn):
    """The task with this network and torch's default optimizer."""

    network = staticmethod(make_network_like_reference)
    fused_optimizer = None

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        if (estimator := self.hyperparameters.weight_sampling) != PLAIN:
            raise UserError(
                f"--set weight_sampling={estimator}: the plain network draws its weights once for "
                "the whole batch; fix: leave the setting out, or name other measurements than "
                "step with --only"
            )
