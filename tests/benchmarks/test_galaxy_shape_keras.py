"""galaxy_shape in Keras computes what galaxy_shape in PyTorch computes."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow", reason="needs the extra keras")
torch = pytest.importorskip("torch", reason="needs the extra torch")

from cepheid.benchmarks.galaxy_shape import keras_model, keras_task, task
from cepheid.benchmarks.galaxy_shape.keras_weights import convert_to_keras, convert_to_torch
from cepheid.benchmarks.galaxy_shape.model import ShapeNetwork, negative_log_likelihood
from cepheid.measure.studies.sweep.measures import EPOCH_SAMPLES, measure_training
from cepheid.reference.keras.backend import FRAMEWORK, tf
from cepheid.reference.keras.pipeline import read_ahead
from cepheid.reference.machine.energy import find_sensors
from cepheid.reference.machine.ranks import SingleProcess
from cepheid.reference.session.frameworks import find_create
from cepheid.reference.torch.batch_norm import GroupBatchNorm2d
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules.errors import UserError
from tests.test_benchmark_contract import configuration

OPTIONS: dict[str, Any] = {
    "bands": 6, "pixels": 64, "filters": (16, 32, 64, 128), "targets": 2, "prelu": "position",
    "input_scaling": "asinh",
}  # fmt: skip
NORM: dict[str, Any] = {"epsilon": 1e-3, "momentum": 0.99}
MAKE_NORM = partial(GroupBatchNorm2d, **NORM)
HALF_TURN = 3  # the orientation that flips x and y


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


def give(network: Any, weights: dict[str, np.ndarray]) -> None:
    assert {variable.path for variable in network.variables} == set(weights)
    for variable in network.variables:
        variable.assign(weights[variable.path])


def assert_gradients_agree(
    variables: Sequence[Any], gradients: Sequence[Any], expected: Mapping[str, np.ndarray]
) -> None:
    """Those of Keras' ``variables`` with PyTorch's, which are ``expected`` by path."""
    for variable, gradient in zip(variables, gradients, strict=True):
        there = expected[variable.path]
        # An activation that rounding moves across zero takes another slope: 1e-3 here and there.
        difference = np.linalg.norm(gradient - there) / np.linalg.norm(there)
        assert difference < 0.01, f"{variable.path}: {difference:.1e}"


def turn_half_more(order: Any) -> None:
    """Let a task take its galaxies turned by half a turn more, as PyTorch's networks are."""
    take = order.take

    def take_turned(first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        positions, orientations = take(first, count)
        # After the transposition: with it, the flips change places.
        return positions, orientations ^ HALF_TURN

    order.take = take_turned


def make_perturbed_network(prelu: str) -> ShapeNetwork:
    """Slopes and biases start at 0, statistics at 0 and 1: here all are other than that."""
    torch.manual_seed(0)
    network = ShapeNetwork(**{**OPTIONS, "prelu": prelu}, make_norm=MAKE_NORM)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
        network.head.weight.mul_(0.1)  # no posterior so narrow that its likelihood is all rounding
        for buffer in network.buffers():
            buffer.add_(0.1 * torch.rand_like(buffer))
    return network


@pytest.mark.parametrize("prelu", ["position", "channel"])
def test_weights_go_there_and_back(prelu: str) -> None:
    state = arrays_of(ShapeNetwork(**{**OPTIONS, "prelu": prelu}, make_norm=MAKE_NORM))
    back = convert_to_torch(convert_to_keras(state))
    assert back.keys() == state.keys()
    for name, value in state.items():
        assert np.array_equal(back[name], value), name


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("prelu", ["position", "channel"])
def test_values_losses_and_gradients_agree(prelu: str, training: bool) -> None:
    ours = make_perturbed_network(prelu)
    theirs = keras_model.make_shape_network(**{**OPTIONS, "prelu": prelu}, **NORM)
    give(theirs, convert_to_keras(arrays_of(ours)))
    stamps = (30 * torch.randn(8, 6, 64, 64)).half()
    labels = 0.3 * torch.randn(8, 2)

    ours.train(training)
    mean, scale = ours(stamps.flip(2, 3))
    loss = negative_log_likelihood(mean, scale, labels).mean()
    loss.backward()
    gradients = arrays_of(ours)  # so that buffers are there, too
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        gradients[name] = parameter.grad.numpy()
    expected = convert_to_keras(gradients)

    with tf.GradientTape() as tape:
        head = theirs(stamps.numpy(), training=training)
        found_mean, found_scale = keras_model.make_posterior(head, 2)
        found = tf.reduce_mean(
            keras_model.negative_log_likelihood(found_mean, found_scale, labels.numpy())
        )
    np.testing.assert_allclose(found_mean, mean.detach(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found_scale, scale.detach(), rtol=1e-4, atol=1e-4)
    assert float(found) == pytest.approx(loss.item(), rel=1e-4)
    variables = theirs.trainable_variables
    assert_gradients_agree(variables, tape.gradient(found, variables), expected)


def test_training_from_the_same_weights_on_the_same_data_agrees(data_root: Path) -> None:
    pytest.importorskip("galsim", reason="needs the extra galsim")
    config = configuration("galaxy_shape", data_root, "opt_base_learning_rate=1e-4")
    ours = find_create(task)(config, TorchRanks(0, 1, torch.device("cpu")))
    theirs = keras_task.create(config, SingleProcess(FRAMEWORK))
    for made in (ours, theirs):
        made.build()
        made.open_data()
    give(theirs.model, convert_to_keras(arrays_of(ours.model)))
    turn_half_more(theirs.data.order)
    ours.model.train()
    losses = [[float(made.step()) for _ in range(6)] for made in (ours, theirs)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    after = convert_to_keras(arrays_of(ours.model))
    for path, value in theirs.state()["model"].items():
        # Adam moves each weight by 1e-4 a step, one whose gradient is all rounding either way.
        assert np.abs(value - after[path]).mean() < 2e-5, path


def test_the_papers_figure_2_can_be_measured(data_root: Path) -> None:
    config = configuration("galaxy_shape", data_root)
    made: Any = keras_task.create(config, SingleProcess(FRAMEWORK))
    size = config.global_batch_size
    epochs = 20 * size / EPOCH_SAMPLES
    point = measure_training(made, size, made.ranks, find_sensors(has_gpu=False), epochs)
    assert (point.counts["warm_up_steps"], point.counts["timed_steps"]) == (2, 20)
    assert made.samples == 22 * size
    assert point.implementation["framework"] == FRAMEWORK


def test_tf_data_yields_the_batches_of_a_run_in_their_order(data_root: Path) -> None:
    config = configuration("galaxy_shape", data_root)
    made = keras_task.create(config, SingleProcess(FRAMEWORK))
    made.open_data()
    size = config.global_batch_size
    firsts = range(2 * size, 8 * size, size)
    for first, batch in zip(firsts, read_ahead(made.read_batch, firsts), strict=True):
        for read, expected in zip(batch, made.read_batch(first), strict=True):
            np.testing.assert_array_equal(read.numpy(), expected)


def test_an_error_while_data_are_read_ahead_reaches_the_run_as_it_is() -> None:
    def read_batch(first: int) -> tuple[np.ndarray, ...]:
        if first == 6:
            raise UserError("stamps.bin is too short")
        return (np.full((2, 3), first, np.float32),)

    batches = read_ahead(read_batch, range(0, 8, 2))
    with pytest.raises(UserError, match="too short"):
        list(batches)
