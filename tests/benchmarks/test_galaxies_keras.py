"""The galaxy benchmarks in Keras compute what they compute in PyTorch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from cepheid.benchmarks.galaxy_bnn.model import (
    WeightNoise,
    iterate_gaussian_weights,
    kl_divergence,
    make_bayesian,
)
from cepheid.benchmarks.galaxy_shape.model import ShapeNetwork, negative_log_likelihood
from cepheid.benchmarks.galaxy_vae import model as torch_vae
from cepheid.benchmarks.galaxy_vae.framework_free import Sizes
from cepheid.reference.torch.batch_norm import GroupBatchNorm2d
from tests.benchmarks.test_galaxy_vae import make_vae as make_torch_vae
from tests.reference import Later, need_keras

need_keras()
backend = Later("cepheid.reference.keras.backend")
flow = Later("cepheid.reference.keras.flow")
task = Later("cepheid.reference.keras.task")
keras_bnn = Later("cepheid.benchmarks.galaxy_bnn.keras_model")
keras_shape = Later("cepheid.benchmarks.galaxy_shape.keras_model")
keras_vae = Later("cepheid.benchmarks.galaxy_vae.keras_model")
shape_weights = Later("cepheid.benchmarks.galaxy_shape.keras_weights")

OPTIONS: dict[str, Any] = {
    "bands": 6, "pixels": 64, "filters": (16, 32, 64, 128), "targets": 2, "prelu": "position",
    "input_scaling": "asinh",
}  # fmt: skip
NORM: dict[str, Any] = {"epsilon": 1e-3, "momentum": 0.99}
SIZES = Sizes(
    bands=6, pixels=64, filters=(16, 16, 32, 64), latents=32, flow_layers=8,
    flow_hidden=(256, 256), prelu="position", batch_norm_epsilon=1e-3,
    batch_norm_momentum=0.99, mean_maxima=(1.59, 6.41, 12.15, 12.27, 8.73, 4.72),
)  # fmt: skip


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """Return the weights of a network in PyTorch, copied: JAX shares the memory of what it gets."""
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def give(network: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Let a network in Keras have these weights."""
    assert {variable.path for variable in network.variables} == set(weights)
    for variable in network.variables:
        variable.assign(weights[variable.path])


def give_noise(theirs: Any, ours: Any) -> None:
    """Give the noise of a network in PyTorch to one in Keras, turned as its means are."""
    state = arrays_of(ours)
    for name, module in ours.named_modules():
        if hasattr(module, "noise"):
            state[f"{name.removesuffix('.0')}.original"] = module.noise.numpy()
    turned = keras_bnn.convert_to_keras(state)
    for layer in keras_bnn.list_gaussian_layers(theirs):
        layer.noise.assign(turned[f"{layer.name}/kernel"])


def perturb(network: Any, buffers: Any) -> Any:
    """Change what starts at 0 or 1: slopes, biases, statistics, a flow that is the identity."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
        for buffer in buffers:
            buffer.add_(0.1 * torch.rand_like(buffer))
    return network


def list_noise(network: Any) -> list[Any]:
    """Return the noise of a network's weights, which is none of its variables."""
    return [layer.noise for layer in network.layers if hasattr(layer, "noise")]


def trace(program: Any, function: Callable[..., Any]) -> Any:
    """Trace a function in the usual way of the backend."""
    return program.trace(function, next(iter(backend.engine.WAYS)))


def sample(flow: Any, noise: np.ndarray) -> np.ndarray:
    """Return latents that a flow draws."""
    variables = [variable for network in flow.networks for variable in network.variables]
    drawn: np.ndarray = backend.read(trace(backend.engine.Program(variables), flow.sample)(noise))
    return drawn


def make_shape(prelu: str) -> ShapeNetwork:
    """Return a perturbed network, without posteriors so narrow that all is rounding."""
    torch.manual_seed(0)
    network = ShapeNetwork(
        **{**OPTIONS, "prelu": prelu}, make_norm=partial(GroupBatchNorm2d, **NORM)
    )
    network.head.weight.data.mul_(0.1)
    made: ShapeNetwork = perturb(network, list(network.buffers()))
    return made


def make_bnn(prelu: str = "position") -> ShapeNetwork:
    """Return the same as a Bayesian network, with widths that differ from weight to weight."""
    network = make_shape(prelu)
    make_bayesian(network, 0.1)
    with torch.no_grad():
        for _, gaussian in iterate_gaussian_weights(network):
            gaussian.untransformed_scale.add_(0.5 * torch.randn_like(gaussian.noise))
    return network


def make_vae(prelu: str = "position") -> torch_vae.GalaxyVae:
    """Return a perturbed autoencoder with its flow."""
    torch.manual_seed(0)
    network = make_torch_vae(replace(SIZES, prelu=prelu))
    made: torch_vae.GalaxyVae = perturb(network, list(network.encoder.buffers()))
    return made


def make_keras_bnn() -> Any:
    """Return a Bayesian network in Keras."""
    return keras_shape.make_shape_network(
        **OPTIONS,
        **NORM,
        convolution=partial(keras_bnn.GaussianConv2D, initial_relative_scale=0.1),
        dense=partial(keras_bnn.GaussianDense, initial_relative_scale=0.1),
    )


def make_keras_vae(ours: torch_vae.GalaxyVae, prelu: str = "position") -> Any:
    """Return the same autoencoder in Keras."""
    theirs = keras_vae.GalaxyVae(replace(SIZES, prelu=prelu))
    give(theirs, keras_vae.convert_to_keras(arrays_of(ours)))
    return theirs


def draw_galaxies(count: int) -> Any:
    """Return round galaxies, and some light elsewhere, so that no turn maps one on itself."""
    axis = torch.arange(64) - 31.5
    radius = axis.square()[:, None] + axis.square()
    flux = torch.linspace(1, 60, count)[:, None, None, None] * torch.rand(count, 6, 1, 1)
    return (flux * torch.exp(-radius / 40) + 0.1 * torch.rand(count, 6, 64, 64)).half()


# Networks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "prelu", "weights"),
    [
        (make_shape, "position", shape_weights),
        (make_shape, "channel", shape_weights),
        (make_bnn, "position", keras_bnn),
        (make_vae, "position", keras_vae),
        (make_vae, "channel", keras_vae),
    ],
)
def test_weights_go_there_and_back(make: Callable[[str], Any], prelu: str, weights: Any) -> None:
    state = arrays_of(make(prelu))
    convert = weights.convert_to_keras
    back = shape_weights.convert_to_torch(convert(state), state, convert)
    assert back.keys() == state.keys()
    for name, value in state.items():
        assert np.array_equal(back[name], value), name


@dataclass(frozen=True)
class Pass:
    """A loss that can be differentiated, and other values of the same pass."""

    loss: Any
    values: tuple[Any, ...]


def assert_passes_agree(
    ours: Any,
    theirs: Any,
    in_torch: Callable[[], Pass],
    in_keras: Callable[[], Pass],
    convert: Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]],
) -> None:
    """Require the same loss, values and gradients of a network in both frameworks."""
    there = in_torch()
    there.loss.backward()
    gradients = arrays_of(ours)  # so that buffers are there, too
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        gradients[name] = parameter.grad.numpy()
    expected = convert(gradients)
    for value, wanted in zip(in_keras().values, there.values, strict=True):
        np.testing.assert_allclose(backend.read(value), wanted.detach(), rtol=1e-4, atol=1e-4)
    variables = theirs.trainable_variables
    program = backend.engine.Program([*theirs.variables, *list_noise(theirs)])
    differentiate = partial(program.differentiate, lambda: in_keras().loss, variables)
    loss, gradients = trace(program, differentiate)()
    assert float(backend.read(loss)) == pytest.approx(there.loss.item(), rel=1e-4)
    for variable, gradient in zip(variables, map(backend.read, gradients), strict=True):
        # An activation that rounding moves across zero takes another slope: 1e-3 here and there.
        wanted = expected[variable.path]
        difference = np.linalg.norm(gradient - wanted) / np.linalg.norm(wanted)
        assert difference < 0.01, f"{variable.path}: {difference:.1e}"


@pytest.mark.parametrize(
    ("kind", "training"), [("position", True), ("channel", False), ("bayesian", True)]
)
def test_shape_networks_agree(kind: str, training: bool) -> None:
    is_bayesian = kind == "bayesian"
    convert = (keras_bnn if is_bayesian else shape_weights).convert_to_keras
    if is_bayesian:
        ours, theirs = make_bnn(), make_keras_bnn()
        WeightNoise(ours).draw(1, "test")
    else:
        ours = make_shape(kind)
        theirs = keras_shape.make_shape_network(**{**OPTIONS, "prelu": kind}, **NORM)
    give(theirs, convert(arrays_of(ours)))
    if is_bayesian:
        give_noise(theirs, ours)
    stamps, labels = (30 * torch.randn(8, 6, 64, 64)).half(), 0.3 * torch.randn(8, 2)
    ours.train(training)

    def in_torch() -> Pass:
        mean, scale = ours(stamps.flip(2, 3))
        likelihood = negative_log_likelihood(mean, scale, labels)
        divergence = kl_divergence(ours, 0.7) if is_bayesian else torch.zeros(())
        loss = likelihood.mean() + divergence / 6000
        return Pass(loss, (mean, scale, likelihood, divergence / 6000))

    def in_keras() -> Pass:
        mean, scale = keras_shape.make_posterior(theirs(stamps.numpy(), training=training), 2)
        likelihood = keras_shape.negative_log_likelihood(mean, scale, labels.numpy())
        none = backend.keras.ops.zeros(())
        divergence = keras_bnn.kl_divergence(theirs, 0.7) if is_bayesian else none
        loss = backend.keras.ops.mean(likelihood) + divergence / 6000
        return Pass(loss, (mean, scale, likelihood, divergence / 6000))

    assert_passes_agree(ours, theirs, in_torch, in_keras, convert)


@pytest.mark.parametrize(("prelu", "training"), [("position", True), ("channel", False)])
def test_autoencoders_agree(prelu: str, training: bool) -> None:
    ours = make_vae(prelu)
    theirs = make_keras_vae(ours, prelu)
    images, normal = draw_galaxies(6), torch.randn(6, 32)
    ours.train(training)

    def in_torch() -> Pass:
        turned = images.flip(2, 3)
        mean, scale = ours.encode(turned)
        latents = mean + scale * normal
        logits = ours.decoder(latents)
        reconstruction = torch_vae.reconstruction_loss(logits, ours.decoder.flux_scaling(turned))
        divergence = torch_vae.kl_divergence(mean, scale)
        log_prob = ours.flow.log_prob(latents.detach())
        upright = logits.flip(2, 3).permute(0, 2, 3, 1)
        loss = (reconstruction + 0.01 * divergence - log_prob).mean()
        return Pass(loss, (mean, scale, upright, reconstruction, divergence, log_prob))

    def in_keras() -> Pass:
        scaled = theirs.scale_images(images.numpy())
        mean, scale = theirs.encoder(scaled, training=training)
        latents = mean + scale * normal.numpy()
        logits = theirs.decoder(latents, training=training)
        reconstruction = keras_vae.reconstruction_loss(logits, scaled)
        divergence = keras_vae.kl_divergence(mean, scale)
        log_prob = theirs.flow.log_prob(backend.keras.ops.stop_gradient(latents))
        loss = backend.keras.ops.mean(reconstruction + 0.01 * divergence - log_prob)
        return Pass(loss, (mean, scale, logits, reconstruction, divergence, log_prob))

    assert_passes_agree(ours, theirs, in_torch, in_keras, keras_vae.convert_to_keras)


def test_weights_of_autoencoders_start_alike() -> None:
    ours = keras_vae.convert_to_keras(arrays_of(make_torch_vae(SIZES)))
    for variable in keras_vae.GalaxyVae(SIZES).variables:
        there, here = backend.read(variable.value), ours[variable.path]
        assert there.std() == pytest.approx(here.std(), rel=0.1), variable.path
        assert abs(there.mean() - here.mean()) < 0.2 * here.std() + 1e-6, variable.path


def test_samples_and_images_of_an_autoencoder_agree() -> None:
    ours = make_vae().eval()
    theirs = make_keras_vae(ours)
    noise = torch.randn(5, 32)
    with torch.no_grad():
        latents = ours.flow.sample(noise)
        images = ours.decoder.make_images(latents).flip(2, 3)
    sampled = sample(theirs.flow, noise.numpy())
    np.testing.assert_allclose(sampled, latents, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        backend.read(theirs.make_images(latents.numpy())), images, rtol=1e-3, atol=1e-4
    )


def test_a_flow_starts_as_the_identity_in_another_order() -> None:
    noise = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    sampled = sample(flow.Flow(4, 2, (8, 8)), noise)
    np.testing.assert_allclose(sampled, noise[:, ::-1], rtol=1e-6)


# Weights with noise ------------------------------------------------------------------------------


def test_noise_is_normal_and_repeated_by_its_keys_only() -> None:
    noise = keras_bnn.WeightNoise(make_keras_bnn())

    def draw(*keys: Any) -> np.ndarray:
        noise.draw(*keys)
        return np.concatenate([backend.read(part.value).ravel() for part in noise.parts])

    first = draw(1, "weights", 8)
    for keys in ((1, "weights", 16), (2, "weights", 8), (1, "other", 8)):
        assert not np.array_equal(draw(*keys), first)
    assert np.array_equal(draw(1, "weights", 8), first)
    assert first.mean() == pytest.approx(0, abs=0.01)
    assert first.std() == pytest.approx(1, abs=0.01)
    assert len(np.unique(first)) > 0.95 * len(first)  # JAX draws from 2^23 values


def test_without_noise_the_network_is_the_deterministic_one() -> None:
    network, deterministic = make_keras_bnn(), keras_shape.make_shape_network(**OPTIONS, **NORM)
    weights = {variable.path: backend.read(variable.value) for variable in network.variables}
    give(deterministic, {path: weights[path] for path in weights if "scale" not in path})
    stamps = np.random.default_rng(0).normal(size=(3, 6, 64, 64)).astype(np.float16)
    np.testing.assert_allclose(
        backend.read(network(stamps)), backend.read(deterministic(stamps)), rtol=1e-5, atol=1e-6
    )


def test_weights_are_drawn_with_all_digits_in_bfloat16() -> None:
    network = make_keras_bnn()
    keras_bnn.WeightNoise(network).draw(1, "test")
    task.set_precision(network, "bf16")
    is_exact = []
    for layer in keras_bnn.list_gaussian_layers(network):
        exact = layer.mean + layer.scale * layer.noise

        def record_kernel(
            inputs: Any, exact: Any = exact, layer: Any = layer, call: Any = layer.call
        ) -> Any:
            rounded = backend.keras.ops.cast(exact, "bfloat16")
            is_exact.append(bool(backend.keras.ops.all(layer.kernel == rounded)))
            return call(inputs)

        layer.call = record_kernel
    network(np.zeros((1, 6, 64, 64), np.float16))
    assert is_exact == [True] * 9
