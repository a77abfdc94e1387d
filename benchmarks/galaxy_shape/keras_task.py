"""galaxy_shape in Keras 3 on TensorFlow, the framework it was published in; in one process."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.galaxy_shape.framework_free import ShapeTask
from benchmarks.galaxy_shape.keras_model import (
    Tensor,
    compute_in,
    negative_log_likelihood,
    posterior,
    shape_network,
    whitened,
)
from benchmarks.galaxy_shape.science import RADIUS_SQUARED
from reference.alone import AnyRanks
from reference.config import Execution, RunConfig
from reference.keras_backend import FRAMEWORK, POLICIES, keras, settled, tf, use_threads
from rules.definition import Block


def create(config: RunConfig, ranks: AnyRanks) -> "KerasGalaxyShape":
    """The task that the timed loop drives."""
    return KerasGalaxyShape(config, ranks)


class KerasGalaxyShape(ShapeTask):
    """e1 and e2 of a galaxy from its six-band stamp, as a bivariate normal."""

    def __init__(self, config: RunConfig, ranks: AnyRanks) -> None:
        super().__init__(config)
        self.ranks = ranks

    def build(self) -> int:
        """Model and optimizer, from the seed; returns the number of trainable parameters."""
        threads = use_threads(self.config.execution.threads)
        keras.utils.set_random_seed(self.config.seed)
        self.model = self.network()
        values = self.config.hyperparameters
        self.optimizer = keras.optimizers.Adam(
            float(values["opt_base_learning_rate"]),
            beta_1=float(values["opt_adam_beta_1"]),
            beta_2=float(values["opt_adam_beta_2"]),
            global_clipnorm=float(values["opt_gradient_clip_norm"]),
            name="adam",  # else numbered, and the names are those of saved states
        )
        self.optimizer.build(self.model.trainable_variables)
        self.optimizer.epsilon = self._epsilon = tf.Variable(math.nan)  # set at each step
        self._traced: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._compute_as(self.config.execution.having("threads", threads))
        return sum(math.prod(weight.shape) for weight in self.model.trainable_variables)

    def network(self) -> keras.Model:
        """Of the definition, with weights from the global seed."""
        model, data = self.definition.model, self.definition.data
        return shape_network(
            bands=len(data["bands"]),
            pixels=data["pixels"],
            filters=model["filters"],
            targets=len(model["targets"]),
            prelu=model["prelu"],
            input_scaling=model["input_scaling"],
            batch_norm_epsilon=model["batch_norm_epsilon"],
            batch_norm_momentum=model["batch_norm_momentum"],
        )

    def warm_up(self) -> None:
        """Settle how to compute, then one step and one prediction on noise; weights, statistics and
        optimizer are put back."""
        variables = [*self.model.variables, *self.optimizer.variables]
        before = [variable.numpy() for variable in variables]
        self._step_on_noise(settled(self.execution, self._step_on_noise, self.ranks))
        self.predicted(self._synthetic(self.evaluation_batch)[0])
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)

    def implementation(self) -> Mapping[str, Any]:
        """What a reader asks for beside a time."""
        how = {"on": "XLA", "off": "graph", "auto": "graph"}[self.execution.compile]
        return {
            "framework": FRAMEWORK,
            "device": self.ranks.accelerator or "cpu",
            "ranks": 1,
            "threads_per_rank": int(self.execution.threads),
            "precision": {"bf16": "bfloat16"}.get(self.execution.precision, "float32"),
            "training_step": how,
            "evaluation": how,
            "execution": asdict(self.execution),
        }

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        """Steps up to ``block.samples``; returns the mean loss over the block."""
        losses = []
        while self.samples < block.samples:
            losses.append(self.step())
            on_samples(self.samples)
        return float(np.mean(np.array(losses, np.float64)))

    def step(self) -> Tensor:
        """One optimizer step on the next batch; returns its mean loss."""
        batch = self.config.global_batch_size
        positions, orientations = self.order.take(self.samples, batch)
        stamps, labels = self.read_arrays(self.training_rows[positions], orientations)
        self.samples += batch
        self._set_step(self.samples // batch)
        base = float(self.config.hyperparameters["opt_base_learning_rate"])
        self.optimizer.learning_rate.assign(self.learning_rate(base))
        train, _ = self._functions
        return train(tf.constant(stamps), tf.constant(labels))

    def loss_and_gradients(self, stamps: Tensor, labels: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The mean loss of a batch, and its gradients in the order of the trainable variables."""
        with tf.GradientTape() as tape:
            mean, scale = self._posterior(stamps, training=True)
            loss = keras.ops.mean(negative_log_likelihood(mean, scale, labels))
        return loss, tape.gradient(loss, self.model.trainable_variables)

    def evaluate(self) -> dict[str, float]:
        """RMSE of (e1, e2), mean negative log likelihood in nats, and the share of galaxies inside
        the 68% and 95% regions, over the whole evaluation set."""
        sums = np.zeros(5)
        for rows, count in self.in_batches(self.evaluation_rows):
            stamps, labels = self.read_arrays(rows)
            mean, scale = self.predicted(stamps)
            sums += _sums_of_metrics(mean[:count], scale[:count], labels[:count])
        return self.quality(sums.tolist())

    def predicted(self, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means (n, d) and scale matrices (n, d, d) of one evaluation batch, as it is stored."""
        _, predict = self._functions
        mean, scale = predict(tf.constant(stamps))
        return mean.numpy(), scale.numpy()

    def synchronize(self) -> None:
        """Nothing is under way: losses and predictions have been read."""

    def state(self) -> dict[str, Any]:
        """All that going on needs: weights and statistics, optimizer, samples trained; arrays."""
        return {
            "model": _values(self.model.variables),
            "optimizer": _values(self.optimizer.variables),
            "samples": self.samples,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``, on a task that was built with the same configuration."""
        for part, key in ((self.model, "model"), (self.optimizer, "optimizer")):
            for variable in part.variables:
                variable.assign(state[key][variable.path])
        self.samples = int(state["samples"])

    def _posterior(self, stamps: Tensor, *, training: bool) -> tuple[Tensor, Tensor]:
        head = self.model(stamps, training=training)
        return posterior(head, len(self.definition.model["targets"]))

    def _train_on(self, stamps: Tensor, labels: Tensor) -> Tensor:
        loss, gradients = self.loss_and_gradients(stamps, labels)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return loss

    def _predict(self, stamps: Tensor) -> tuple[Tensor, Tensor]:
        return self._posterior(stamps, training=False)

    def _compute_as(self, how: Execution) -> None:
        """Compute as ``how`` says from now on; what was traced for it is kept."""
        self.execution = how
        precision = how.precision if how.precision in POLICIES else "fp32"  # until it is settled
        compute_in(self.model, precision)
        key = (precision, how.compile)
        if key not in self._traced:
            use_xla = how.compile == "on"
            self._traced[key] = (
                tf.function(self._train_on, jit_compile=use_xla),
                tf.function(self._predict, jit_compile=use_xla),
            )
        self._functions = self._traced[key]

    def _set_step(self, number: int) -> None:
        """Adam's epsilon is added after the correction of the bias (Kingma & Ba 2015, algorithm 1),
        as PyTorch does; Keras adds it before, so it gets another one at each step."""
        values = self.config.hyperparameters
        beta_2, epsilon = float(values["opt_adam_beta_2"]), float(values["opt_adam_epsilon"])
        self._epsilon.assign(epsilon * math.sqrt(1 - beta_2**number))

    def _step_on_noise(self, how: Execution) -> str:
        self._compute_as(how)
        self._set_step(1)
        stamps, labels = self._synthetic(self.config.global_batch_size)
        train, _ = self._functions
        train(tf.constant(stamps), tf.constant(labels)).numpy()
        return ""

    def _synthetic(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        data, model = self.definition.data, self.definition.model
        noise = np.random.default_rng(0)  # of its own: warming up must not move the global one
        stamps = noise.normal(size=(count, len(data["bands"]), data["pixels"], data["pixels"]))
        return stamps.astype(np.float16), np.zeros((count, len(model["targets"])), np.float32)


def _values(variables: Any) -> dict[str, np.ndarray]:
    return {variable.path: variable.numpy() for variable in variables}


def _sums_of_metrics(mean: np.ndarray, scale: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Sums over a batch, in float64: squared errors, NLL, inside 68%, inside 95%, samples."""
    white = np.asarray(whitened(mean, scale, labels), np.float64)
    radius_squared = np.square(white).sum(1)
    likelihood = np.asarray(negative_log_likelihood(mean, scale, labels), np.float64)
    return np.array(
        [
            np.square((mean - labels).astype(np.float64)).sum(),
            likelihood.sum(),
            (radius_squared < RADIUS_SQUARED["coverage_68"]).sum(),
            (radius_squared < RADIUS_SQUARED["coverage_95"]).sum(),
            len(labels),
        ]
    )
