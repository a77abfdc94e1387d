"""galaxy_bnn in Keras computes what galaxy_bnn in PyTorch computes."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="needs the extra keras")
torch = pytest.importorskip("torch", reason="needs the extra torch")

from cepheid.benchmarks.galaxy_bnn import keras_model, keras_task, task
from cepheid.benchmarks.galaxy_bnn.keras_weights import convert_to_keras, convert_to_torch
from cepheid.benchmarks.galaxy_bnn.model import (
    WeightNoise,
    iterate_gaussian_weights,
    kl_divergence,
    make_bayesian,
)
from cepheid.benchmarks.galaxy_shape.keras_model import make_posterior, make_shape_network
from cepheid.benchmarks.galaxy_shape.keras_model import negative_log_likelihood as keras_likelihood
from cepheid.benchmarks.galaxy_shape.model import ShapeNetwork, negative_log_likelihood
from cepheid.reference.keras.backend import FRAMEWORK, tf
from cepheid.reference.keras.task import set_precision
from cepheid.reference.machine.ranks import SingleProcess
from cepheid.reference.run.config import configure
from cepheid.rules import definition
from cepheid.rules.definition import Block
from cepheid.rules.errors import UserError
from tests.benchmarks.test_galaxy_shape_keras import (
    NORM,
    OPTIONS,
    arrays_of,
    assert_gradients_agree,
    give,
    make_perturbed_network,
    turn_half_more,
)
from tests.tasks import create
from tests.test_benchmark_contract import configuration

ALONE = SingleProcess(FRAMEWORK)


def bayesian() -> ShapeNetwork:
    """``perturbed``, with widths that differ from weight to weight."""
    network = make_perturbed_network("position")
    make_bayesian(network, 0.1)
    with torch.no_grad():
        for _, gaussian in iterate_gaussian_weights(network):
            gaussian.untransformed_scale.add_(0.5 * torch.randn_like(gaussian.noise))
    return network


def give_noise(theirs: Any, ours: Any) -> None:
    """The noise of a network in PyTorch to one in Keras, turned as its means are."""
    state = arrays_of(ours)
    for name, module in ours.named_modules():
        if hasattr(module, "noise"):
            state[f"{name.removesuffix('.0')}.original"] = module.noise.numpy()
    turned = convert_to_keras(state)
    for layer in keras_model.list_gaussian_layers(theirs):
        layer.noise.assign(turned[f"{layer.name}/kernel"])


def test_weights_go_there_and_back() -> None:
    state = arrays_of(bayesian())
    back = convert_to_torch(convert_to_keras(state))
    assert back.keys() == state.keys()
    for name, value in state.items():
        assert np.array_equal(back[name], value), name


def test_posteriors_start_alike(data_root: Path) -> None:
    config = configuration("galaxy_bnn", data_root)
    ours = create(config)
    theirs = keras_task.create(config, ALONE)
    assert ours.build() == theirs.build()
    state = convert_to_keras(arrays_of(ours.model))
    for layer in keras_model.list_gaussian_layers(theirs.model):
        widths = state[f"{layer.name}/untransformed_scale"]
        np.testing.assert_allclose(layer.untransformed_scale, widths, rtol=1e-5)
        assert np.std(layer.mean) == pytest.approx(np.std(state[f"{layer.name}/kernel"]), rel=0.1)


def in_keras(**options: Any) -> Any:
    return make_shape_network(
        **{**OPTIONS, **NORM, **options},
        convolution=partial(keras_model.GaussianConv2D, initial_relative_scale=0.1),
        dense=partial(keras_model.GaussianDense, initial_relative_scale=0.1),
    )


@pytest.mark.parametrize("training", [True, False])
def test_values_losses_and_gradients_agree(training: bool) -> None:
    ours, theirs = bayesian(), in_keras()
    WeightNoise(ours).draw(1, "test")
    give(theirs, convert_to_keras(arrays_of(ours)))
    give_noise(theirs, ours)
    stamps = (30 * torch.randn(8, 6, 64, 64)).half()
    labels = 0.3 * torch.randn(8, 2)

    ours.train(training)
    mean, scale = ours(stamps.flip(2, 3))
    divergence = kl_divergence(ours, 0.7)
    (negative_log_likelihood(mean, scale, labels).mean() + divergence / 6000).backward()
    gradients = arrays_of(ours)  # so that buffers are there, too
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        gradients[name] = parameter.grad.numpy()
    expected = convert_to_keras(gradients)

    with tf.GradientTape() as tape:
        found_mean, found_scale = make_posterior(theirs(stamps.numpy(), training=training), 2)
        likelihood = keras_likelihood(found_mean, found_scale, labels.numpy())
        found_divergence = keras_model.kl_divergence(theirs, 0.7)
        loss = tf.reduce_mean(likelihood) + found_divergence / 6000
    np.testing.assert_allclose(found_mean, mean.detach(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found_scale, scale.detach(), rtol=1e-4, atol=1e-4)
    here = negative_log_likelihood(mean, scale, labels).detach()
    np.testing.assert_allclose(likelihood, here, rtol=1e-4, atol=1e-4)
    assert float(found_divergence) == pytest.approx(divergence.item(), rel=1e-5)
    variables = theirs.trainable_variables
    assert_gradients_agree(variables, tape.gradient(loss, variables), expected)


@pytest.mark.slow  # its graph is traced for seconds
def test_training_from_the_same_weights_on_the_same_data_agrees(data_root: Path) -> None:
    pytest.importorskip("galsim", reason="needs the extra galsim")
    config = configuration("galaxy_bnn", data_root, "opt_base_learning_rate=1e-4")
    ours = create(config)
    theirs = keras_task.create(config, ALONE)
    for made in (ours, theirs):
        made.build()
        made.open_data()
    give(theirs.model, convert_to_keras(arrays_of(ours.model)))
    turn_half_more(theirs.data.order)
    theirs.draw_weights = lambda *keys: give_noise(theirs.model, ours.model)  # type: ignore[method-assign]
    ours.model.train()
    losses = []
    for _ in range(4):
        of_ours = float(ours.step())  # draws the noise that the other one takes over
        losses.append((of_ours, float(theirs.step())))
    for of_ours, of_theirs in losses:
        assert of_theirs == pytest.approx(of_ours, rel=1e-4)
    after = convert_to_keras(arrays_of(ours.model))
    for path, value in theirs.state()["model"].items():
        # Adam moves each weight by 1e-4 a step, one whose gradient is all rounding either way.
        assert np.abs(value - after[path]).mean() < 2e-5, path
    kl = task.compute_kl_per_sample(ours.shape, ours.model)
    assert float(theirs.kl_per_sample()) == pytest.approx(kl.item(), rel=1e-5)


def test_each_step_of_a_block_draws_the_weights_anew(data_root: Path) -> None:
    pytest.importorskip("galsim", reason="needs the extra galsim")
    made = keras_task.create(configuration("galaxy_bnn", data_root), ALONE)
    made.build()
    made.open_data()
    drawn: list[tuple[object, ...]] = []
    made.draw_weights = lambda *keys: drawn.append(keys)  # type: ignore[method-assign]
    made.traced = {"train": lambda *batch: 0.0}
    size = made.config.global_batch_size
    made.train(Block(1, 0, 3 * size), lambda samples: None)
    assert drawn == [("weights", 0), ("weights", size), ("weights", 2 * size)]


def test_noise_is_normal_and_repeated_by_its_keys_only() -> None:
    network = in_keras()
    noise = keras_model.WeightNoise(network)
    drawn = {}
    for keys in ((1, "weights", 8), (1, "weights", 16), (2, "weights", 8), (1, "other", 8)):
        noise.draw(*keys)
        drawn[keys] = np.concatenate([part.numpy().ravel() for part in noise.parts])
    noise.draw(1, "weights", 8)
    again = np.concatenate([part.numpy().ravel() for part in noise.parts])
    for keys, values in drawn.items():
        assert np.array_equal(values, again) == (keys == (1, "weights", 8))
    assert again.mean() == pytest.approx(0, abs=0.01)
    assert again.std() == pytest.approx(1, abs=0.01)
    assert len(np.unique(again)) > 0.99 * len(again)


def test_without_noise_the_network_is_the_deterministic_one() -> None:
    network, deterministic = in_keras(), make_shape_network(**OPTIONS, **NORM)
    weights = {variable.path: variable.numpy() for variable in network.variables}
    give(deterministic, {path: weights[path] for path in weights if "scale" not in path})
    stamps = np.random.default_rng(0).normal(size=(3, 6, 64, 64)).astype(np.float16)
    np.testing.assert_allclose(network(stamps), deterministic(stamps), rtol=1e-5, atol=1e-6)


def test_weights_are_drawn_with_all_digits_in_bfloat16() -> None:
    network = in_keras()
    keras_model.WeightNoise(network).draw(1, "test")
    set_precision(network, "bf16")
    seen = []
    for layer in keras_model.list_gaussian_layers(network):
        exact = layer.mean + layer.scale * layer.noise

        def record_kernel(
            inputs: Any, exact: Any = exact, layer: Any = layer, call: Any = layer.call
        ) -> Any:
            seen.append(np.array_equal(layer.kernel, tf.cast(exact, tf.bfloat16)))
            return call(inputs)

        layer.call = record_kernel
    network(np.zeros((1, 6, 64, 64), np.float16))
    assert seen == [True] * 9


def test_an_estimator_of_the_open_division_is_refused(tmp_path: Path) -> None:
    chosen = definition.load("galaxy_bnn", "mini")
    config = configure(chosen, division="open", overrides=["weight_sampling=flipout"])
    with pytest.raises(UserError, match="weight_sampling=flipout"):
        keras_task.create(config, ALONE)
