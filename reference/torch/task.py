"""The base of all tasks that train on torch; benchmarks differ in model, data and metrics."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reference.run.config import Execution, RunConfig
from reference.run.seeding import seed_everything
from reference.run.task import BenchmarkTask
from reference.torch import execution, precision
from reference.torch.compilation import Compiled
from reference.torch.distributed import TorchRanks, detect_lost_rank
from reference.torch.execution import explain_out_of_memory
from rules.definition import Block

Phase = Callable[[str], AbstractContextManager[object]]


class TorchTask(BenchmarkTask):
    """A task of ``reference.run.train``; a subclass adds model, optimizer, data and metrics.

    A subclass must implement the methods of the first section and may override the others.
    ``phase`` is entered around each part of a step: data, forward, backward, communication, update
    (``reference.measure.step_profiler``).
    """

    ranks: TorchRanks
    has_varying_shapes = False  # from batch to batch

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        self.batch_per_rank = ranks.split_batch(config.global_batch_size)
        super().__init__(config, ranks)
        self.phase: Phase = nullcontext

    # A benchmark implements:

    def make_network(self) -> nn.Module:
        """Return the network of the definition, initialised from torch's global generator."""
        raise NotImplementedError

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer of the configuration for ``model``."""
        raise NotImplementedError

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return this rank's inputs and targets of the global batch that follows ``samples``.

        Both are (share, …).
        """
        raise NotImplementedError

    def make_noise_batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the real shapes, (count, …), without reading the dataset."""
        raise NotImplementedError

    def compute_loss(self, inputs: Tensor, targets: Tensor, /) -> Tensor:
        """Return the mean loss of a batch of ``next_batch``, a scalar with gradients."""
        raise NotImplementedError

    def open_data(self) -> None:
        """Touch the dataset for the first time."""
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        """Return all metrics over the whole evaluation set, the same on every rank."""
        raise NotImplementedError

    # A benchmark may override:

    def build(self) -> int:
        """Make model and optimizer from the seed; return the number of trainable parameters."""
        seed_everything(self.config.seed)
        self.model = self.make_network().to(self.ranks.device)
        self.optimizer = self.make_optimizer()
        requested = self.config.execution
        insist = requested.compile == "on"
        self.compiled_loss = Compiled(
            self.compute_loss, enabled=insist, insist=insist, dynamic=self.has_varying_shapes
        )
        self.compiled_predict = Compiled(self.predict, enabled=insist, insist=insist)
        self.use_execution(requested)
        return sum(parameter.numel() for parameter in self.model.parameters())

    def predict(self, inputs: Tensor, /) -> Any:
        """Return what an evaluation computes for inputs (batch, …): here what ``model`` returns."""
        with self.autocast():
            return self.model(inputs)

    def warm_up(self) -> None:
        """Choose the execution settings, then run one step and one prediction on noise.

        Weights, statistics and optimizer are as built afterwards. Raises UserError where step or
        prediction need more memory than there is.
        """
        before = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.model.train()
        with explain_out_of_memory(f"a training step on {self.batch_per_rank:,} samples"):
            self.step_on_noise(
                execution.autotune(self.config.execution, self.step_on_noise, self.ranks)
            )
            self.optimizer.step()
        self.model.eval()
        with explain_out_of_memory("an evaluation"), torch.no_grad():
            self.predict_noise()
        self.model.load_state_dict(before)
        self.optimizer.zero_grad()
        self.optimizer.state.clear()

    def predict_noise(self) -> None:
        """Compute everything that an evaluation computes once, in its shapes."""
        self.compiled_predict(self.draw_noise(self.evaluation_batch)[0])

    def implementation(self) -> Mapping[str, Any]:
        """Return framework, device, ranks and execution, for readers of the log."""
        return {
            "framework": self.ranks.framework,
            "device": self.ranks.accelerator or "cpu",
            "ranks": self.ranks.world_size,
            "threads_per_rank": torch.get_num_threads(),
            "precision": str(self.precision).removeprefix("torch."),
            "training_step": self.compiled_loss.note,
            "evaluation": self.compiled_predict.note,
            "execution": asdict(self.execution),
        }

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        """Train to ``block.samples``; return the mean loss over the block, on every rank."""
        self.model.train()
        losses = []
        while self.samples < block.samples:
            losses.append(self.step())
            on_samples(self.samples)
        total = self.ranks.sum(torch.stack(losses).double().sum())
        return float(total) / len(losses) / self.ranks.world_size

    def step(self) -> Tensor:
        """Run one step on the next global batch; return this rank's detached loss, a scalar."""
        loss = self.loss_and_gradients()
        with self.phase("communication"):
            self.share_gradients()
        with self.phase("update"):
            self.apply_gradients()
        return loss

    def loss_and_gradients(self) -> Tensor:
        """Run forward and backward on this rank's share of the next global batch.

        Return the detached loss, a scalar.
        """
        with self.phase("data"):
            batch = self.next_batch()
        with self.phase("forward"):
            loss: Tensor = self.compiled_loss(*batch)
        with self.phase("backward"):
            loss.backward()
        return loss.detach()

    def share_gradients(self) -> None:
        """Average the gradients over the ranks."""
        self.ranks.average_gradients(self.model.parameters())

    def apply_gradients(self) -> None:
        """Count the samples of the step, set its learning rates and change the weights."""
        self.samples += self.config.global_batch_size
        self.prepare_update()
        with detect_lost_rank():
            self.optimizer.step()
        self.optimizer.zero_grad()

    def prepare_update(self) -> None:
        """Set the learning rate of the step that completes ``samples``; clip, where needed."""
        rate = self.learning_rate()
        if rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = rate

    def learning_rate(self) -> float | None:
        """Return the learning rate of the step that completes ``samples``, or None to keep it."""
        return None

    def synchronize(self) -> None:
        """Wait for this rank's device and for all other ranks."""
        self.ranks.barrier()

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs: weights, statistics, optimizer, samples trained."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "samples": self.samples,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``, on a task that was built with the same configuration."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.samples = int(state["samples"])

    def use_execution(self, settings: Execution) -> None:
        """Compute with these execution settings from now on."""
        self.execution = settings
        execution.use_threads(settings)
        # An "auto" that autotuning has not replaced yet computes in float32.
        self.precision = precision.TYPES.get(settings.precision, torch.float32)
        self.compiled_loss.enabled = self.compiled_predict.enabled = settings.compile == "on"

    def step_on_noise(self, settings: Execution) -> str:
        """Run forward and backward on noise; return why compiling failed, or an empty string."""
        self.use_execution(settings)
        self.compiled_loss(*self.draw_noise(self.batch_per_rank)).backward()
        return self.compiled_loss.failure

    # For all:

    def split_for_evaluation(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Yield this rank's share of ``rows`` (n,) in batches of ``evaluation_batch`` at most."""
        share = rows[self.ranks.rank :: self.ranks.world_size]
        for first in range(0, len(share), self.evaluation_batch):
            yield share[first : first + self.evaluation_batch]

    @property
    def first_sample(self) -> int:
        """The place of this rank's first sample of the next global batch among all that train."""
        return self.samples + self.ranks.rank * self.batch_per_rank

    def draw_noise(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the noise batch on this rank's device; torch's global generator stays as it is.

        Shapes are those of ``make_noise_batch``.
        """
        inputs, targets = self.make_noise_batch(count, torch.Generator().manual_seed(0))
        return self.to_device(inputs), self.to_device(targets)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which a forward pass runs at the precision of the run."""
        return precision.autocast(self.precision, self.ranks.device)

    def to_device(self, values: Tensor | np.ndarray) -> Tensor:
        """Return ``values`` on this rank's device, in the same shape and type."""
        tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        return tensor.to(self.ranks.device, non_blocking=True)
