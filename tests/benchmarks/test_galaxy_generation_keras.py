"""galaxy_generation in Keras makes the images of the task in PyTorch, from the same weights."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cepheid.benchmarks.galaxy_generation import task, weights_file
from cepheid.measure.studies.sweep import measures
from cepheid.reference.machine.energy import find_sensors
from cepheid.reference.run.config import RunConfig
from cepheid.reference.session.frameworks import find_create
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules.errors import UserError
from tests.reference import Later
from tests.test_benchmark_contract import assert_run_passes, configuration, install_easy
from tests.test_keras_contract import backend, import_task, make_alone
from tests.test_keras_contract import configure as configure_keras

keras_task = Later("cepheid.benchmarks.galaxy_generation.keras_task")


def configure(data_root: Path) -> RunConfig:
    return dataclasses.replace(configure_keras("galaxy_generation", data_root), framework="keras")


def test_the_images_are_those_of_torch(data_root: Path) -> None:
    ours = keras_task.make(configure(data_root), make_alone())
    theirs = task.GalaxyGeneration(
        configuration("galaxy_generation", data_root), TorchRanks(0, 1, torch.device("cpu"))
    )
    assert ours.build() == theirs.build() == ours.definition.model["parameters"]
    assert ours.weights_digest == theirs.weights_digest
    for count in (1, 12):
        latents, others = ours.sample(count, 0), theirs.sample(count, 0)
        np.testing.assert_allclose(latents, others, rtol=1e-3, atol=1e-3)
        images, expected = ours.decode(others.numpy()), theirs.decode(others)
        turned = expected.numpy()[:, :, ::-1, ::-1]  # the network in torch is turned by half a turn
        np.testing.assert_allclose(images, turned, rtol=1e-2, atol=1e-2)


def test_the_papers_figure_4_can_be_measured(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "GENERATION_SECONDS", 0.0)
    monkeypatch.setattr(measures, "WARM_UP_IMAGES", 1)
    made: Any = keras_task.make_for_timing(configure(data_root), make_alone())
    point = measures.measure_generation(made, 3, make_alone(), find_sensors(has_gpu=False))
    assert (point.size, point.fraction) == (3, 1.0)
    assert point.images_per_second == pytest.approx(3 / point.seconds)
    assert point.implementation["framework"] == backend.FRAMEWORK


@pytest.mark.slow
def test_a_log_passes_the_checker(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_easy("galaxy_generation", tmp_path / "benchmarks", monkeypatch)
    config = configure(data_root)
    task = find_create(import_task("galaxy_generation"))(config, make_alone())
    assert_run_passes(task, config, tmp_path)


def test_weights_that_cannot_be_used_are_refused(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(data_root)
    monkeypatch.setattr(weights_file, "FOLDER", tmp_path)
    with pytest.raises(UserError, match="missing"):
        keras_task.make(config, make_alone())
    assert keras_task.make_for_timing(config, make_alone()).weights_digest == weights_file.UNTRAINED
    weights_file.find_path("mini").write_bytes(b"no weights")
    with pytest.raises(UserError, match="T25"):
        keras_task.make(config, make_alone())
    with pytest.raises(UserError, match="not a file of weights for Keras"):
        keras_task.make(dataclasses.replace(config, division="open"), make_alone())
