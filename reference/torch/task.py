"""What the tasks of all benchmarks that train on torch have in common: they differ in model,
optimizer, data and metrics."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from reference.run.config import Execution, RunConfig
from reference.run.seeding import seed_everything
from reference.torch import execution, precision
from reference.torch.compilation import Compiled
from reference.torch.distributed import TorchRanks
from rules.definition import Block
from rules.errors import UserError

Phase = Callable[[str], AbstractContextManager[object]]


def ignore_phase(phase: str) -> AbstractContextManager[object]:
    """Nobody asks how long the phases of a step take."""
    return nullcontext()


class TorchTask:
    """A task of ``reference.run.train`` whose subclass says what is trained on what.

    ``samples`` counts the samples trained. ``phase`` is entered around each part of a step: data,
    forward, backward, communication, update (``reference.measure.step_profiler``).
    """

    evaluation_batch: int
    shapes_vary = False  # from batch to batch

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        self.config, self.definition, self.ranks = config, config.definition, ranks
        self.batch_per_rank = ranks.split_batch(config.global_batch_size)
        self.samples = 0
        self.phase: Phase = ignore_phase

    # What a benchmark says:

    def make_network(self) -> nn.Module:
        """The network of the definition, initialised from torch's global generator."""
        raise NotImplementedError

    def make_optimizer(self) -> torch.optim.Optimizer:
        """That of the configuration, for ``model``."""
        raise NotImplementedError

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets: this rank's share of the global batch that follows ``samples``."""
        raise NotImplementedError

    def apply_gradients(self) -> None:
        """Count the samples of the step, then change the weights."""
        raise NotImplementedError

    def _synthetic(self, count: int) -> tuple[Tensor, Tensor]:
        """Noise in the shapes of a batch."""
        raise NotImplementedError

    def _mean_loss(self, inputs: Tensor, targets: Tensor, /) -> Tensor:
        """The loss of a batch as ``next_batch`` has it, a scalar with gradients."""
        raise NotImplementedError

    def _outputs(self, inputs: Tensor, /) -> Any:
        """What an evaluation computes of a batch of inputs."""
        raise NotImplementedError

    # What follows:

    def build(self) -> int:
        """Model and optimizer, from the seed; returns the number of trainable parameters."""
        seed_everything(self.config.seed)
        self.model = self.make_network().to(self.ranks.device)
        self.optimizer = self.make_optimizer()
        asked = self.config.execution
        insist = asked.compile == "on"
        self._loss = Compiled(
            self._mean_loss, enabled=insist, insist=insist, dynamic=self.shapes_vary
        )
        self._predict = Compiled(self._outputs, enabled=insist, insist=insist)
        self._compute_as(asked)
        return sum(parameter.numel() for parameter in self.model.parameters())

    def warm_up(self) -> None:
        """Settle how to compute, then one step and one prediction on noise; weights, statistics and
        optimizer are put back. Raises UserError where they need more memory than there is."""
        before = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.model.train()
        with _fitting_in_memory(f"a training step on {self.batch_per_rank:,} samples"):
            self._step_on_noise(
                execution.autotune(self.config.execution, self._step_on_noise, self.ranks)
            )
            self.optimizer.step()
        self.model.eval()
        with _fitting_in_memory("an evaluation"), torch.no_grad():
            self.predict_noise()
        self.model.load_state_dict(before)
        self.optimizer.zero_grad()
        self.optimizer.state.clear()

    def predict_noise(self) -> None:
        """Once all that an evaluation computes, in its shapes."""
        self._predict(self._synthetic(self.evaluation_batch)[0])

    def implementation(self) -> Mapping[str, Any]:
        """What a reader asks for beside a time."""
        return {
            "framework": self.ranks.framework,
            "device": self.ranks.accelerator or "cpu",
            "ranks": self.ranks.world_size,
            "threads_per_rank": torch.get_num_threads(),
            "precision": str(self.precision).removeprefix("torch."),
            "training_step": self._loss.note,
            "evaluation": self._predict.note,
            "execution": asdict(self.execution),
        }

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        """Steps up to ``block.samples``; returns the mean loss over the block, on every rank."""
        self.model.train()
        losses = []
        while self.samples < block.samples:
            losses.append(self.step())
            on_samples(self.samples)
        total = self.ranks.sum(torch.stack(losses).double().sum())
        return float(total) / len(losses) / self.ranks.world_size

    def step(self) -> Tensor:
        """One optimizer step on the next global batch; returns this rank's detached mean loss."""
        loss = self.loss_and_gradients()
        with self.phase("communication"):
            self.share_gradients()
        with self.phase("update"):
            self.apply_gradients()
        return loss

    def loss_and_gradients(self) -> Tensor:
        """Forward and backward on this rank's share of the next global batch."""
        with self.phase("data"):
            batch = self.next_batch()
        with self.phase("forward"):
            loss: Tensor = self._loss(*batch)
        with self.phase("backward"):
            loss.backward()
        return loss.detach()

    def share_gradients(self) -> None:
        """Average the gradients over the ranks."""
        self.ranks.average_gradients(self.model.parameters())

    def synchronize(self) -> None:
        """Wait for this rank's device and for all other ranks."""
        self.ranks.barrier()

    def state(self) -> dict[str, Any]:
        """All that going on needs: weights, statistics, optimizer, samples trained."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "samples": self.samples,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``, on a task that was built with the same configuration."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.samples = int(state["samples"])

    def _compute_as(self, how: Execution) -> None:
        """Compute as ``how`` says from now on."""
        self.execution = how
        execution.use_threads(how)
        self.precision = precision.TYPES.get(how.precision, torch.float32)  # until it is settled
        self._loss.enabled = self._predict.enabled = how.compile == "on"

    def _step_on_noise(self, how: Execution) -> str:
        self._compute_as(how)
        self._loss(*self._synthetic(self.batch_per_rank)).backward()
        return self._loss.failure


@contextmanager
def _fitting_in_memory(what: str) -> Iterator[None]:
    """Where memory cannot be had the user is told, before the clock runs."""
    try:
        yield
    except RuntimeError as error:
        on_gpu = isinstance(error, torch.OutOfMemoryError)
        if not on_gpu and "can't allocate memory" not in str(error):
            raise
        raise UserError(
            f"{what} needs more memory than {'the GPU' if on_gpu else 'this machine'} has: choose "
            "a smaller global_batch_size, or more ranks"
        ) from error
