"""What the ranks of a run share: gradients, updates, images, or parts of the model.

An object of this module knows how gradients travel and who updates what. The trainer asks it at
each place of a step and never asks of which kind it is.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from typing_extensions import override

from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Grid
from cepheid.reference.torch.devices.values import widen
from cepheid.reference.torch.parallel import model_parallel
from cepheid.reference.torch.parallel.mesh import BUCKET_MIB, RankMesh, make_data_parallel
from cepheid.reference.torch.parallel.model_parallel import SharedModel
from cepheid.reference.torch.parallel.pipeline import Pipeline
from cepheid.reference.torch.parallel.plan import (
    STAGES,
    TENSOR_RANKS,
    Sharing,
    find_shape,
    refuse_uneven_parts,
)
from cepheid.reference.torch.parallel.sharded_update import ShardedUpdate
from cepheid.reference.torch.pieces import Piece, Pieces, cut
from cepheid.reference.torch.ranks.collectives import all_reduce, detect_lost_rank
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.reference.torch.spatial.network import partition_network
from cepheid.reference.torch.workload import Groups, Maps, Recipe, Stages, Workload

Unite = Callable[[Pieces], Generator[Piece, None, None]]


class Replicated:
    """Every rank has the whole model and updates it; gradients are averaged.

    They are averaged in buckets during the last backward pass of a step, or all at once after it:
    where a profiler times the communication (``is_timed``), and where there are no buckets.
    ``network`` is what training calls. With ``is_scaled`` the loss is scaled, for fp16.
    """

    can_try_alone = True  # a rank needs no other one for a step on its samples
    is_pipeline = False  # through which micro-batches flow
    bucket_mib = BUCKET_MIB
    is_timed = False
    is_scaled = False
    shared: SharedModel | None = None  # this rank's part of the model
    sharded: ShardedUpdate | None = None
    network: nn.Module

    def __init__(self, ranks: TorchRanks, mesh_shape: tuple[int, int] | None = None) -> None:
        self.ranks, self.mesh_shape = ranks, mesh_shape

    def wrap(self, model: nn.Module, recipe: Recipe) -> Optimizer:
        """Set ``model`` and ``network``; return the optimizer."""
        self.model = self.network = model
        if self.mesh_shape:
            self.network = make_data_parallel(model, self.ranks, self.mesh_shape, self.bucket_mib)
        return recipe.kind([dict(group) for group in recipe.groups], **self.list_options(recipe))

    def list_options(self, recipe: Recipe) -> Mapping[str, Any]:
        """Return the options of the optimizer, which is not fused where the loss is scaled.

        After an overflow PyTorch 2.13 asks the fused kernel to skip the update, and two things go
        wrong: SGD has made its momentum with ``empty_like`` and goes on with what lay in memory,
        and where several ranks have found an overflow, their sum is not 1 and the kernel updates
        all the same.
        """
        is_fused = "fused" in recipe.options
        return {**recipe.options, "fused": False} if is_fused and self.is_scaled else recipe.options

    def make_scaler(self, is_scaled: bool) -> Any:
        """Return what scales the loss and finds overflows."""
        return torch.amp.GradScaler(self.ranks.device.type, enabled=is_scaled)

    def use_execution(self, is_compiled: bool) -> None:
        """Take note of whether the network is compiled."""

    def sync(self, is_last: bool) -> AbstractContextManager[object]:
        """Return the context of a pass; in the last one of a step gradients may travel."""
        if (is_last and not self.is_timed) or not isinstance(self.network, DistributedDataParallel):
            return nullcontext()
        return self.network.no_sync()

    def flow(self, piece: Piece, unite: Unite) -> Tensor:
        """Run a piece through the pipeline in micro-batches; return its loss, detached, a scalar.

        They are on the way together; ``unite`` makes norms treat them as one batch.
        """
        raise NotImplementedError("the ranks share no pipeline")

    def reduce(self) -> None:
        """Average the gradients that have not travelled yet."""
        if self.is_timed or not self.mesh_shape:
            self.ranks.average_gradients(self.model.parameters())

    def clip(self, scaler: Any, groups: Groups, limit: float) -> None:
        """Scale the gradients of the groups so that their norm together is at most ``limit``.

        What the loss was scaled with is still in them.
        """
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        norm = self.complete_norm(torch.stack(torch._foreach_norm(gradients)).norm())
        factor = limit * scaler.get_scale() / (norm + 1e-6)
        torch._foreach_mul_(gradients, factor.clamp(max=1.0))

    def complete_norm(self, norm: Tensor) -> Tensor:
        """Return the norm of all gradients from that of this rank's, both scalars."""
        return norm

    def update(self, optimizer: Optimizer, scaler: Any) -> None:
        """Change the weights and forget the gradients."""
        with detect_lost_rank():
            scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    def gather(self) -> None:
        """Make ``model`` whole on every rank: after a block."""

    def scatter(self) -> None:
        """Take this rank's part of ``model`` again: after weights were loaded."""

    def gather_optimizer(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the state of the optimizer of the whole model."""
        return state

    def scatter_optimizer(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return this rank's part of the state of the optimizer of the whole model."""
        return state


class Owned(Replicated):
    """Every rank has the whole model; a preconditioner averages gradients and shares the update."""

    @override
    def reduce(self) -> None:
        return


class Spatial(Replicated):
    """The ranks of a replica share each of its images; gradients are averaged over all ranks."""

    can_try_alone = False  # ranks exchange rows in each pass


class Sharded(Replicated):
    """Each rank updates a part of every weight and sends it to the others.

    With ``is_ahead`` the next forward pass begins while the last weights still travel.
    """

    mesh_shape: tuple[int, int]
    sharded: ShardedUpdate

    def __init__(
        self, ranks: TorchRanks, mesh_shape: tuple[int, int], is_ahead: bool, phase: Any
    ) -> None:
        super().__init__(ranks, mesh_shape)
        self.is_ahead, self.phase = is_ahead, phase

    @override
    def wrap(self, model: nn.Module, recipe: Recipe) -> Optimizer:
        self.model = self.network = model
        self.sharded = ShardedUpdate(
            model,
            RankMesh(self.ranks, self.mesh_shape),
            recipe.kind,
            recipe.groups,
            phase=self.phase,
            bucket_bytes=round(self.bucket_mib * 2**20),
            is_ahead=self.is_ahead,
            **self.list_options(recipe),
        )
        return self.sharded.optimizer

    @override
    def make_scaler(self, is_scaled: bool) -> Any:
        if not is_scaled:
            return super().make_scaler(is_scaled)
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler  # slow

        return ShardedGradScaler(self.ranks.device.type)

    @override
    def use_execution(self, is_compiled: bool) -> None:
        self.sharded.is_ahead = self.is_ahead and not is_compiled  # which cannot wait inside

    @override
    def sync(self, is_last: bool) -> AbstractContextManager[object]:
        return nullcontext() if is_last and not self.is_timed else self.sharded.no_sync()

    @override
    def reduce(self) -> None:
        if self.is_timed:
            with detect_lost_rank():
                self.sharded.reduce_gradients()

    @override
    def complete_norm(self, norm: Tensor) -> Tensor:
        return all_reduce(norm.double().square()).sqrt().to(norm.dtype)

    @override
    def update(self, optimizer: Optimizer, scaler: Any) -> None:
        with detect_lost_rank():
            scaler.unscale_(optimizer)  # the ranks tell each other of overflows
        super().update(optimizer, scaler)

    @override
    def gather(self) -> None:
        self.sharded.receive_weights()


class Divided(Replicated):
    """Each rank of a replica trains a part of the model: some layers, or a part of each matrix.

    ``divide`` returns the ``SharedModel`` of a network.
    """

    can_try_alone = False
    shared: SharedModel

    def __init__(self, ranks: TorchRanks, divide: Callable[[nn.Module], SharedModel]) -> None:
        super().__init__(ranks)
        self._divide = divide

    @override
    def wrap(self, model: nn.Module, recipe: Recipe) -> Optimizer:
        self.model, self.shared = model, self._divide(model)
        self.network = self.shared.network
        return recipe.kind(self.shared.select(recipe.groups), **self.list_options(recipe))

    @override
    def reduce(self) -> None:
        self.shared.share_gradients()

    @override
    def complete_norm(self, norm: Tensor) -> Tensor:
        raise AssertionError("the ranks of a replica would clip their own gradients alone")

    @override
    def gather(self) -> None:
        self.shared.gather_weights()

    @override
    def scatter(self) -> None:
        self.shared.scatter_weights()

    @override
    def gather_optimizer(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.shared.gather_optimizer(state)

    @override
    def scatter_optimizer(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.shared.scatter_optimizer(state)


class Pipelined(Divided):
    """Each rank of a replica trains some layers; micro-batches flow through all of them."""

    is_pipeline = True
    shared: Pipeline

    def __init__(
        self, ranks: TorchRanks, stages: Stages[Any], shape: Any, sharing: Sharing
    ) -> None:
        refuse_uneven_parts(STAGES, sharing.stages, **stages.counts(shape))
        super().__init__(ranks, partial(self.cut, stages, shape, sharing))
        self.stages, self.micro_batches = stages, sharing.micro_batches

    def cut(
        self, stages: Stages[Any], shape: Any, sharing: Sharing, model: nn.Module
    ) -> SharedModel:
        """Return a pipeline of the layers of ``model``."""
        parts = stages.cut(shape, model, sharing.stages)
        return Pipeline(model, parts, self.ranks, sharing, partial(stages.sum_losses, shape))

    @override
    def complete_norm(self, norm: Tensor) -> Tensor:
        return self.shared.complete_norm(norm)

    @override
    def flow(self, piece: Piece, unite: Unite) -> Tensor:
        fill = self.stages.fill
        full = fill(piece, self.micro_batches) if fill else piece
        parts = cut(full.inputs, full.targets, len(full.targets) // self.micro_batches)
        factor = (piece.weight / widen(self.stages.count_losses(piece.targets))).float()
        with closing(unite(parts)) as passes:
            # Norms take moments of all ranks before a stage waits for the one before it.
            all_passes = chain([next(passes)], passes)
            loss: Tensor = self.shared.run(full.inputs, full.targets, factor, all_passes)
            next(passes, None)  # all micro-batches are done
        return loss


@dataclass(frozen=True)
class Arrangement:
    """How ranks form replicas: the parts of an image, and the parts of a model.

    ``config`` is what the settings leave for other choices.
    """

    config: RunConfig
    ranks: TorchRanks
    grid: Grid
    division: Sharing
    maps: Maps | None

    def partition(self, network: nn.Module) -> nn.Module:
        """Let ``network`` share its images, (3, pixels, pixels), with the ranks of the replica."""
        if self.grid.parts == 1 or self.maps is None:
            return network
        part, pixels = self.maps.part(network), self.config.definition.model["pixels"]
        chosen = self.maps.averaged(part), self.maps.gathered(part, self.grid.parts)
        partition_network(part, self.ranks, self.grid, (3, pixels, pixels), *chosen)
        return network


def arrange(maps: Maps | None, config: RunConfig, ranks: TorchRanks) -> Arrangement:
    """Return how the settings arrange the ranks; raise UserError where they exclude each other.

    ``maps`` are the layers of the network whose images ranks may share, if there are any.
    """
    grid = config.execution.parallelism.spatial_partitions
    if maps:
        pixels = config.definition.model["pixels"]
        grid.check(pixels, pixels)
    division = model_parallel.read_sharing(config)
    config = model_parallel.prepare(config, division)
    if grid.parts > 1:
        ranks = ranks.partition(grid.parts, "spatial_partitions")
    if division.ranks > 1:
        ranks = ranks.partition(division.ranks, division.setting)
    return Arrangement(config, ranks, grid, division, maps)


def make_sharing(
    workload: Workload[Any], shape: Any, arrangement: Arrangement, is_owned: bool, phase: Any
) -> Replicated:
    """Return what the ranks share by the settings; with ``is_owned`` the preconditioner shares."""
    sharing = _choose(workload, shape, arrangement, is_owned, phase)
    sharing.is_scaled = arrangement.config.execution.precision == "fp16"
    return sharing


def _choose(
    workload: Workload[Any], shape: Any, arrangement: Arrangement, is_owned: bool, phase: Any
) -> Replicated:
    config, ranks = arrangement.config, arrangement.ranks
    asked = config.execution.parallelism
    if is_owned:
        return Owned(ranks)
    if arrangement.division.ranks > 1:
        return _divide(workload, shape, arrangement)
    if "all_reduce" not in config.definition.execution:
        # Few weights: one message after the backward pass, unless that can be hidden behind it.
        return Replicated(ranks, (1, ranks.world_size) if workload.averages_early else None)
    mesh_shape = find_shape(asked.all_reduce, ranks.world_size, ranks.ranks_per_node)
    if asked.weight_update != "replicated" and ranks.world_size > 1:
        return Sharded(ranks, mesh_shape, asked.weight_update == "overlapped", phase)
    return (Spatial if arrangement.grid.parts > 1 else Replicated)(ranks, mesh_shape)


def _divide(workload: Workload[Any], shape: Any, arrangement: Arrangement) -> Replicated:
    """Return what divides a network; raise UserError where it has no such number of parts."""
    division, ranks = arrangement.division, arrangement.ranks
    stages, matrices = workload.stages, workload.matrices
    if division.stages > 1:
        assert stages, "the definition has pipelines, and the workload has no stages"
        if stages.fill is None:
            share = ranks.split_batch(arrangement.config.global_batch_size)
            setting, count = f"the micro-batches of {STAGES}", division.micro_batches
            refuse_uneven_parts(setting, count, samples_of_a_replica=share)
        return Pipelined(ranks, stages, shape, division)
    assert matrices, "the definition shares matrices, and the workload has no plan"
    refuse_uneven_parts(TENSOR_RANKS, division.tensor_ranks, **matrices.counts(shape))
    return Divided(ranks, partial(_spread, matrices, shape, ranks))


def _spread(matrices: Any, shape: Any, ranks: TorchRanks, model: nn.Module) -> SharedModel:
    from cepheid.reference.torch.parallel.tensor_parallel import TensorParallel  # slow

    return TensorParallel(model, matrices.plan(shape, model), ranks)
