"""galaxy_shape in PyTorch: the ellipticity (e1, e2) of a galaxy, as a bivariate normal."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from cepheid.benchmarks.galaxy_shape.model import (
    make_channels_last_network,
    negative_log_likelihood,
    sum_metrics,
)
from cepheid.benchmarks.galaxy_shape.stages import cut_stages, sum_losses
from cepheid.reference.galaxies import science
from cepheid.reference.galaxies.shapes import name_metrics
from cepheid.reference.galaxies.stamps import Galaxies
from cepheid.reference.run.report import Table
from cepheid.reference.torch import stamps as of_stamps
from cepheid.reference.torch.workload import (
    Evaluation,
    Inference,
    Inputs,
    Network,
    Norms,
    OnProgress,
    Recipe,
    Result,
    Stages,
    Workload,
)


def make_network(shape: Galaxies, norms: Norms) -> nn.Module:
    """Return the network of the definition."""
    make_norm = norms.make(**shape.config.norm_options)
    return make_channels_last_network(**shape.network_options, make_norm=make_norm)


def make_optimizer(shape: Galaxies, model: nn.Module) -> Recipe:
    """Return Adam for all parameters."""
    return of_stamps.make_adam(shape, model.parameters())


def compute_loss(shape: Galaxies, network: Network, stamps: Tensor, labels: Tensor) -> Tensor:
    """Return the mean negative log likelihood of labels (n, d), in nats."""
    mean, scale = network(stamps)
    return negative_log_likelihood(mean, scale, labels).mean()


def predict(shape: Galaxies, network: Network, stamps: Tensor) -> tuple[Tensor, Tensor]:
    """Return means (n, d) and scale matrices (n, d, d) for stamps (n, bands, y, x)."""
    return network(stamps)


def evaluate(shape: Galaxies, inference: Inference) -> Evaluation:
    """Return the metrics of the whole evaluation set.

    They are the RMSE of (e1, e2), the mean negative log likelihood in nats, and the share of
    galaxies inside the 68% and 95% regions.
    """
    data = inference.data
    sums = inference.make_sums(5)
    for rows, count in data.list_batches(inference.size):
        mean, scale = inference(data.stamps[rows])
        labels = inference.to_device(data.labels[rows])
        sums += sum_metrics(mean[:count], scale[:count], labels[:count])
    return Evaluation(name_metrics(inference.ranks.sum(sums).tolist(), data.labels.shape[1]))


def report(shape: Galaxies, result: Result, on_progress: OnProgress) -> Sequence[Table]:
    """Return shear bias, PSF leakage, and errors by signal-to-noise and size."""
    return science.make_report(result.data, of_stamps.make_estimate(result.inference), on_progress)


def draw_posteriors(shape: Galaxies, result: Result) -> Any:
    """Return a figure of the estimates of some galaxies of the evaluation set."""
    from cepheid.reference.galaxies import pictures  # astropy is slow to import

    return pictures.draw_posteriors(result.data, of_stamps.make_estimate(result.inference))


WORKLOAD: Workload[Galaxies] = Workload(
    read_shape=Galaxies.read,
    make_network=make_network,
    norms=lambda shape: Inputs(),
    stages=Stages(cut=cut_stages, sum_losses=sum_losses),
    make_optimizer=make_optimizer,
    compute_loss=compute_loss,
    predict=predict,
    make_noise=of_stamps.make_noise,
    open_data=of_stamps.TorchStamps,
    is_static=True,
    averages_early=True,
    prepare_update=of_stamps.prepare_update,
    evaluate=evaluate,
    report=report,
    pictures=draw_posteriors,
)
