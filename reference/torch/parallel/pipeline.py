"""Pipelines: each rank of a replica has some of the layers, and micro-batches flow through them.

The schedules are those of ``torch.distributed.pipelining``, whose interface its documentation calls
alpha; only this module uses it. A stage also gets the batch itself, because every rank of a replica
reads it, so only activations travel.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cepheid.reference.torch.devices.kinds import find_device
from cepheid.reference.torch.parallel.model_parallel import SharedModel
from cepheid.reference.torch.parallel.plan import Sharing, Stage
from cepheid.reference.torch.ranks.collectives import all_reduce, detect_lost_rank
from cepheid.reference.torch.ranks.distributed import TorchRanks

if TYPE_CHECKING:
    from torch.distributed.pipelining.schedules import PipelineScheduleSingle


class Pipeline(SharedModel):
    """One stage of a model per rank of a replica.

    ``sum_losses`` returns the sum of the losses of a micro-batch for logits and targets. On a CPU
    ``seconds`` counts the time in which this rank's stage has computed.
    """

    def __init__(
        self,
        model: nn.Module,
        stages: Sequence[Stage],
        ranks: TorchRanks,
        sharing: Sharing,
        sum_losses: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        super().__init__(model, ranks)
        self.stages, self.sharing, self.sum_losses = stages, sharing, sum_losses
        self.number = ranks.rank % ranks.partitions
        self.stage = stages[self.number]
        self.factor, self.seconds = torch.ones(()), 0.0
        self.passes: Iterator[object] = iter(())
        self._all_parameters: list[nn.Parameter] = []
        self._sizes: tuple[Any, ...] = ()  # of what the schedule sends
        self._schedule: PipelineScheduleSingle | None = None
        self._tied = self._group_tied_parameters()

    def run(
        self, inputs: Tensor, targets: Tensor, factor: Tensor, passes: Iterator[object]
    ) -> Tensor:
        """Run forward and backward on inputs and targets, (n, …) both, in micro-batches.

        Their number divides n. The gradients are those of ``factor`` times the sum of the losses,
        scalars both; it is returned on every rank. ``passes`` is advanced before each micro-batch.
        """
        self.factor, self.passes = factor, passes
        is_last = self.number == self.sharing.stages - 1
        losses: list[Tensor] = []
        with detect_lost_rank():
            self._find_schedule(inputs, targets).step(
                *([inputs] if self.number == 0 else []),
                target=targets if is_last else None,
                losses=losses if is_last else None,
                return_outputs=False,
                inputs=inputs,
                targets=targets,
            )
            total = torch.zeros((), device=inputs.device)
            if is_last:
                total = torch.stack(losses).sum().detach()
            dist.broadcast(total, self._find_rank(self.sharing.stages - 1), self.within)
        return total

    def select(self, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return all ``groups``: an optimizer leaves parameters without gradients as they are."""
        self._all_parameters = [parameter for group in groups for parameter in group["params"]]
        return [dict(group) for group in groups]

    def list_trained(self) -> list[nn.Parameter]:
        """Return the parameters of this rank's stage."""
        return list(self.stage.parameters())

    def share_gradients(self) -> None:
        """Add up the gradients of parameters in several stages, and average over the replicas."""
        for parameter, group in self._tied:
            assert parameter.grad is not None
            parameter.grad.copy_(all_reduce(parameter.grad.clone(), group))
        super().share_gradients()

    def complete_norm(self, norm: Tensor) -> Tensor:
        """Return the norm of the gradients of all stages from that of this one's, both scalars."""
        assert not self._tied, "a gradient of two stages would count twice"
        return all_reduce(norm.double().square(), self.within).sqrt().to(norm.dtype)

    @torch.no_grad()
    def gather_weights(self) -> None:
        """Make ``model`` whole on every rank: each stage sends its weights and statistics."""
        for number, stage in enumerate(self.stages):
            found = (*stage.parameters(), *stage.buffers())
            tensors = [tensor for tensor in found if tensor.is_floating_point()]
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            with detect_lost_rank():
                dist.broadcast(flat, self._find_rank(number), self.within)
            parts = flat.split([tensor.numel() for tensor in tensors])
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))

    def scatter_weights(self) -> None:
        """Clear the gradients; the stages are parts of ``model``."""
        self.model.zero_grad()

    def gather_optimizer(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of this rank's optimizer completed to that of the whole model."""
        fetch = find_device(self.ranks.device).fetch  # others do not have this rank's device
        own = {
            key: {name: fetch(v) if isinstance(v, Tensor) else v for name, v in values.items()}
            for key, values in state["state"].items()
        }
        whole: dict[int, Any] = {}
        for part in self.ranks.all_gather_object(own):
            whole = {**part, **whole}
        return {**state, "state": dict(sorted(whole.items()))}

    def scatter_optimizer(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of the state that belongs to the parameters of this rank's stage."""
        mine = set(map(id, self.list_trained()))
        keys = {key for key, p in enumerate(self._all_parameters) if id(p) in mine}
        return {**state, "state": {k: v for k, v in state["state"].items() if k in keys}}

    def _find_rank(self, stage: int) -> int:
        """Return the rank that has a stage of this rank's replica."""
        return self.ranks.replica * self.ranks.partitions + stage

    def _group_tied_parameters(self) -> list[tuple[nn.Parameter, Any]]:
        """Return this stage's parameters that other stages have too, with the group of their ranks.

        All ranks must call it, because all make each group.
        """
        users: dict[nn.Parameter, list[int]] = {}
        for number, stage in enumerate(self.stages):
            for parameter in stage.parameters():
                users.setdefault(parameter, []).append(number)
        tied = []
        for parameter, numbers in users.items():
            if len(numbers) == 1:
                continue
            for first in range(0, self.ranks.world_size, self.ranks.partitions):
                with detect_lost_rank():
                    group = dist.new_group([first + number for number in numbers])
                if self.ranks.rank - first in numbers:
                    tied.append((parameter, group))
        return tied

    def _find_schedule(self, inputs: Tensor, targets: Tensor) -> "PipelineScheduleSingle":
        """Return the schedule for such tensors: that of the step before, where they are alike."""
        kind = inputs.device.type
        precision = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        sizes = (inputs.shape, targets.shape, *precision)
        if self._schedule is None or self._sizes != sizes:
            self._schedule, self._sizes = self._make_schedule(inputs, targets), sizes
        return self._schedule

    def _make_schedule(self, inputs: Tensor, targets: Tensor) -> "PipelineScheduleSingle":
        from torch.distributed import pipelining  # takes long to import

        count = self.sharing.micro_batches
        shares = [part[: len(part) // count].to("meta") for part in (inputs, targets)]
        is_last = self.number == self.sharing.stages - 1
        following = None if is_last else self.stages[self.number + 1]
        stage = pipelining.PipelineStage(
            _Pass(self),
            self.number,
            self.sharing.stages,
            inputs.device,
            input_args=self.stage.describe_inputs(*shares),
            output_args=following.describe_inputs(*shares) if following else shares[1],
            group=self.within,
        )
        for name in ("forward_one_chunk", "backward_one_chunk"):
            setattr(stage, name, self._count_seconds(getattr(stage, name)))
        is_gpipe = self.sharing.schedule == "gpipe"
        kind = pipelining.ScheduleGPipe if is_gpipe else pipelining.Schedule1F1B
        # Without scaling: the sum of the losses is what the gradients belong to.
        return kind(stage, count, self._count_seconds(self._compute_loss), scale_grads=False)

    def _compute_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return self.sum_losses(logits.float(), targets) * self.factor

    def _count_seconds(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            result = function(*arguments, **named)
            self.seconds += time.perf_counter() - started
            return result

        return count


class _Pass(nn.Module):
    """The stage of a pipeline as the schedule calls it: once for each micro-batch."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.stage = pipeline.stage
        self._pipeline = (pipeline,)

    def forward(self, *activations: Tensor, inputs: Tensor, targets: Tensor) -> Any:
        """Return the stage's activations or logits of a micro-batch, (n, …) each."""
        (pipeline,) = self._pipeline
        next(pipeline.passes)
        return self.stage(*activations, inputs=inputs, targets=targets)
