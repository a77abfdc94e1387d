"""What every benchmark that has a ``keras_task.py`` must satisfy, as the contract has it for torch.

Each is shrunk as in ``test_benchmark_contract``.
"""

import dataclasses
import importlib
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reference import Later, need_keras

need_keras("torch", "galsim")  # the small definitions are those of the contract for torch

from cepheid.reference.machine.ranks import SingleProcess
from cepheid.reference.run import checkpoint
from cepheid.reference.run.config import RunConfig
from cepheid.reference.session.frameworks import find_create
from cepheid.rules import definition
from cepheid.rules.definition import Block
from tests.tasks import EVALUATION, TRAIN
from tests.test_benchmark_contract import (
    TRAINING,
    assert_run_passes,
    configuration,
    install_easy,
)

WITH_KERAS = [
    name
    for name in definition.names()
    if (definition.BENCHMARKS / name / "keras_task.py").is_file() and name in TRAINING
]
# TensorFlow traces a larger network for many seconds. Continuous integration tests all of them.
QUICK = ("galaxy_shape",)
NAMES = [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow, id=name)
    for name in WITH_KERAS
]
backend = Later("cepheid.reference.keras.backend")


def configure(name: str, data_root: Path, *overrides: str, seed: int = 3) -> RunConfig:
    """The configuration of the contract, as the backend computes unless asked."""
    way = f"compile={next(iter(backend.engine.WAYS))}"
    return configuration(name, data_root, way, *overrides, seed=seed)


def import_task(name: str) -> Any:
    """The module of the benchmark's task in Keras."""
    return importlib.import_module(f"cepheid.benchmarks.{name}.keras_task")


def make_alone() -> SingleProcess:
    """Return the only process of a run."""
    return SingleProcess(backend.FRAMEWORK)


def create_task(config: RunConfig) -> Any:
    """The benchmark's task in Keras."""
    return find_create(import_task(config.definition.name))(config, make_alone())


def build(config: RunConfig) -> Any:
    """The same, built, with its data open."""
    task = create_task(config)
    task.build()
    task.open_data()
    return task


@dataclasses.dataclass(frozen=True)
class Traced:
    """A task whose graphs the tests of a benchmark share, and the state in which it was built.

    Tracing takes seconds, a step milliseconds.
    """

    task: Any
    parameters: int
    built: Mapping[str, Any]

    def rewind(self) -> Any:
        """Return the task in the state in which it was built."""
        self.task.restore(self.built)
        return self.task


@lru_cache(maxsize=2)  # both tasks of the benchmark that is tested now
def trace(name: str, data_root: Path, number: int) -> Traced:
    """Return one of two tasks of a benchmark: what holds between tasks is tested with both."""
    task = create_task(configure(name, data_root))
    parameters = task.build()
    task.open_data()
    return Traced(task, parameters, task.state())


def train(task: Any, samples: int) -> float:
    """Train to ``samples``; the mean loss."""
    loss: float = task.train(Block(1, 0, samples), lambda samples: None)
    return loss


def train_and_read(task: Any, samples: int) -> Mapping[str, Any]:
    """Train to ``samples``; the weights then."""
    train(task, samples)
    weights: Mapping[str, Any] = task.state()["model"]
    return weights


def is_same(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Bit for bit."""
    return all(np.array_equal(value, second[key]) for key, value in first.items())


def assert_same(first: Mapping[str, Any], second: Mapping[str, Any], what: str) -> None:
    """Bit for bit."""
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert np.array_equal(value, second[key]), f"{what}: {key} differs"


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_as_declared_and_the_loss_falls(name: str, data_root: Path) -> None:
    traced = trace(name, data_root, 0)
    assert traced.parameters == traced.task.config.definition.model["parameters"]
    task = traced.rewind()
    losses = [train(task, TRAIN)]
    assert math.isfinite(losses[0])
    while max(losses[-3:]) >= losses[0]:  # until three epochs in a row lie below the first
        assert len(losses) < 20, f"{name}: the loss does not fall ({losses})"
        losses.append(train(task, (len(losses) + 1) * TRAIN))


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_bits_other_seed_other_bits(name: str, data_root: Path) -> None:
    one = trace(name, data_root, 0)
    again = build(configure(name, data_root)).state()
    other = build(configure(name, data_root, seed=4)).state()
    for part in ("model", "optimizer"):
        assert_same(one.built[part], again[part], f"{name}: {part}, built twice with one seed")
    assert not is_same(one.built["model"], other["model"]), f"{name}: the seed changes nothing"
    first, second = (train_and_read(one.rewind(), 32) for _ in range(2))
    assert_same(first, second, f"{name}: two runs with one seed")
    assert not is_same(one.built["model"], first), f"{name}: training changes nothing"


@pytest.mark.parametrize("name", NAMES)
def test_a_block_trains_as_single_steps_do(name: str, data_root: Path) -> None:
    task = trace(name, data_root, 0).rewind()
    mean_loss = train(task, 4 * task.config.global_batch_size)
    in_block = task.state()["model"]
    task = trace(name, data_root, 0).rewind()
    losses = [float(backend.read(task.step())) for _ in range(4)]
    assert mean_loss == pytest.approx(sum(losses) / 4, rel=1e-6)
    assert_same(in_block, task.state()["model"], f"{name}: a block and its steps")


@pytest.mark.parametrize("name", NAMES)
def test_warming_up_leaves_no_trace(name: str, data_root: Path) -> None:
    cold, warm = trace(name, data_root, 0), trace(name, data_root, 1)
    task = warm.rewind()
    task.warm_up()
    for part in ("model", "optimizer"):
        assert_same(warm.built[part], task.state()[part], f"{name}: {part} after warming up")
    assert_same(
        train_and_read(cold.rewind(), 32),
        train_and_read(task, 32),
        f"{name}: training after warming up",
    )


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_does_not_depend_on_the_batch_size(name: str, data_root: Path) -> None:
    task = trace(name, data_root, 0).rewind()
    train(task, 32)
    results = []
    for size in (8, 64):
        assert EVALUATION % 8  # the last batch is smaller
        task.evaluation_batch = size
        results.append(task.evaluate())
    assert results[1] == pytest.approx(results[0], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_saving_loading_and_going_on_equals_going_on(
    name: str, data_root: Path, tmp_path: Path
) -> None:
    first, second = trace(name, data_root, 0), trace(name, data_root, 1)
    straight = train_and_read(first.rewind(), 64)
    broken_off = first.rewind()
    train(broken_off, 32)
    checkpoint.save(tmp_path / "half.npz", broken_off.state())
    resumed = second.task
    resumed.restore(checkpoint.load(tmp_path / "half.npz"))
    assert_same(straight, train_and_read(resumed, 64), f"{name}: going on")


@pytest.mark.parametrize("name", NAMES)
def test_log_passes_the_checker(
    name: str, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_easy(name, tmp_path / "benchmarks", monkeypatch)
    config = dataclasses.replace(configure(name, data_root), framework="keras")
    assert_run_passes(create_task(config), config, tmp_path)
