"""What is special to galaxy_vae: the published layout, flux scaling, properties, quality."""

import copy
import dataclasses
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cepheid.benchmarks.galaxy_vae import quality
from cepheid.benchmarks.galaxy_vae.framework_free import OVERFLOW, Sizes, split_input
from cepheid.benchmarks.galaxy_vae.model import (
    DoublingConv2d,
    FluxScaling,
    GalaxyVae,
    cut_off_overflow,
    kl_divergence,
    measure_properties,
    reconstruction_loss,
)
from cepheid.benchmarks.galaxy_vae.plain import make_plain
from cepheid.benchmarks.galaxy_vae.task import prepare_update
from cepheid.reference.galaxies import properties
from cepheid.reference.torch.batch_norm import GroupBatchNorm2d
from cepheid.reference.torch.workload import Update
from tests.tasks import assert_same_gradients, build
from tests.test_benchmark_contract import configuration

FULL = Sizes(
    bands=6, pixels=64, filters=(32, 64, 128, 256), latents=32, flow_layers=8,
    flow_hidden=(256, 256), prelu="position", batch_norm_epsilon=1e-3,
    batch_norm_momentum=0.99, mean_maxima=(1.59, 6.41, 12.15, 12.27, 8.73, 4.72),
)  # fmt: skip
BANDS, PIXEL_SCALE = "ugrizy", 0.2


def make_vae(sizes: Sizes) -> GalaxyVae:
    return GalaxyVae(sizes, partial(GroupBatchNorm2d, **sizes.norm_options))


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameters_are_the_published_ones_and_the_flow_starts_as_the_identity() -> None:
    model = make_vae(FULL)
    moving_statistics = sum(buffer.numel() for buffer in model.encoder.buffers())
    assert count(model.encoder) + moving_statistics == 2_545_880
    assert count(model.decoder) == 3_319_942
    assert count(model.flow) == 725_504
    noise = 30 * torch.randn(4, 32)  # far out, where a flow of random weights overflows
    torch.testing.assert_close(make_vae(FULL).flow.sample(noise), noise.flip(-1))


@pytest.mark.parametrize("training", [True, False])
def test_the_plain_network_has_the_same_loss_and_gradients(training: bool) -> None:
    ours = make_vae(dataclasses.replace(FULL, pixels=16, filters=(4, 8)))
    for parameter in ours.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)  # biases and the flow start at 0
    plain = make_plain(copy.deepcopy(ours))
    images, normal = 10 * torch.randn(4, 6, 16, 16), torch.randn(4, 32)
    losses = []
    for network in (ours, plain):
        network.train(training)
        mean, scale = network.encode(images)
        latents = mean + scale * normal
        scaled = network.decoder.flux_scaling(images).abs()
        loss = reconstruction_loss(network.decoder(latents), scaled) + kl_divergence(mean, scale)
        (loss - network.flow.log_prob(latents.detach())).mean().backward()
        losses.append(loss.mean().item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert count(plain) == count(ours)
    gradients = [each.grad for each in ours.parameters() if each.grad is not None]
    turned = [each.permute(2, 0, 1) if each.ndim == 3 else each for each in gradients]  # slopes
    assert_same_gradients(plain, turned)


def test_fluxes_are_scaled_as_published_and_come_back_from_logits() -> None:
    images = torch.tensor([-0.5, 0.0, 1e-3, 2.0, 300.0]).view(1, 1, 5)
    scaled = FluxScaling(dataclasses.replace(FULL, mean_maxima=(12.5,)))(images)
    torch.testing.assert_close(scaled, torch.tanh(torch.asinh(images / 5)))
    # From 1e-4 of the sky noise to the brightest pixel there is, in the faintest band.
    images = torch.logspace(-4, 2, 13).view(1, 1, 13)
    scaling = FluxScaling(dataclasses.replace(FULL, mean_maxima=(1.59,)))
    logits = torch.logit(copy.deepcopy(scaling).double()(images).double()).float()
    torch.testing.assert_close(scaling.inverse(logits), images, rtol=2e-3, atol=0)
    assert torch.isfinite(scaling.inverse(torch.tensor([[[1e9]]]))).all()


def test_stride_two_is_the_transpose_of_the_encoders_padding() -> None:
    # ⟨up(a), b⟩ = ⟨a, down(b)⟩ where down is the trunk's convolution of stride 2.
    layer = DoublingConv2d(3, 2)
    small, large = torch.randn(1, 3, 4, 4), torch.randn(1, 2, 8, 8)
    down = nn.functional.conv2d(large, layer.weight, stride=2, padding=1)
    assert layer.bias is not None
    up = layer(small) - layer.bias.view(-1, 1, 1)
    torch.testing.assert_close((up * large).sum(), (small * down).sum())


def test_reconstruction_loss_is_least_at_the_image() -> None:
    scaled = torch.rand(3, 6, 4, 4) * 0.9 + 0.05
    logits = torch.logit(scaled)
    least = reconstruction_loss(logits, scaled)
    entropy = torch.distributions.Bernoulli(scaled).entropy().sum((1, 2, 3))
    torch.testing.assert_close(least, entropy)
    assert (reconstruction_loss(logits + 0.1, scaled) > least).all()


def test_signals_keep_their_size_at_first() -> None:
    model = make_vae(dataclasses.replace(FULL, filters=(16, 16, 32, 64)))
    with torch.no_grad():
        mean, scale = model.encoder(torch.randn(8, 6, 64, 64))
        logits = model.decoder(torch.randn(8, 32))
    assert 0.2 < mean.std() < 5
    assert 0.3 < (logits - logits.mean(0)).std() < 10  # Keras' defaults: 0.003
    assert scale.median() == pytest.approx(0.05, rel=0.7)


# Properties ---------------------------------------------------------------------------------------


def gaussian_galaxy(
    *, sigma: float = 0.6, e1: float = 0.0, e2: float = 0.0, offset: float = 0.0, flux: float = 1e3
) -> Tensor:
    """Six bands, each twice as bright as the one before; sigma and offset along x in arcsec."""
    axis = (torch.arange(64, dtype=torch.float64) - 31.5) * PIXEL_SCALE
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    x = x - offset
    covariance = sigma**2 * torch.tensor([[1 + e1, e2], [e2, 1 - e1]], dtype=torch.float64)
    inverse = torch.linalg.inv(covariance)
    radius = inverse[0, 0] * x * x + 2 * inverse[0, 1] * x * y + inverse[1, 1] * y * y
    image = torch.exp(-radius / 2)
    image = flux * image / image.sum()
    images: Tensor = torch.stack([image * 2**band for band in range(6)])[None].float()
    return images


def name_properties(images: Tensor) -> dict[str, float]:
    found = properties.measure(images.numpy(), BANDS, PIXEL_SCALE)[0].tolist()
    return dict(zip(properties.list_properties(BANDS), found, strict=True))


def test_properties_in_torch_are_those_in_numpy() -> None:
    images = torch.cat([gaussian_galaxy(e1=0.3), gaussian_galaxy(flux=10.0, offset=0.3)]).half()
    np.testing.assert_allclose(
        measure_properties(images, BANDS, PIXEL_SCALE),
        properties.measure(images.numpy(), BANDS, PIXEL_SCALE),
        atol=1e-4,
    )


def test_properties_are_those_of_the_window_the_bands_and_the_frame_of_the_data() -> None:
    found = name_properties(gaussian_galaxy())
    window, sigma = properties.WINDOW_SIGMA_ARCSEC**2, 0.6**2
    assert found["size_arcsec"] == pytest.approx((sigma * window / (sigma + window)) ** 0.5, 1e-4)
    seen = 4e3 * window / (sigma + window)  # r is the third band
    assert found["magnitude"] == pytest.approx(-2.5 * np.log10(seen), abs=1e-4)
    assert (found["e1"], found["e2"]) == pytest.approx((0, 0), abs=1e-5)
    expected = 2.5 * np.log10(2)
    for galaxy in (gaussian_galaxy(), gaussian_galaxy(e1=0.4, e2=-0.2, sigma=0.9, flux=3.0)):
        found = name_properties(galaxy)
        assert [found[f"{a}_{b}"] for a, b in ("ug", "gr", "ri", "iz", "zy")] == pytest.approx(
            [expected] * 5, abs=1e-4
        )
    along_x, along_diagonal = (
        name_properties(gaussian_galaxy(e1=0.3)),
        name_properties(gaussian_galaxy(e2=0.3)),
    )
    assert along_x["e1"] > 0.2
    assert along_x["e2"] == pytest.approx(0, abs=1e-5)
    assert along_diagonal["e2"] == pytest.approx(along_x["e1"], rel=0.01)
    assert name_properties(gaussian_galaxy(e1=0.3, offset=0.1))["e1"] == pytest.approx(
        name_properties(gaussian_galaxy(e1=0.3))["e1"], rel=1e-3
    )
    assert np.isfinite(properties.measure(np.zeros((1, 6, 64, 64)), BANDS, 0.2)).all()


def test_distances_are_scipys_and_in_standard_deviations() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    first, second = random.normal(size=300), random.normal(0.3, 1.4, size=211)
    expected = scipy_stats.wasserstein_distance(first, second)
    assert properties.wasserstein(first, second) == pytest.approx(expected)
    real = np.random.default_rng(0).normal(0, 3, size=(500, 9))
    distances = properties.compute_distances(real + 0.6, real, BANDS)
    assert distances["z_y"] == pytest.approx(0.6 / real[:, -1].std())
    assert properties.average_distances({"e1": 0.1, "e2": 0.5}) == pytest.approx(0.3)


# Quality ------------------------------------------------------------------------------------------


def test_explained_signal_and_the_gain_of_the_right_gaussian_which_is_zero() -> None:
    signals = np.array([1e6, 1e4, 1.0])
    assert quality.explained_signal(np.zeros(3), signals, 32) == 1
    assert quality.explained_signal(signals, signals, 32) == pytest.approx(0)
    # A tenth of each bright galaxy is missing; the one below the noise floor hardly counts.
    errors = np.array([1e5, 1e3, 1.0])
    assert quality.explained_signal(errors, signals, 32) == pytest.approx(0.886, abs=0.005)
    # One galaxy of a million times its flux is one that is not explained, and no more than that.
    errors = np.array([1e18, 0.0, 0.0])
    assert quality.explained_signal(errors, signals, 32) == pytest.approx(0.5, abs=0.02)
    mean = torch.randn(4000, 4) @ torch.randn(4, 4)
    scale = torch.full_like(mean, 0.3)
    covariance = mean.T.cov(correction=0) + 0.09 * torch.eye(4)
    normal = torch.distributions.MultivariateNormal(mean.mean(0), covariance)
    nll = -normal.log_prob(mean + scale * torch.randn_like(mean))
    gain = quality.flow_gain(mean.numpy(), scale.numpy(), nll.numpy())
    assert gain == pytest.approx(0, abs=0.03)
    assert quality.gaussian_entropy(covariance.numpy()) == pytest.approx(
        normal.entropy().item(), rel=1e-4
    )


def test_what_overflows_is_finite_and_gradients_that_do_become_zero() -> None:
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    assert cut_off_overflow(values).tolist() == [OVERFLOW, OVERFLOW, -OVERFLOW, 1.0]
    convolution, bias = nn.Parameter(torch.zeros(2, 3, 2, 2)), nn.Parameter(torch.zeros(5))
    convolution.grad = torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last)
    bias.grad = torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), 2.0])
    convolution.grad[1, 2, 0, 1] = float("nan")
    kept = convolution.grad.clone()
    unused = nn.Parameter(torch.zeros(1))
    groups: list[dict[str, Any]] = [{"params": [convolution, unused, bias]}, {"params": [unused]}]
    settings = SimpleNamespace(clip_norm=lambda prefix: 1.0, learning_rate=lambda *place: 0.1)
    shape: Any = SimpleNamespace(values=settings)
    prepare_update(shape, Update(8, groups, lambda *limits: None))
    assert torch.equal(convolution.grad, kept.nan_to_num(0, 0, 0))
    assert bias.grad.tolist() == [1, 0, 0, 0, 2]


# Pictures -----------------------------------------------------------------------------------------


def test_each_real_galaxy_stands_above_a_new_one_of_like_brightness() -> None:
    pytest.importorskip("matplotlib", reason="needs the extra site")
    pytest.importorskip("galsim", reason="needs the extra galsim")
    from cepheid.benchmarks.galaxy_vae import pictures
    from cepheid.reference.data.galaxies import SkyParameters
    from cepheid.reference.data.sky import colour

    parameters = SkyParameters(samples=8)
    real = np.concatenate([gaussian_galaxy(flux=flux).numpy() for flux in (10.0, 1e3)])
    generated = np.concatenate([gaussian_galaxy(flux=flux).numpy() for flux in (900.0, 5.0, 11.0)])
    figure = pictures.draw_panel(parameters, real, real, generated)
    shown = [np.asarray(axes.get_images()[0].get_array()) for axes in figure.axes]
    assert len(shown) == 6
    expected = colour.compose_colours(generated[[2, 0]], parameters)[:, 16:48, 16:48]
    assert np.array_equal(np.stack(shown[4:]), expected)


def test_a_noisy_input_is_reconstructed_without_its_noise(data_root: Path) -> None:
    small = configuration("galaxy_vae", data_root)
    noisy = dataclasses.replace(small, definition=small.definition.vary({"encoder_input": "noisy"}))
    usual, made = build(small), build(noisy)
    (clean, normal), (pairs, same) = usual.data.read_batch(0), made.data.read_batch(0)
    observed, target = split_input(made.shape, pairs)
    assert np.array_equal(target, clean)
    assert np.array_equal(same, normal)
    # In units of the sky noise, and turned as the target is.
    assert 0.9 < (observed.astype(float) - target).std() < 1.2
    arrays = [torch.from_numpy(array) for array in (pairs, same)]
    loss = made.compute_loss(*arrays)
    arrays[0][:, :6] = arrays[0][:, 6:]
    expected = usual.compute_loss(*map(torch.from_numpy, (clean, normal)))
    assert made.compute_loss(*arrays) == expected != loss
    assert made.evaluate().keys() == usual.evaluate().keys()
    made.predict_noise()
