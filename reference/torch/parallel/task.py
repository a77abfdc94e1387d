"""The base of tasks with large models.

Gradients are averaged during the backward pass, the update may be sharded, and with fp16 the loss
is scaled.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Execution
from cepheid.reference.torch.parallel.data_parallel import BUCKET_MIB, make_data_parallel
from cepheid.reference.torch.parallel.mesh import RankMesh
from cepheid.reference.torch.parallel.model_parallel_task import ModelParallelTask
from cepheid.reference.torch.parallel.plan import find_shape
from cepheid.reference.torch.parallel.sharded_update import ShardedUpdate
from cepheid.reference.torch.ranks.collectives import detect_lost_rank
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules.definition import Block


class ParallelTask(ModelParallelTask):
    """A ``TorchTask`` that trains ``parallel``, which is ``model`` with averaged gradients.

    Its definition has the execution settings ``all_reduce``
    (``cepheid.reference.torch.parallel.mesh``) and ``weight_update``. ``scaler`` scales the loss
    where the precision is fp16. ``sharded`` is the update that the ranks share, if they do.
    """

    parallel: nn.Module
    sharded: ShardedUpdate | None = None

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        self.mesh_shape = find_shape(config.execution.parallelism.all_reduce, ranks)

    def make_parallel_optimizer(
        self, kind: type[Optimizer], groups: Sequence[Mapping[str, Any]], **options: Any
    ) -> Optimizer:
        """Set ``parallel`` and return an optimizer of type ``kind`` for ``groups``.

        With ``weight_update=sharded`` each rank updates a part of every weight; ``overlapped``
        begins the next forward pass while the last weights still travel. Where the loss is scaled,
        the optimizer is not fused. After an overflow PyTorch 2.13 asks the fused kernel to skip the
        update, and two things go wrong: SGD has made its momentum with ``empty_like`` and goes on
        with what lay in memory, and where several ranks have found an overflow, their sum is not 1
        and the kernel updates all the same.
        """
        if "fused" in options and self.config.execution.precision == "fp16":
            options["fused"] = False
        if shared := self.share_model():
            self.parallel = shared.network
            return kind(shared.select(groups), **options)
        weight_update = self.config.execution.parallelism.weight_update
        if weight_update == "replicated" or self.ranks.world_size == 1:
            self.parallel = make_data_parallel(self.model, self.ranks, self.mesh_shape)
            return kind([dict(group) for group in groups], **options)
        self.parallel = self.model
        self.sharded = ShardedUpdate(
            self.model,
            RankMesh(self.ranks, self.mesh_shape),
            kind,
            groups,
            phase=lambda name: self.phase(name),
            bucket_bytes=BUCKET_MIB * 2**20,
            is_ahead=weight_update == "overlapped",
            **options,
        )
        return self.sharded.optimizer

    def warm_up(self) -> None:
        """Warm up as ``TorchTask``, then clear the state of the scaler."""
        super().warm_up()
        self.use_execution(self.execution)

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        """Train to ``block.samples``; return the mean loss over the block, on every rank."""
        loss = super().train(block, on_samples)
        if self.sharded:
            self.sharded.receive_weights()
        return loss

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the scaled ``loss``, a scalar, to those of the parameters."""
        with detect_lost_rank():
            self.scaler.scale(loss).backward()

    def share_gradients(self) -> None:
        """Average the gradients at once, if a profiler times the phases of the step."""
        if self.phase is nullcontext and not self.shared:
            return
        if self.sharded:
            with detect_lost_rank():
                self.sharded.reduce_gradients()
        else:
            super().share_gradients()

    def sync_gradients(self) -> AbstractContextManager[object]:
        """Return the context of the last pass of a step.

        Its backward pass averages the gradients, unless a profiler times that as a phase.
        """
        return nullcontext() if self.phase is nullcontext else self.skip_averaging()

    def no_sync(self) -> AbstractContextManager[object]:
        """Return the context of all passes before the last one, which average no gradients."""
        return self.skip_averaging()

    def skip_averaging(self) -> AbstractContextManager[object]:
        """Return a context in which ``parallel`` leaves gradients as they are."""
        if self.sharded:
            return self.sharded.no_sync()
        if isinstance(self.parallel, DistributedDataParallel):
            context: AbstractContextManager[object] = self.parallel.no_sync()
            return context
        return nullcontext()

    def apply_gradients(self) -> None:
        """Count the samples of the step, set its learning rates and change the weights."""
        self.samples += self.config.global_batch_size
        self.prepare_update()
        with detect_lost_rank():
            if self.sharded:
                self.scaler.unscale_(self.optimizer)  # the ranks tell each other of overflows
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def clip_gradients(self, limit: float) -> None:
        """Scale all gradients so that their norm over all parameters is at most ``limit``.

        With a sharded update each rank has a part of them. What the loss was scaled with is still
        in them.
        """
        assert self.shared is None, "the ranks of a replica would clip their own gradients alone"
        groups = self.optimizer.param_groups
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        if self.sharded:
            norm = self.ranks.sum(norm.double().square()).sqrt().to(norm.dtype)
        factor = limit * self.scaler.get_scale() / (norm + 1e-6)
        torch._foreach_mul_(gradients, factor.clamp(max=1.0))

    def use_execution(self, settings: Execution) -> None:
        """Compute with these execution settings from now on, with a new scaler."""
        super().use_execution(settings)
        is_scaled = self.precision is torch.float16
        self.scaler = torch.amp.GradScaler(self.ranks.device.type, enabled=is_scaled)
        if self.sharded and is_scaled:
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler  # slow

            self.scaler = ShardedGradScaler(self.ranks.device.type)
        if self.sharded:  # a compiled model cannot wait inside
            is_wanted = self.config.execution.parallelism.weight_update == "overlapped"
            self.sharded.is_ahead = is_wanted and settings.compile != "on"

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, at any number of ranks; all ranks call it together."""
        return {**super().state(), "loss_scale": self.scaler.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``, on a task that was built with the same configuration."""
        super().restore(state)
        if state.get("loss_scale"):
            self.scaler.load_state_dict(state["loss_scale"])
