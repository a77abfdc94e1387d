"""chest_xray and resnet50 in Keras compute what they compute in PyTorch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cepheid.reference.run.checkpoint import parse_weights, read_given_file
from cepheid.reference.run.config import configure as configure_run
from cepheid.rules import definition
from tests import assert_refused, tasks
from tests.reference import Later
from tests.test_benchmark_contract import configuration
from tests.test_keras_contract import backend, configure, make_alone

keras_task = Later("cepheid.benchmarks.chest_xray.keras_task")
resnet50_task = Later("cepheid.benchmarks.resnet50.keras_task")
resnet50_model = Later("cepheid.benchmarks.resnet50.keras_model")


def read(value: Any) -> np.ndarray:
    array: np.ndarray = backend.read(value)
    return array


@pytest.mark.slow  # Keras traces the network for half a minute
def test_one_start_gives_the_same_batches_logits_loss_and_quality(data_root: Path) -> None:
    there = tasks.create(configuration("chest_xray", data_root))
    here: Any = keras_task.create(configure("chest_xray", data_root), make_alone())
    assert there.build() == here.build()
    there.warm_up()
    assert there.given_digest == here.given_digest
    for each in (there, here):
        each.open_data()
    arrays = {name: value.numpy() for name, value in there.model.state_dict().items()}
    given = {variable.path: read(variable.value) for variable in here.model.variables}
    resnet50_model.assign_weights(here.model, arrays)
    for variable in here.model.variables:  # all but the last layer are given
        is_equal = np.array_equal(read(variable.value), given[variable.path])
        assert is_equal or variable.path == "fc/kernel", variable.path
    (images, labels), (seen, found) = tasks.take_batch(there), here.read_batch(here.samples)
    assert np.array_equal(images.numpy(), seen)
    assert np.array_equal(labels.numpy(), found)
    there.model.eval()
    with torch.no_grad():
        expected = there.predict(images).numpy()
    assert np.abs(read(here.predict(seen)) - expected).max() < 1e-4
    assert here.evaluate() == pytest.approx(there.evaluate(), abs=1e-6)
    there.model.train()
    loss = there.compute_loss(images, labels)
    assert float(read(here.compute_loss(seen, found))) == pytest.approx(loss.item(), abs=1e-4)


def test_keras_refuses_what_it_does_not_have(data_root: Path, tmp_path: Path) -> None:
    config = configuration("chest_xray", data_root, "model_bn_span=4")
    assert_refused("run with --framework torch", keras_task.create, config, make_alone())
    path = tmp_path / "given.safetensors"
    assert_refused("cannot be read", read_given_file, path, "unconfirmed")
    path.write_bytes(b"12345678{")
    assert_refused("its SHA-256 is", read_given_file, path, "0000")
    assert_refused("not a file of weights", parse_weights, path, path.read_bytes())


@pytest.mark.slow  # Keras traces the network for half a minute
@pytest.mark.parametrize("optimizer", ["lars", "sgd"])
def test_resnet50_agrees(optimizer: str, data_root: Path) -> None:
    settings = [f"opt_name={optimizer}", "model_bn_span=0", "opt_learning_rate_warmup_epochs=0"]
    settings.append("opt_base_learning_rate=0.01")
    there = tasks.create(configuration("resnet50", data_root, *settings))
    here: Any = resnet50_task.create(configure("resnet50", data_root, *settings), make_alone())
    assert there.build() == here.build()
    for each in (there, here):
        each.open_data()
    first = {variable.path: read(variable.value).copy() for variable in here.model.variables}
    arrays = {name: value.numpy().copy() for name, value in there.model.state_dict().items()}
    resnet50_model.assign_weights(here.model, arrays)
    for variable in here.model.variables:
        ours, theirs = read(variable.value), first[variable.path]
        assert ours.shape == theirs.shape
        if variable.path.endswith("kernel"):  # drawn anew, alike
            assert theirs.std() == pytest.approx(ours.std(), rel=0.1), variable.path
        else:
            assert np.array_equal(ours, theirs), variable.path
    (images, labels), (seen, found) = tasks.take_batch(there), here.read_batch(here.samples)
    assert np.array_equal(labels.numpy(), found)
    # Pillow rounds a pixel the other way here and there.
    assert np.abs(images.numpy().astype(int) - seen.astype(int)).max() <= 1
    there.model.eval()
    with torch.no_grad():
        expected = there.predict(images).numpy()
    logits = read(here.traced["predict"](images.numpy()))
    assert np.abs(logits - expected).max() < 1e-4
    assert here.evaluate() == pytest.approx(there.evaluate(), abs=5e-3)
    there.model.train()
    for _ in range(3):
        batch = [value.numpy() for value in tasks.take_batch(there)]
        loss = float(there.step())
        assert float(read(here.step_on(batch))) == pytest.approx(loss, rel=1e-3)
    after = {name: value.detach().numpy() for name, value in there.model.state_dict().items()}
    moved = {variable.path: read(variable.value) for variable in here.model.trainable_variables}
    resnet50_model.assign_weights(here.model, after)
    for variable in here.model.trainable_variables:
        wanted = read(variable.value)
        difference = np.linalg.norm(moved[variable.path] - wanted)
        assert difference < 1e-3 * np.linalg.norm(wanted) + 1e-5, variable.path


def test_resnet50_in_keras_refuses_what_it_does_not_have(data_root: Path) -> None:
    for setting in ("model_bn_span=4", "model_variant=d"):
        chosen = definition.load("resnet50", "mini")
        config = configure_run(chosen, division="open", overrides=[setting])
        assert_refused("run with --framework torch", resnet50_task.create, config, make_alone())
