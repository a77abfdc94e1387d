"""galaxy_bnn in PyTorch: the shape network with Gaussian weights."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from cepheid.benchmarks.galaxy_bnn.framework_free import (
    Hyperparameters,
    Predictive,
    draw_shifted_stamps,
    mix_draws,
    name_mixture_metrics,
    sum_mixtures,
)
from cepheid.benchmarks.galaxy_bnn.model import WeightNoise, kl_divergence, make_bayesian
from cepheid.benchmarks.galaxy_shape import task as galaxy_shape
from cepheid.benchmarks.galaxy_shape.model import negative_log_likelihood
from cepheid.benchmarks.galaxy_shape.stages import cut_stages, sum_losses
from cepheid.benchmarks.galaxy_shape.task import make_optimizer, predict
from cepheid.reference.galaxies import science
from cepheid.reference.galaxies.stamps import Galaxies
from cepheid.reference.run.report import Table
from cepheid.reference.torch import stamps as of_stamps
from cepheid.reference.torch.workload import (
    Evaluation,
    Inference,
    Inputs,
    Moment,
    Network,
    Norms,
    OnProgress,
    Result,
    Seat,
    Stages,
    Workload,
)


def get_noise(network: Any) -> WeightNoise:
    """Return the noise of a network on its device, which carries it from the first call."""
    noise: WeightNoise | None = getattr(network, "weight_noise", None)
    if noise is None:
        noise = network.weight_noise = WeightNoise(network)
    return noise


class ShiftedStamps(of_stamps.TorchStamps):
    """The stamps, and this rank's galaxies of the evaluation set under a brighter sky."""

    def __init__(self, shape: Galaxies, seat: Seat) -> None:
        super().__init__(shape, seat)
        self.shifted = draw_shifted_stamps(self.definition, self.share.rank, self.share.ranks)


def make_network(shape: Galaxies, norms: Norms) -> nn.Module:
    """Return the network of galaxy_shape with Gaussian weights."""
    return make_gaussian(shape, galaxy_shape.make_network(shape, norms))


def make_gaussian(shape: Galaxies, network: nn.Module) -> nn.Module:
    """Give the weights of a shape network their posteriors; return it."""
    make_bayesian(network, shape.definition.model["initial_relative_scale"])
    return network


def draw_weights(shape: Galaxies, network: Any, moment: Moment) -> None:
    """Draw all weights once for the whole global batch."""
    get_noise(network).draw(shape.config.seed, "weights", moment.samples)


def compute_loss(shape: Galaxies, network: Network, stamps: Tensor, labels: Tensor) -> Tensor:
    """Return mean NLL plus KL divergence over the samples, in nats (equation 2 of the paper).

    Stamps are (n, bands, pixels, pixels), labels (n, d).
    """
    likelihood = compute_likelihood_loss(shape, network, stamps, labels)
    return likelihood + compute_kl_per_sample(shape, network.module)


def compute_likelihood_loss(
    shape: Galaxies, network: Network, stamps: Tensor, labels: Tensor
) -> Tensor:
    """Return the mean negative log likelihood alone; shapes as ``compute_loss``."""
    return negative_log_likelihood(*predict(shape, network, stamps), labels).mean()


def compute_kl_per_sample(shape: Galaxies, network: nn.Module) -> Tensor:
    """Return KL(posterior ‖ prior) over the training samples, a scalar in nats."""
    divergence = kl_divergence(network, shape.definition.model["prior_scale"])
    return divergence / shape.values.kl_divided_by_samples


def cut_gaussian(shape: Galaxies, network: Any, count: int) -> Sequence[Any]:
    """Return stages of the network, whose weights add their KL divergence to each loss."""
    return cut_stages(shape, network, count, partial(compute_kl_per_sample, shape))


def predict_mixture(shape: Galaxies, inference: Inference, stamps: np.ndarray) -> Predictive:
    """Return the mixture over the weight draws of an evaluation, for stamps (n, bands, y, x)."""
    noise = get_noise(inference.network.module)
    return mix_draws(
        of_stamps.make_estimate(inference),
        partial(noise.draw, shape.config.seed),
        shape.definition.model["weight_draws"],
        stamps,
    )


def estimate(
    shape: Galaxies, inference: Inference, stamps: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean (n, d) and scale matrix (n, d, d) of the mixture, for n stamps."""
    predictive = predict_mixture(shape, inference, stamps)
    return predictive.mean, predictive.scale


def evaluate(shape: Galaxies, inference: Inference) -> Evaluation:
    """Return the metrics of the predictive mixture over the whole evaluation set.

    They are error, likelihood and coverage, the epistemic part, and the epistemic part under
    the shifted sky.
    """
    data = inference.data
    rows = slice(data.train_samples + data.share.rank, None, data.share.ranks)
    mix = partial(predict_mixture, shape, inference)
    sums = sum_mixtures(mix, data.stamps[rows], data.labels[rows], data.shifted)
    total = inference.ranks.sum(inference.to_device(sums)).tolist()
    metrics = name_mixture_metrics(total, data.labels.shape[1])
    kl = compute_kl_per_sample(shape, inference.network.module).item()
    return Evaluation({**metrics, "kl_per_sample": kl})


def report(shape: Galaxies, result: Result, on_progress: OnProgress) -> Sequence[Table]:
    """Return shear bias, PSF leakage, and errors by signal-to-noise and size."""
    estimate_mixture = partial(estimate, shape, result.inference)
    return science.make_report(result.data, estimate_mixture, on_progress)


def draw_posteriors(shape: Galaxies, result: Result) -> Any:
    """Return a figure of the estimates of some galaxies, with the mean of each draw."""
    from cepheid.reference.galaxies import pictures  # astropy is slow to import

    return pictures.draw_posteriors(
        result.data,
        partial(estimate, shape, result.inference),
        lambda stamps: predict_mixture(shape, result.inference, stamps).means,
    )


WORKLOAD: Workload[Galaxies] = Workload(
    read_shape=partial(Galaxies.read, kind=Hyperparameters),
    make_network=make_network,
    norms=lambda shape: Inputs(),
    stages=Stages(cut=cut_gaussian, sum_losses=sum_losses),
    make_optimizer=make_optimizer,
    compute_loss=compute_loss,
    predict=predict,
    make_noise=of_stamps.make_noise,
    before_step=draw_weights,
    open_data=ShiftedStamps,
    is_static=True,
    averages_early=True,
    prepare_update=of_stamps.prepare_update,
    evaluate=evaluate,
    report=report,
    pictures=draw_posteriors,
)
