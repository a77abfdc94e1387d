"""torch.distributed, once for all: start, rank, barrier, reductions, group batch norm."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rules.errors import UserError

TIMEOUT = timedelta(minutes=30)  # the first rank may have data to prepare


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run, and the device that it drives."""

    rank: int
    world_size: int
    device: torch.device
    ranks_per_node: int = 1

    @property
    def is_first(self) -> bool:
        """True on the one rank that writes."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for this rank's device, then for all other ranks."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if self.world_size > 1:
            dist.barrier()

    def sum(self, values: Tensor) -> Tensor:
        """The sum of ``values`` over all ranks, on every rank."""
        if self.world_size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def told(self, message: Any) -> Any:
        """The first rank's ``message``, on every rank; any picklable value of our own."""
        if self.world_size == 1:
            return message
        box = [message]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def all_well(self, well: bool) -> bool:
        """True on every rank if it is on all of them."""
        if self.world_size == 1:
            return well
        answers: list[Any] = [None] * self.world_size
        dist.all_gather_object(answers, well)
        return all(answers)

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its mean over all ranks, in one all-reduce."""
        if self.world_size == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.world_size
        means = flat.split([gradient.numel() for gradient in gradients])
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(mean.view(gradient.shape))

    def share_of(self, global_batch_size: int) -> int:
        """Samples per rank in a global batch. Raises UserError where it does not divide evenly."""
        if global_batch_size % self.world_size:
            raise UserError(
                f"global_batch_size {global_batch_size} cannot be shared evenly by "
                f"{self.world_size} ranks: choose a multiple of {self.world_size}"
            )
        return global_batch_size // self.world_size


@contextmanager
def started() -> Iterator[Ranks]:
    """The ranks that ``torchrun``, Slurm or MPI set up, or a single process; torn down afterwards.

    nccl where there are GPUs (one per local rank), gloo elsewhere.
    """
    rank, world_size, local_rank = _placement()
    ranks_per_node = int(os.environ.get("LOCAL_WORLD_SIZE", _slurm_ranks_per_node(world_size)))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if world_size == 1:
        yield Ranks(0, 1, device)
        return
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        rank=rank,
        world_size=world_size,
        timeout=TIMEOUT,
    )
    try:
        yield Ranks(rank, world_size, device, ranks_per_node)
    finally:
        dist.destroy_process_group()


def _placement() -> tuple[int, int, int]:
    """Rank, number of ranks and local rank as the launcher tells them."""
    for rank, size, local in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ):
        if rank in os.environ and size in os.environ:
            placement = int(os.environ[rank]), int(os.environ[size])
            absent = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
            if placement[1] > 1 and absent:
                raise UserError(
                    f"{size}={placement[1]} asks for several ranks, but {absent[0]} is not set: "
                    "export MASTER_ADDR (a host that all ranks reach) and MASTER_PORT, "
                    "or start with torchrun"
                )
            return *placement, int(os.environ.get(local, "0"))
    return 0, 1, 0


def _slurm_ranks_per_node(world_size: int) -> int:
    return -(-world_size // int(os.environ.get("SLURM_NNODES", "1")))


class GroupBatchNorm2d(nn.Module):
    """Batch normalisation over the global batch, on any device, with Keras' conventions.

    ``torch.nn.SyncBatchNorm`` refuses CPU tensors; here the sums are reduced over all ranks, so
    that one and N ranks agree at equal global batch size. As in Keras and unlike PyTorch,
    ``momentum`` is the share that the running statistics keep, and their variance is biased.
    """

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, channels: int, epsilon: float, momentum: float) -> None:
        super().__init__()
        self.epsilon, self.momentum = epsilon, momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_variance", torch.ones(channels))

    def forward(self, images: Tensor) -> Tensor:
        """Same shape as ``images``, (batch, channels, height, width), equal on all ranks."""
        images = images.float()
        scale, shift = self.scale_and_shift(images)
        return images * scale[:, None, None] + shift[:, None, None]

    def scale_and_shift(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What normalising ``images``, in float32, multiplies each channel by and what it then
        adds, both (channels,); in training the running statistics move."""
        if not self.training:
            mean, variance = self.running_mean, self.running_variance
        elif dist.is_initialized() and dist.get_world_size() > 1:
            mean, variance = _group_moments(images)
            self._keep(mean, variance)
        else:
            variance, mean = torch.var_mean(images, dim=(0, 2, 3), correction=0)
            self._keep(mean, variance)
        scale = self.weight * torch.rsqrt(variance + self.epsilon)
        return scale, self.bias - mean * scale

    @torch.no_grad()
    def _keep(self, mean: Tensor, variance: Tensor) -> None:
        self.running_mean.lerp_(mean, 1 - self.momentum)
        self.running_variance.lerp_(variance, 1 - self.momentum)


@torch.compiler.disable
def _group_moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance per channel over all ranks; gradients flow through both."""
    count = dist.get_world_size() * images.numel() // images.shape[1]
    mean = _sum_over_ranks(images.sum((0, 2, 3))) / count
    deviation = images - mean[:, None, None]
    return mean, _sum_over_ranks(deviation.square().sum((0, 2, 3))) / count


class _SumOverRanks(torch.autograd.Function):
    """A sum over all ranks whose gradient is the sum of the ranks' gradients.

    torch's own differentiable collectives are being renamed between the versions we support.
    """

    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def _sum_over_ranks(values: Tensor) -> Tensor:
    total: Tensor = _SumOverRanks.apply(values)
    return total
