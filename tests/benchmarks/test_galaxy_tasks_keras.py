"""The tasks of the galaxy benchmarks in Keras train and evaluate as those in PyTorch do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cepheid.benchmarks.galaxy_bnn.task import compute_kl_per_sample
from cepheid.measure.studies.sweep.measures import EPOCH_SAMPLES, measure_training
from cepheid.reference.machine.energy import find_sensors
from cepheid.rules.definition import Block
from cepheid.rules.errors import UserError
from tests.benchmarks.test_galaxies_keras import (
    arrays_of,
    backend,
    give,
    give_noise,
    keras_bnn,
    keras_vae,
    shape_weights,
)
from tests.reference import Later
from tests.tasks import create
from tests.test_benchmark_contract import configuration
from tests.test_keras_contract import configure as configure_keras
from tests.test_keras_contract import make_alone

shape_task, bnn_task, vae_task = (
    Later(f"cepheid.benchmarks.galaxy_{name}.keras_task") for name in ("shape", "bnn", "vae")
)
TASKS = {"galaxy_shape": shape_task, "galaxy_bnn": bnn_task, "galaxy_vae": vae_task}
WEIGHTS = {"galaxy_shape": shape_weights, "galaxy_bnn": keras_bnn, "galaxy_vae": keras_vae}
HALF_TURN = 3  # the orientation that flips x and y; networks in PyTorch are turned by it


def build_both(name: str, data_root: Path, *overrides: str) -> tuple[Any, Any]:
    """Return the task in both frameworks, with the same weights and open data."""
    ours = create(configuration(name, data_root, *overrides))
    theirs = TASKS[name].create(configure_keras(name, data_root, *overrides), make_alone())
    for made in (ours, theirs):
        made.build()
        made.open_data()
    give(theirs.model, WEIGHTS[name].convert_to_keras(arrays_of(ours.model)))
    return ours, theirs


@pytest.mark.parametrize(
    ("name", "steps", "tolerance"),
    [
        ("galaxy_shape", 6, 1e-3),
        # Their graphs are traced for seconds.
        pytest.param("galaxy_bnn", 4, 1e-4, marks=pytest.mark.slow),
        pytest.param("galaxy_vae", 4, 1e-3, marks=pytest.mark.slow),
    ],
)
def test_training_from_the_same_weights_on_the_same_data_agrees(
    name: str, steps: int, tolerance: float, data_root: Path
) -> None:
    keys = ["opt_base_learning_rate"] + ["opt_flow_base_learning_rate"] * (name == "galaxy_vae")
    ours, theirs = build_both(name, data_root, *(f"{key}=1e-4" for key in keys))
    take = theirs.data.order.take

    def take_turned(first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        positions, orientations = take(first, count)
        # After the transposition: with it, the flips change places.
        return positions, orientations ^ HALF_TURN

    theirs.data.order.take = take_turned
    if name == "galaxy_bnn":  # the step of ours draws the noise that the other one takes over
        theirs.draw_weights = lambda *keys: give_noise(theirs.model, ours.model)
    ours.model.train()
    losses = [(float(ours.step()), float(backend.read(theirs.step()))) for _ in range(steps)]
    assert losses[0][1] == pytest.approx(losses[0][0], rel=1e-4)
    for of_ours, of_theirs in losses:
        assert of_theirs == pytest.approx(of_ours, rel=tolerance)
    after = WEIGHTS[name].convert_to_keras(arrays_of(ours.model))
    for path, value in theirs.state()["model"].items():
        # Adam moves each weight by 1e-4 a step, one whose gradient is all rounding either way.
        assert np.abs(value - after[path]).mean() < 2e-5, path
    if name == "galaxy_bnn":
        kl = compute_kl_per_sample(ours.shape, ours.model)
        assert float(backend.read(theirs.kl_per_sample())) == pytest.approx(kl.item(), rel=1e-5)


@pytest.mark.slow  # five graphs are traced
def test_evaluations_of_an_autoencoder_agree(data_root: Path) -> None:
    ours, theirs = build_both("galaxy_vae", data_root)
    theirs.data.stamps = theirs.data.stamps[:, :, ::-1, ::-1]
    assert theirs.evaluate() == pytest.approx(ours.evaluate(), rel=1e-3, abs=1e-4)


def test_each_step_of_a_block_draws_the_weights_anew(data_root: Path) -> None:
    _, made = build_both("galaxy_bnn", data_root)
    drawn: list[tuple[object, ...]] = []
    made.draw_weights = lambda *keys: drawn.append(keys)
    made.traced = {"train": lambda *batch: 0.0}
    size = made.config.global_batch_size
    made.train(Block(1, 0, 3 * size), lambda samples: None)
    assert drawn == [("weights", 0), ("weights", size), ("weights", 2 * size)]


def test_the_papers_figure_2_can_be_measured(data_root: Path) -> None:
    config = configure_keras("galaxy_shape", data_root)
    made: Any = shape_task.create(config, make_alone())
    size = config.global_batch_size
    epochs = 20 * size / EPOCH_SAMPLES
    point = measure_training(made, size, made.ranks, find_sensors(has_gpu=False), epochs)
    assert (point.counts["warm_up_steps"], point.counts["timed_steps"]) == (2, 20)
    assert made.samples == 22 * size
    assert point.implementation["framework"] == backend.FRAMEWORK


def test_reading_ahead_yields_the_batches_of_a_run_in_their_order_or_its_error(
    data_root: Path,
) -> None:
    made = shape_task.create(configure_keras("galaxy_shape", data_root), make_alone())
    made.open_data()
    size = made.config.global_batch_size
    firsts = range(2 * size, 8 * size, size)
    batches = backend.engine.read_ahead(made.read_batch, firsts)
    for first, batch in zip(firsts, batches, strict=True):
        for value, expected in zip(batch, made.read_batch(first), strict=True):
            np.testing.assert_array_equal(backend.read(value), expected)

    def read_batch(first: int) -> tuple[np.ndarray, ...]:
        if first == 6:
            raise UserError("stamps.bin is too short")
        return (np.full((2, 3), first, np.float32),)

    with pytest.raises(UserError, match="too short"):
        list(backend.engine.read_ahead(read_batch, range(0, 8, 2)))


def test_posteriors_start_alike(data_root: Path) -> None:
    ours = create(configuration("galaxy_bnn", data_root))
    theirs = bnn_task.create(configure_keras("galaxy_bnn", data_root), make_alone())
    assert ours.build() == theirs.build()
    state = keras_bnn.convert_to_keras(arrays_of(ours.model))
    for layer in keras_bnn.list_gaussian_layers(theirs.model):
        widths = state[f"{layer.name}/untransformed_scale"]
        np.testing.assert_allclose(backend.read(layer.untransformed_scale.value), widths, rtol=1e-5)
        deviation = np.std(backend.read(layer.mean.value))
        assert deviation == pytest.approx(np.std(state[f"{layer.name}/kernel"]), rel=0.1)
