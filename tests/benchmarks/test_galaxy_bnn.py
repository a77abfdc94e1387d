"""What is special to galaxy_bnn: the posterior of the weights, its noise, the mixture."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from cepheid.benchmarks.galaxy_bnn.framework_free import Predictive, draw_under_noisier_sky
from cepheid.benchmarks.galaxy_bnn.model import (
    GaussianWeight,
    WeightNoise,
    iterate_gaussian_weights,
    kl_divergence,
    make_bayesian,
)
from cepheid.benchmarks.galaxy_shape.model import (
    make_channels_last_network,
    negative_log_likelihood,
)
from cepheid.benchmarks.galaxy_shape.plain import PlainShapeNetwork, rotate_as_published
from cepheid.reference.data.galaxies import SkyParameters, draw
from cepheid.reference.run.config import configure
from cepheid.reference.torch.batch_norm import GroupBatchNorm2d
from cepheid.rules import definition
from tests.tasks import assert_same_gradients

SMALL: dict[str, Any] = {
    "bands": 6, "pixels": 16, "filters": (4, 8), "targets": 2, "prelu": "position",
    "input_scaling": "asinh",
}  # fmt: skip
NORM: dict[str, Any] = {"epsilon": 1e-3, "momentum": 0.99}
MAKE_NORM = partial(GroupBatchNorm2d, **NORM)


def bayesian(relative_scale: float = 0.3) -> Any:
    torch.manual_seed(0)
    network = make_channels_last_network(**SMALL, make_norm=MAKE_NORM)
    make_bayesian(network, relative_scale)
    return network


def test_the_plain_network_has_the_same_loss_and_gradients() -> None:
    ours = bayesian()
    plain: Any = PlainShapeNetwork(**SMALL, **NORM)
    make_bayesian(plain, 0.3)
    slopes = [each.detach() for each in ours.parameters() if each.ndim == 3]
    noises = [torch.randn_like(posterior.noise) for _, posterior in iterate_gaussian_weights(ours)]
    turned = rotate_as_published([*slopes, *noises])[len(slopes) :]  # slopes tell the sides
    for network, parts in ((ours, noises), (plain, turned)):
        for (_, posterior), noise in zip(iterate_gaussian_weights(network), parts, strict=True):
            posterior.noise.copy_(noise)
    with torch.no_grad():
        for mine, theirs in zip(
            plain.parameters(), rotate_as_published(ours.parameters()), strict=True
        ):
            mine.copy_(theirs)
    stamps, labels = 30 * torch.randn(4, 6, 16, 16), torch.rand(4, 2)
    losses = []
    for network, images in ((ours, stamps.flip(2, 3)), (plain, stamps)):
        mean, scale = network(images)
        likelihood = negative_log_likelihood(mean, scale, labels).mean()
        loss = likelihood + kl_divergence(network, 1.0) / 1000
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    gradients = rotate_as_published([parameter.grad for parameter in ours.parameters()])
    assert_same_gradients(plain, gradients)


def outputs(network: Any, stamps: Any) -> Any:
    """Means and scale entries, (batch, 5), without the running statistics moving."""
    with torch.no_grad():
        mean, scale = network(stamps)
    return torch.cat([mean, scale[:, [0, 1, 1], [0, 0, 1]]], dim=1)


def test_posteriors_start_at_a_share_of_the_he_scale() -> None:
    for mean, posterior in iterate_gaussian_weights(bayesian(relative_scale=0.05)):
        expected = torch.full_like(mean, 0.05 * math.sqrt(2 / mean[0].numel()))
        torch.testing.assert_close(posterior.scale, expected, rtol=1e-4, atol=0)


def test_the_kl_divergence_is_divided_by_the_training_samples() -> None:
    for scale in definition.scales("galaxy_bnn"):
        chosen = definition.load("galaxy_bnn", scale)
        logged = configure(chosen).hyperparameters["kl_divided_by_samples"]
        assert logged == chosen.train_samples
        assert chosen.hyperparameters["kl_divided_by_samples"].is_constant


def test_the_network_is_the_deterministic_one_of_the_weights_that_are_drawn() -> None:
    deterministic = make_channels_last_network(**SMALL, make_norm=MAKE_NORM).eval()
    stamps = torch.randn(3, 6, 16, 16)
    network = bayesian().eval()
    torch.testing.assert_close(outputs(network, stamps), outputs(deterministic, stamps))
    matrices = [parameter for parameter in deterministic.parameters() if parameter.ndim in (2, 4)]
    for matrix, (mean, posterior) in zip(matrices, iterate_gaussian_weights(network), strict=True):
        matrix.data.copy_(mean + posterior.scale * posterior.noise)
    stamps = torch.randn(3, 6, 16, 16)
    torch.testing.assert_close(outputs(network, stamps), outputs(deterministic, stamps))


def test_noise_is_repeated_by_its_keys_only() -> None:
    network = bayesian()
    noise = WeightNoise(network)
    drawn = {}
    for keys in ((1, "weights", 8), (1, "weights", 16), (2, "weights", 8), (1, "other", 8)):
        noise.draw(*keys)
        drawn[keys] = noise.values.clone()
    noise.draw(1, "weights", 8)
    assert torch.equal(noise.values, drawn[1, "weights", 8])
    for keys, values in drawn.items():
        assert torch.equal(values, noise.values) == (keys == (1, "weights", 8))
    # Each part of the vector belongs to one weight, in that weight's own order in memory.
    parts = [posterior.noise for _, posterior in iterate_gaussian_weights(network)]
    assert sum(part.numel() for part in parts) == len(noise.values)
    assert sum(part.square().sum() for part in parts) == pytest.approx(
        noise.values.square().sum().item(), rel=1e-5
    )
    for mean, posterior in iterate_gaussian_weights(network):
        assert posterior.noise.stride() == mean.stride()


def test_noise_and_scale_get_their_gradients() -> None:
    weight = GaussianWeight(torch.zeros(1), 0.1)
    weight.noise = torch.tensor([2.0])
    weight(torch.zeros(1)).backward()
    # d(softplus(s)·ε)/ds = ε·sigmoid(s), with sigmoid(s) = 1 − exp(−σ).
    assert weight.untransformed_scale.grad is not None
    assert weight.untransformed_scale.grad.item() == pytest.approx(2 * -math.expm1(-0.1))


def mixture(draws: int = 4, galaxies: int = 5) -> Predictive:
    random = np.random.default_rng(0)
    scales = np.tril(random.normal(size=(draws, galaxies, 2, 2)), -1)
    scales[..., [0, 1], [0, 1]] = 0.1 + np.abs(random.normal(size=(draws, galaxies, 2)))
    return Predictive(random.normal(size=(draws, galaxies, 2)), scales)


def test_the_mixtures_likelihood_and_covariance_are_torchs() -> None:
    predictive = mixture()
    labels = np.random.default_rng(1).normal(size=(5, 2))
    means, scales = torch.tensor(predictive.means), torch.tensor(predictive.scales)
    torchs = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(5, 4)),
        torch.distributions.MultivariateNormal(
            means.transpose(0, 1), scale_tril=scales.transpose(0, 1)
        ),
    )
    expected = -torchs.log_prob(torch.tensor(labels))
    np.testing.assert_allclose(predictive.negative_log_likelihood(labels), expected, rtol=1e-6)
    np.testing.assert_allclose(predictive.mean, torchs.mean, rtol=1e-6)
    covariance = predictive.scale @ predictive.scale.swapaxes(1, 2)
    variances = covariance.diagonal(axis1=1, axis2=2)
    np.testing.assert_allclose(variances, torchs.variance, rtol=1e-6)


def test_draws_that_agree_have_no_epistemic_part() -> None:
    one = mixture(draws=1)
    same = Predictive(one.means.repeat(8, axis=0), one.scales.repeat(8, axis=0))
    labels = np.random.default_rng(1).normal(size=(5, 2))
    alone = negative_log_likelihood(
        torch.tensor(one.means[0]), torch.tensor(one.scales[0]), torch.tensor(labels)
    )
    np.testing.assert_allclose(same.negative_log_likelihood(labels), alone)
    assert same.epistemic_share().max() < 1e-20
    assert 0 < mixture().epistemic_share().min() < mixture().epistemic_share().max() < 1


def test_a_noisier_sky_shows_the_same_galaxies_with_more_noise() -> None:
    parameters = SkyParameters(samples=4)
    rows = range(1, 4, 2)
    usual, noisier = draw(parameters, rows), draw_under_noisier_sky(parameters, rows, 3.0)
    assert noisier.shape == usual["stamps"].shape
    assert noisier.dtype == usual["stamps"].dtype
    noise = noisier.astype(float) - usual["noise_free"]
    edge = noise[:, :, :8]  # where there is next to no light
    assert edge.std() == pytest.approx(3, rel=0.05)
    assert abs(edge.mean()) < 0.1
