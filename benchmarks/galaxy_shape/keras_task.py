"""galaxy_shape in Keras 3 on TensorFlow, the framework it was published in; in one process."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.galaxy_shape.framework_free import ShapeTask, sums_of_metrics
from benchmarks.galaxy_shape.keras_model import (
    Tensor,
    compute_in,
    negative_log_likelihood,
    posterior,
    shape_network,
)
from reference.keras.backend import FRAMEWORK, POLICIES, autotune, keras, tf, use_threads
from reference.run.config import Execution, RunConfig
from reference.run.ranks import Ranks
from rules.definition import Block


def create(config: RunConfig, ranks: Ranks) -> "KerasGalaxyShape":
    """The task that the timed loop drives."""
    return KerasGalaxyShape(config, ranks)


class KerasGalaxyShape(ShapeTask):
    """e1 and e2 of a galaxy from its six-band stamp, as a bivariate normal."""

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        super().__init__(config)
        self.ranks = ranks

    def build(self) -> int:
        """Model and optimizer, from the seed; returns the number of trainable parameters."""
        threads = use_threads(self.config.execution.threads)
        keras.utils.set_random_seed(self.config.seed)
        self.model = self.network()
        self._epsilon = tf.Variable(math.nan)  # set at each step
        self.optimizers = {
            prefix: self._adam(prefix, variables) for prefix, variables in self.trained().items()
        }
        self._traced: dict[tuple[str, str], dict[str, Any]] = {}
        self._compute_as(self.config.execution.having("threads", threads))
        return sum(math.prod(weight.shape) for weight in self.model.trainable_variables)

    def network(self, **layers: Any) -> keras.Model:
        """Of the definition, with weights from the global seed; ``layers`` as ``shape_network``
        takes them."""
        return shape_network(**self.layout(), **layers)

    def trained(self) -> Mapping[str, Sequence[Any]]:
        """The trainable variables, each part under the prefix of its hyperparameters."""
        return {"opt_": self.model.trainable_variables}

    def computations(self) -> Mapping[str, Callable[..., Any]]:
        """All that is traced, by name."""
        return {"train": self._train_on, "predict": self._predict}

    def warm_up(self) -> None:
        """Settle how to compute, then one step and one prediction on noise; weights, statistics and
        optimizer are put back."""
        variables = [*self.model.variables, *self._optimizer_variables()]
        before = [variable.numpy() for variable in variables]
        self._step_on_noise(autotune(self.execution, self._step_on_noise, self.ranks))
        self.predict_noise()
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)

    def predict_noise(self) -> None:
        """Once all that an evaluation computes, in its shapes."""
        self.predicted(self._synthetic(self.evaluation_batch)[0])

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
        batch = self.next_batch()
        self.samples += self.config.global_batch_size
        self._set_step(self.samples // self.config.global_batch_size)
        for prefix, optimizer in self.optimizers.items():
            base = float(self.config.hyperparameters[f"{prefix}base_learning_rate"])
            optimizer.learning_rate.assign(self.learning_rate(base))
        return self._functions["train"](*map(tf.constant, batch))

    def next_batch(self) -> tuple[np.ndarray, ...]:
        """Stamps and labels, each stamp flipped or transposed at random."""
        rows, orientations = self.order.take(self.samples, self.config.global_batch_size)
        return self.read_arrays(self.training_rows[rows], orientations)

    def mean_loss(self, stamps: Tensor, labels: Tensor) -> Tensor:
        """Of a batch in training."""
        mean, scale = self._posterior(stamps, training=True)
        return keras.ops.mean(negative_log_likelihood(mean, scale, labels))

    def usable(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Of a part: what its optimizer clips and applies."""
        return gradients

    def evaluate(self) -> dict[str, float]:
        """RMSE of (e1, e2), mean negative log likelihood in nats, and the share of galaxies inside
        the 68% and 95% regions, over the whole evaluation set."""
        sums = np.zeros(5)
        for rows, count in self.in_batches(self.evaluation_rows):
            stamps, labels = self.read_arrays(rows)
            mean, scale = self.predicted(stamps)
            sums += sums_of_metrics(mean[:count], scale[:count], labels[:count])
        return self.quality(sums.tolist())

    def predicted(self, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means (n, d) and scale matrices (n, d, d) of one evaluation batch, as it is stored."""
        mean, scale = self._functions["predict"](tf.constant(stamps))
        return mean.numpy(), scale.numpy()

    def synchronize(self) -> None:
        """Nothing is under way: losses and predictions have been read."""

    def state(self) -> dict[str, Any]:
        """All that going on needs: weights and statistics, optimizer, samples trained; arrays."""
        return {
            "model": _values(self.model.variables),
            "optimizer": _values(self._optimizer_variables()),
            "samples": self.samples,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``, on a task that was built with the same configuration."""
        for variable in self.model.variables:
            variable.assign(state["model"][variable.path])
        for variable in self._optimizer_variables():
            variable.assign(state["optimizer"][variable.path])
        self.samples = int(state["samples"])

    def _posterior(self, stamps: Tensor, *, training: bool) -> tuple[Tensor, Tensor]:
        head = self.model(stamps, training=training)
        return posterior(head, len(self.definition.model["targets"]))

    def _train_on(self, *batch: Tensor) -> Tensor:
        parts = self.trained()
        with tf.GradientTape() as tape:
            loss = self.mean_loss(*batch)
        for prefix, gradients in tape.gradient(loss, parts).items():
            self.optimizers[prefix].apply(self.usable(gradients), parts[prefix])
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
            self._traced[key] = {
                name: tf.function(computation, jit_compile=use_xla)
                for name, computation in self.computations().items()
            }
        self._functions = self._traced[key]

    def _adam(self, prefix: str, variables: Sequence[Any]) -> Any:
        values = self.config.hyperparameters
        optimizer = keras.optimizers.Adam(
            float(values[f"{prefix}base_learning_rate"]),
            beta_1=float(values["opt_adam_beta_1"]),
            beta_2=float(values["opt_adam_beta_2"]),
            global_clipnorm=float(values[f"{prefix}gradient_clip_norm"]),
            name=f"{prefix.removeprefix('opt_')}adam",  # else numbered; saved states have the names
        )
        optimizer.build(variables)
        optimizer.epsilon = self._epsilon
        return optimizer

    def _optimizer_variables(self) -> list[Any]:
        return [variable for made in self.optimizers.values() for variable in made.variables]

    def _set_step(self, number: int) -> None:
        """Adam's epsilon is added after the correction of the bias (Kingma & Ba 2015, algorithm 1),
        as PyTorch does; Keras adds it before, so it gets another one at each step."""
        values = self.config.hyperparameters
        beta_2, epsilon = float(values["opt_adam_beta_2"]), float(values["opt_adam_epsilon"])
        self._epsilon.assign(epsilon * math.sqrt(1 - beta_2**number))

    def _step_on_noise(self, how: Execution) -> str:
        self._compute_as(how)
        self._set_step(1)
        batch = self._synthetic(self.config.global_batch_size)
        self._functions["train"](*map(tf.constant, batch)).numpy()
        return ""

    def _synthetic(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        data, model = self.definition.data, self.definition.model
        noise = np.random.default_rng(0)  # of its own: warming up must not move the global one
        stamps = noise.normal(size=(count, len(data["bands"]), data["pixels"], data["pixels"]))
        return stamps.astype(np.float16), np.zeros((count, len(model["targets"])), np.float32)


def _values(variables: Any) -> dict[str, np.ndarray]:
    return {variable.path: variable.numpy() for variable in variables}
