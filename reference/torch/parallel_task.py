"""A task on torch whose gradients are averaged behind the backward pass, with an update that may be
shared out: what the benchmarks with large models have in common."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from reference.torch.parallel import clear_optimizer_state, data_parallel, make_sharded_optimizer
from reference.torch.task import TorchTask, ignore_phase


class ParallelTask(TorchTask):
    """As ``TorchTask``; ``parallel`` is ``model`` as the ranks train it together.

    Its definition has the settings of execution ``all_reduce`` and ``weight_update``
    (``reference.torch.parallel``).
    """

    parallel: nn.Module

    def make_parallel_optimizer(
        self, kind: type[Optimizer], groups: Sequence[Mapping[str, Any]], **values: Any
    ) -> Optimizer:
        """``kind`` over ``groups``, and ``parallel`` beside it."""
        own = self.config.execution.own
        self.parallel = data_parallel(self.model, self.ranks, own["all_reduce"])
        return make_sharded_optimizer(kind, groups, self.ranks, own["weight_update"], **values)

    def warm_up(self) -> None:
        """As ever, with the state of a shared update too."""
        super().warm_up()
        clear_optimizer_state(self.optimizer)

    def share_gradients(self) -> None:
        """For a ledger only: all at once, not behind the backward pass."""
        if self.phase is not ignore_phase:
            super().share_gradients()

    def sync_gradients(self) -> AbstractContextManager[object]:
        """Around the last forward and backward pass of a step: gradients are averaged behind it,
        unless a ledger is to see that by itself."""
        return nullcontext() if self.phase is ignore_phase else self.no_sync()

    def no_sync(self) -> AbstractContextManager[object]:
        """Around all passes before the last one: gradients stay on this rank."""
        if isinstance(self.parallel, DistributedDataParallel):
            alone: AbstractContextManager[object] = self.parallel.no_sync()
            return alone
        return nullcontext()

    def state(self) -> dict[str, Any]:
        """As ever; where the update is sharded no rank has the whole state of the optimizer, and it
        is left out."""
        is_sharded = self.config.execution.own["weight_update"] == "sharded"
        if is_sharded and self.ranks.world_size > 1:
            return {"model": self.model.state_dict(), "optimizer": {}, "samples": self.samples}
        return super().state()
