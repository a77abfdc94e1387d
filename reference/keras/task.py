"""The base of all tasks that train in Keras 3, on any of its backends."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cepheid.reference.keras.backend import (
    POLICIES,
    autotune,
    describe,
    engine,
    keras,
    name_way,
    read,
    set_seed,
    use_threads,
)
from cepheid.reference.run.execution import Execution
from cepheid.reference.run.hyperparameters import AdamHyperparameters
from cepheid.reference.run.task import BenchmarkTask
from cepheid.rules.definition import Block

ops = keras.ops
Tensor = Any
COMPUTED_LAYERS = ("trunk_", "head", "encoder.", "decoder.")


class KerasTask(BenchmarkTask):
    """A task of ``cepheid.reference.run.train``; a subclass adds model, data and metrics.

    A subclass must implement the methods of the first section, and ``evaluate``.
    """

    reads_ahead = True
    """Whether batches are read ahead of the steps, or else each when its turn comes."""
    data: Any
    """The open data, with ``read_batch(samples)``; several threads may call it at the same time."""

    # A benchmark implements:

    def make_network(self) -> keras.Model:
        """Return the network of the definition, initialised from Keras' global seed."""
        raise NotImplementedError

    def open_data(self) -> None:
        """Touch the dataset for the first time; set ``data``."""
        raise NotImplementedError

    def make_noise_arrays(self, count: int) -> tuple[np.ndarray, ...]:
        """Return ``count`` inputs and targets, (count, …), of the real shapes and types."""
        raise NotImplementedError

    def compute_loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch in training, a scalar."""
        raise NotImplementedError

    def predict(self, inputs: Tensor) -> Any:
        """Return what an evaluation computes for a batch of inputs, (batch, …)."""
        raise NotImplementedError

    # A benchmark may override:

    def set_precision(self, precision: str) -> None:
        """Compute at ``precision``, fp32 or bf16, in everything traced from now on."""
        set_precision(self.model, precision)

    def read_batch(self, samples: int) -> tuple[np.ndarray, ...]:
        """Return inputs and targets, (batch, …), of the batch that follows ``samples``."""
        return self.data.read_batch(samples)

    def learning_rate_of(self, prefix: str) -> float:
        """Return the rate of a part of the model in the step that completes ``samples``."""
        return self.hyperparameters.learning_rate(prefix, self.samples)

    def clip_norm(self, prefix: str) -> float | None:
        """Return the largest norm of the gradient of a part of the model, or None to keep it."""
        return self.hyperparameters.clip_norm(prefix)

    def variables_by_prefix(self) -> Mapping[str, Sequence[Any]]:
        """Return the trainable variables, by the prefix of their hyperparameters."""
        return {"opt_": self.model.trainable_variables}

    def list_variables(self) -> Sequence[Any]:
        """Return all variables with which the computations compute, or that they change."""
        return [*self.model.variables, *self._optimizer_variables()]

    def computations(self) -> Mapping[str, Callable[..., Any]]:
        """Return all functions that are traced, by name; the step is one of them."""
        return {"train": self.train_on, "predict": self.predict}

    def make_optimizer(self, prefix: str, variables: Sequence[Any]) -> Any:
        """Return the optimizer of a part of the model, built: Adam."""
        values: AdamHyperparameters = self.hyperparameters
        optimizer = Adam(
            values.opt_base_learning_rate,  # set at each step
            epsilon=values.opt_adam_epsilon,
            beta_1=values.opt_adam_beta_1,
            beta_2=values.opt_adam_beta_2,
            global_clipnorm=self.clip_norm(prefix),
            name=f"{prefix.removeprefix('opt_')}adam",  # otherwise numbered; states have the names
        )
        optimizer.build(variables)
        return optimizer

    def repair_gradients(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the gradients of a part as its optimizer clips and applies them.

        They keep their shapes.
        """
        return gradients

    def predict_noise(self) -> None:
        """Compute everything that an evaluation computes once, in its shapes."""
        inputs, *_ = self.make_noise_arrays(self.evaluation_batch)
        self.traced["predict"](inputs)

    # What follows:

    def build(self) -> int:
        """Make model and optimizers from the seed; return the number of trainable parameters."""
        execution = use_threads(self.config.execution)
        set_seed(self.config.seed)
        self.model = self.make_network()
        self.optimizers = {
            prefix: self.make_optimizer(prefix, variables)
            for prefix, variables in self.variables_by_prefix().items()
        }
        self._program = engine.Program(self.list_variables())
        self._traced: Traced = {}
        self.use_execution(execution)
        return sum(math.prod(weight.shape) for weight in self.model.trainable_variables)

    def warm_up(self) -> None:
        """Choose the execution settings, then run one step and one prediction on noise.

        Weights, statistics and optimizers are as built afterwards.
        """
        variables = [*self.model.variables, *self._optimizer_variables()]
        before = [*map(_read_variable, variables)]
        self.step_on_noise(autotune(self.execution, self.step_on_noise, self.ranks))
        self.predict_noise()
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)

    def implementation(self) -> Mapping[str, Any]:
        """Return framework, device and execution, for readers of the log."""
        way = name_way(self.execution)
        done = {"training_step": way, "evaluation": way}
        return describe(self.ranks, self.execution) | done

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        """Train to ``block.samples``; return the mean loss over the block."""
        losses = []
        firsts = range(self.samples, block.samples, self.config.global_batch_size)
        in_turn = map(self.read_batch, firsts)
        for batch in engine.read_ahead(self.read_batch, firsts) if self.reads_ahead else in_turn:
            losses.append(self.step_on(batch))
            on_samples(self.samples)
        return float(np.mean([np.float64(read(loss)) for loss in losses]))

    def step(self) -> Tensor:
        """Run ``step_on`` on the next batch, read now; return its mean loss, a scalar."""
        return self.step_on(self.read_batch(self.samples))

    def step_on(self, batch: Sequence[Tensor]) -> Tensor:
        """Run one optimizer step on a batch of ``read_batch``; return its mean loss, a scalar."""
        self.samples += self.config.global_batch_size
        for prefix, optimizer in self.optimizers.items():
            optimizer.learning_rate.assign(self.learning_rate_of(prefix))
        return self.traced["train"](*batch)

    def train_on(self, *batch: Tensor) -> Tensor:
        """Apply the gradients of a batch of ``read_batch``; return its mean loss, a scalar."""
        parts = self.variables_by_prefix()
        trainable = [variable for part in parts.values() for variable in part]
        loss, gradients = self._program.differentiate(lambda: self.compute_loss(*batch), trainable)
        remaining = iter(gradients)
        for prefix, variables in parts.items():
            of_part = [next(remaining) for _ in variables]
            self.optimizers[prefix].apply(self.repair_gradients(of_part), variables)
        return loss

    def synchronize(self) -> None:
        """Wait for the other processes; this one has already read its losses and predictions."""
        self.ranks.barrier()

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, as arrays: weights, statistics, optimizers, samples."""
        return {
            "model": _read_variables(self.model.variables),
            "optimizer": _read_variables(self._optimizer_variables()),
            "samples": self.samples,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``, on a task that was built with the same configuration."""
        for variable in self.model.variables:
            variable.assign(state["model"][variable.path])
        for variable in self._optimizer_variables():
            variable.assign(state["optimizer"][variable.path])
        self.samples = int(state["samples"])

    def use_execution(self, settings: Execution) -> None:
        """Compute with these execution settings from now on; keep what was traced for them."""
        self.execution = settings
        # An "auto" that autotuning has not replaced yet computes in float32.
        precision = settings.precision if settings.precision in POLICIES else "fp32"
        self.set_precision(precision)
        self.traced = trace(
            self._traced, self._program, precision, settings.compile, self.computations()
        )

    def step_on_noise(self, settings: Execution) -> str:
        """Run one step on noise with these execution settings; return an empty string."""
        self.use_execution(settings)
        share = self.ranks.split_batch(self.config.global_batch_size)
        read(self.traced["train"](*self.make_noise_arrays(share)))
        return ""

    def _optimizer_variables(self) -> list[Any]:
        return [variable for each in self.optimizers.values() for variable in each.variables]


class Adam(keras.optimizers.Adam):  # type: ignore[misc]
    """Adam that adds epsilon after the bias correction (Kingma & Ba 2015, algorithm 1), as PyTorch.

    Keras adds it before; so it gets another epsilon at each step.
    """

    @property
    def epsilon(self) -> Tensor:
        """What Keras adds in the step that comes next, a scalar."""
        step = ops.cast(self.iterations + 1, "float32")
        return self._epsilon * ops.sqrt(1 - ops.power(self.beta_2, step))

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        self._epsilon = value


def set_precision(network: Any, precision: str) -> None:
    """Let convolutions, slopes and dense layers compute at ``fp32`` or ``bf16``.

    It holds for everything traced from now on. All weights, the normalisation, the likelihood and a
    flow stay in float32.
    """
    for layer in network.layers:
        if layer.name.startswith(COMPUTED_LAYERS):
            layer.dtype_policy = keras.DTypePolicy(POLICIES[precision])


Traced = dict[tuple[str, str], dict[str, Any]]


def trace(
    kept: Traced,
    program: Any,
    precision: str,
    compile_setting: str,
    computations: Mapping[str, Callable[..., Any]],
) -> dict[str, Any]:
    """Return ``computations`` of a program as ``compile_setting`` has it; keep them in ``kept``."""
    key = (precision, compile_setting)
    if key not in kept:
        kept[key] = {
            name: program.trace(computation, compile_setting, takes_parts=name == "train")
            for name, computation in computations.items()
        }
    return kept[key]


def _read_variables(variables: Any) -> dict[str, np.ndarray]:
    return {variable.path: _read_variable(variable) for variable in variables}


def _read_variable(variable: Any) -> np.ndarray:
    """Return a copy; a variable of several processes is no array itself."""
    return np.array(read(ops.convert_to_tensor(variable)))
