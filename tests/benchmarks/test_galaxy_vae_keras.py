"""galaxy_vae in Keras computes what galaxy_vae in PyTorch computes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="needs the extra keras")
torch = pytest.importorskip("torch", reason="needs the extra torch")

from torch import Tensor

from cepheid.benchmarks.galaxy_vae import keras_model, keras_task
from cepheid.benchmarks.galaxy_vae.keras_weights import convert_to_keras, convert_to_torch
from cepheid.benchmarks.galaxy_vae.model import GalaxyVae, kl_divergence, reconstruction_loss
from cepheid.benchmarks.galaxy_vae.sizes import Sizes
from cepheid.reference.keras.backend import FRAMEWORK, tf
from cepheid.reference.machine.ranks import SingleProcess
from tests.benchmarks.test_galaxy_shape_keras import (
    arrays_of,
    assert_gradients_agree,
    give,
    turn_half_more,
)
from tests.benchmarks.test_galaxy_vae import make_vae
from tests.tasks import create
from tests.test_benchmark_contract import configuration

SIZES = Sizes(
    bands=6, pixels=64, filters=(16, 16, 32, 64), latents=32, flow_layers=8,
    flow_hidden=(256, 256), prelu="position", batch_norm_epsilon=1e-3,
    batch_norm_momentum=0.99, mean_maxima=(1.59, 6.41, 12.15, 12.27, 8.73, 4.72),
)  # fmt: skip


def make_perturbed_network(prelu: str = "position") -> GalaxyVae:
    """Slopes and biases start at 0, and the flow as the identity: here all are other than that."""
    torch.manual_seed(0)
    network = make_vae(replace(SIZES, prelu=prelu))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
        for buffer in network.encoder.buffers():
            buffer.add_(0.1 * torch.rand_like(buffer))
    return network


def galaxies(count: int) -> Tensor:
    """Round ones, and some light elsewhere, so that no turn maps an image on itself."""
    axis = torch.arange(64) - 31.5
    radius = axis.square()[:, None] + axis.square()
    flux = torch.linspace(1, 60, count)[:, None, None, None] * torch.rand(count, 6, 1, 1)
    images: Tensor = flux * torch.exp(-radius / 40) + 0.1 * torch.rand(count, 6, 64, 64)
    return images.half()


def in_keras(ours: GalaxyVae, **options: Any) -> Any:
    theirs = keras_model.GalaxyVae(replace(SIZES, **options))
    give(theirs, convert_to_keras(arrays_of(ours)))
    return theirs


@pytest.mark.parametrize("prelu", ["position", "channel"])
def test_weights_go_there_and_back(prelu: str) -> None:
    state = arrays_of(make_perturbed_network(prelu))
    back = convert_to_torch(convert_to_keras(state))
    assert back.keys() == state.keys()
    for name, value in state.items():
        assert np.array_equal(back[name], value), name


def test_weights_start_alike() -> None:
    torch.manual_seed(0)
    ours = convert_to_keras(arrays_of(make_vae(SIZES)))
    for variable in keras_model.GalaxyVae(SIZES).variables:
        there, here = variable.numpy(), ours[variable.path]
        assert there.std() == pytest.approx(here.std(), rel=0.1), variable.path
        assert abs(there.mean() - here.mean()) < 0.2 * here.std() + 1e-6, variable.path


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("prelu", ["position", "channel"])
def test_values_losses_and_gradients_agree(prelu: str, training: bool) -> None:
    ours = make_perturbed_network(prelu)
    theirs = in_keras(ours, prelu=prelu)
    images, normal = galaxies(6), torch.randn(6, 32)

    ours.train(training)
    turned = images.flip(2, 3)
    mean, scale = ours.encode(turned)
    latents = mean + scale * normal
    logits = ours.decoder(latents)
    reconstruction = reconstruction_loss(logits, ours.decoder.flux_scaling(turned))
    divergence, log_prob = kl_divergence(mean, scale), ours.flow.log_prob(latents.detach())
    (reconstruction + 0.01 * divergence - log_prob).mean().backward()
    gradients = arrays_of(ours)  # so that buffers are there, too
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        gradients[name] = parameter.grad.numpy()
    expected = convert_to_keras(gradients)

    with tf.GradientTape() as tape:
        scaled = theirs.scale_images(images.numpy())
        found_mean, found_scale = theirs.encoder(scaled, training=training)
        found_latents = found_mean + found_scale * normal.numpy()
        found_logits = theirs.decoder(found_latents, training=training)
        found_reconstruction = keras_model.reconstruction_loss(found_logits, scaled)
        found_divergence = keras_model.kl_divergence(found_mean, found_scale)
        found_log_prob = theirs.flow.log_prob(tf.stop_gradient(found_latents))
        loss = tf.reduce_mean(found_reconstruction + 0.01 * found_divergence - found_log_prob)
    upright = logits.detach().flip(2, 3).permute(0, 2, 3, 1)
    for found, there in (
        (found_mean, mean), (found_scale, scale), (found_logits, upright),
        (found_reconstruction, reconstruction), (found_divergence, divergence),
        (found_log_prob, log_prob),
    ):  # fmt: skip
        np.testing.assert_allclose(found, there.detach(), rtol=1e-4, atol=1e-4)
    variables = theirs.trainable_variables
    assert_gradients_agree(variables, tape.gradient(loss, variables), expected)


def test_samples_and_images_agree() -> None:
    ours = make_perturbed_network().eval()
    theirs = in_keras(ours)
    noise = torch.randn(5, 32)
    with torch.no_grad():
        latents = ours.flow.sample(noise)
        images = ours.decoder.make_images(latents).flip(2, 3)
    found = tf.function(theirs.flow.sample)(noise.numpy())
    np.testing.assert_allclose(found, latents, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(theirs.make_images(latents.numpy()), images, rtol=1e-3, atol=1e-4)


def test_a_flow_starts_as_the_identity_in_another_order() -> None:
    noise = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    sample = tf.function(keras_model.Flow(4, 2, (8, 8)).sample)
    np.testing.assert_allclose(sample(noise), noise[:, ::-1], rtol=1e-6)


@pytest.mark.slow  # its graph is traced for ten seconds
def test_training_from_the_same_weights_on_the_same_data_agrees(data_root: Path) -> None:
    pytest.importorskip("galsim", reason="needs the extra galsim")
    config = configuration(
        "galaxy_vae", data_root, "opt_base_learning_rate=1e-4", "opt_flow_base_learning_rate=1e-4"
    )
    ours = create(config)
    theirs = keras_task.create(config, SingleProcess(FRAMEWORK))
    for made in (ours, theirs):
        made.build()
        made.open_data()
    give(theirs.model, convert_to_keras(arrays_of(ours.model)))
    turn_half_more(theirs.data.order)
    ours.model.train()
    losses = [[float(made.step()) for _ in range(4)] for made in (ours, theirs)]
    assert losses[1][0] == pytest.approx(losses[0][0], rel=1e-4)
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    after = convert_to_keras(arrays_of(ours.model))
    for path, value in theirs.state()["model"].items():
        # Adam moves each weight by 1e-4 a step, one whose gradient is all rounding either way.
        assert np.abs(value - after[path]).mean() < 2e-5, path


@pytest.mark.slow  # five graphs are traced
def test_evaluations_agree(data_root: Path) -> None:
    pytest.importorskip("galsim", reason="needs the extra galsim")
    config = configuration("galaxy_vae", data_root)
    ours = create(config)
    theirs = keras_task.create(config, SingleProcess(FRAMEWORK))
    for made in (ours, theirs):
        made.build()
        made.open_data()
    give(theirs.model, convert_to_keras(arrays_of(ours.model)))
    theirs.data.stamps = theirs.data.stamps[:, :, ::-1, ::-1]
    expected = ours.evaluate()
    found = theirs.evaluate()
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
