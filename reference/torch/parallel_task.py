"""The base of tasks with large models.

Gradients are averaged during the backward pass, the update may be sharded, and with fp16 the loss
is scaled.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from reference.run.config import Execution
from reference.torch.distributed import detect_lost_rank
from reference.torch.parallel import (
    clear_optimizer_state,
    make_data_parallel,
    make_sharded_optimizer,
)
from reference.torch.task import TorchTask


class ParallelTask(TorchTask):
    """A ``TorchTask`` that trains ``parallel``, which is ``model`` with averaged gradients.

    Its definition has the execution settings ``all_reduce`` and ``weight_update``
    (``reference.torch.parallel``). ``scaler`` scales the loss where the precision is fp16.
    """

    parallel: nn.Module

    def make_parallel_optimizer(
        self, kind: type[Optimizer], groups: Sequence[Mapping[str, Any]], **options: Any
    ) -> Optimizer:
        """Set ``parallel`` and return an optimizer of type ``kind`` for ``groups``."""
        own = self.config.execution.own
        self.parallel = make_data_parallel(self.model, self.ranks, own["all_reduce"])
        return make_sharded_optimizer(kind, groups, self.ranks, own["weight_update"], **options)

    def warm_up(self) -> None:
        """Warm up as ``TorchTask``, then clear the state of a sharded update and of the scaler."""
        super().warm_up()
        clear_optimizer_state(self.optimizer)
        self.use_execution(self.execution)

    def loss_and_gradients(self) -> Tensor:
        """Run forward and backward on this rank's share; average the gradients meanwhile.

        Return the detached loss, a scalar.
        """
        with self.phase("data"):
            batch = self.next_batch()
        with self.sync_gradients():
            with self.phase("forward"):
                loss: Tensor = self.compiled_loss(*batch)
            with self.phase("backward"), detect_lost_rank():
                self.scaler.scale(loss).backward()
        return loss.detach()

    def share_gradients(self) -> None:
        """Average the gradients at once, if a profiler times the phases of the step."""
        if self.phase is not nullcontext:
            super().share_gradients()

    def sync_gradients(self) -> AbstractContextManager[object]:
        """Return the context of the last forward and backward pass of a step.

        The backward pass averages the gradients, unless a profiler times that as a phase.
        """
        return nullcontext() if self.phase is nullcontext else self.no_sync()

    def no_sync(self) -> AbstractContextManager[object]:
        """Return the context of all passes before the last one, which average no gradients."""
        if isinstance(self.parallel, DistributedDataParallel):
            context: AbstractContextManager[object] = self.parallel.no_sync()
            return context
        return nullcontext()

    def apply_gradients(self) -> None:
        """Count the samples of the step, set its learning rates and change the weights."""
        self.samples += self.config.global_batch_size
        self.prepare_update()
        with detect_lost_rank():
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def use_execution(self, settings: Execution) -> None:
        """Compute with these execution settings from now on, with a new scaler."""
        super().use_execution(settings)
        is_scaled = self.precision is torch.float16
        self.scaler = torch.amp.GradScaler(self.ranks.device.type, enabled=is_scaled)

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs.

        If the update is sharded, no rank has the whole state of the optimizer; it is left out.
        """
        is_sharded = self.config.execution.own["weight_update"] == "sharded"
        if is_sharded and self.ranks.world_size > 1:
            state = {"model": self.model.state_dict(), "optimizer": {}, "samples": self.samples}
        else:
            state = super().state()
        return {**state, "loss_scale": self.scaler.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``, on a task that was built with the same configuration."""
        super().restore(state)
        if state.get("loss_scale"):
            self.scaler.load_state_dict(state["loss_scale"])
