"""torch.distributed, once for all: start, rank, barrier, reductions, group batch norm."""

import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]
from torch.nn import functional

from reference.run.placement import Placement, RankEndedError, leave_quietly, placement
from rules.errors import UserError

TIMEOUT = timedelta(minutes=30)  # the first rank may have data to prepare
EXIT_CODE_OF_FAILURE = 2
KEY = "first"
WORD_SECONDS = 0.3  # for word to arrive after a connection broke
# What gloo and nccl say where a rank is gone; anything else is a bug, and told as one.
SIGNS_OF_LOSS = re.compile(r"peer|pipe|connect|tim(e|ed) ?out|abort|remote", re.IGNORECASE)


@dataclass(frozen=True)
class TorchRanks:
    """This process among those of the run, and the device that it drives."""

    rank: int
    world_size: int
    device: torch.device
    ranks_per_node: int = 1

    @property
    def is_first(self) -> bool:
        """True on the one rank that writes."""
        return self.rank == 0

    @property
    def framework(self) -> str:
        """Name and version."""
        return f"torch {torch.__version__}"

    @property
    def accelerator(self) -> str | None:
        """The name of the GPU that this rank drives, None where there is none."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None

    def barrier(self) -> None:
        """Wait for this rank's device, then for all other ranks."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if self.world_size > 1:
            with detect_lost_rank():
                dist.barrier()

    def sum(self, values: Tensor) -> Tensor:
        """The sum of ``values`` over all ranks, on every rank."""
        if self.world_size > 1:
            values = _summed(values.clone())
        return values

    def broadcast(self, message: Any) -> Any:
        """The first rank's ``message``, on every rank; any picklable value of our own."""
        if self.world_size == 1:
            return message
        box = [message]
        with detect_lost_rank():
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def all_gather_object(self, message: Any) -> list[Any]:
        """Every rank's ``message``, by rank, on every rank; any picklable value of our own."""
        if self.world_size == 1:
            return [message]
        answers: list[Any] = [None] * self.world_size
        with detect_lost_rank():
            dist.all_gather_object(answers, message)
        return answers

    def is_true_everywhere(self, well: bool) -> bool:
        """True on every rank if it is on all of them."""
        return all(self.all_gather_object(well))

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its mean over all ranks, in one all-reduce."""
        self.average(p.grad for p in parameters if p.grad is not None)

    def average(self, values: Iterable[Tensor]) -> None:
        """Replace every tensor by its mean over all ranks, in one all-reduce."""
        if self.world_size == 1:
            return
        tensors = list(values)
        flat = _summed(torch.cat([tensor.flatten() for tensor in tensors])) / self.world_size
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, mean in zip(tensors, parts, strict=True):
            tensor.copy_(mean.view(tensor.shape))

    def make_subgroup(self, size: int) -> Any:
        """The process group of this rank among groups of ``size`` consecutive ranks. All ranks
        call it together; ``size`` divides their number."""
        with detect_lost_rank():
            return dist.new_subgroups(group_size=size)[0]

    def make_span(self, samples: int, share: int) -> "Span":
        """For batch normalisation over ``samples`` consecutive samples of a global batch of which
        each rank has ``share``. All ranks call it together; raises UserError as ``split_span``."""
        local_groups, ranks = self.split_span(samples, share)
        return Span(local_groups, self.make_subgroup(ranks) if ranks > 1 else None, ranks)

    def split_span(self, samples: int, share: int) -> tuple[int, int]:
        """Into how many equal parts groups of ``samples`` cut the ``share`` of a rank, and over how
        many ranks one of them goes; a group is the global batch where ``samples`` is 0.

        Raises UserError where groups would cut through a share unevenly.
        """
        total = share * self.world_size
        samples = samples or total
        if total % samples or (share % samples and samples % share):
            raise UserError(
                f"model_bn_span {samples}: {self.world_size} ranks with {share} samples each "
                f"cannot normalise over groups of it: choose a divisor or a multiple of {share} "
                f"that divides {total}, or 0 for the whole global batch"
            )
        return max(1, share // samples), max(1, samples // share)

    def split_batch(self, global_batch_size: int) -> int:
        """Samples per rank in a global batch. Raises UserError where it does not divide evenly."""
        if global_batch_size % self.world_size:
            raise UserError(
                f"global_batch_size {global_batch_size} cannot be shared evenly by "
                f"{self.world_size} ranks: choose a multiple of {self.world_size}"
            )
        return global_batch_size // self.world_size


@contextmanager
def start_ranks() -> Iterator[TorchRanks]:
    """The ranks that ``torchrun``, Slurm or MPI set up, or a single process; torn down afterwards.

    nccl where there are GPUs (one per local rank), gloo elsewhere. Of several ranks that fail one
    says why: the others leave quietly. Until the caller decides otherwise Ctrl-C and SIGTERM end
    one of several ranks at once, also while it waits for another one.
    """
    place = placement()
    ranks_per_node = int(os.environ.get("LOCAL_WORLD_SIZE", _slurm_ranks_per_node(place)))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if place.world_size == 1:
        yield TorchRanks(0, 1, device)
        return
    with _met(place, "nccl" if device.type == "cuda" else "gloo"):
        yield TorchRanks(place.rank, place.world_size, device, ranks_per_node)


@contextmanager
def _met(place: Placement, backend: str) -> Iterator[None]:
    """All ranks have met; one that fails meanwhile leaves word for the others."""
    global _word
    try:
        store = _meet(place, backend)
    except UserError:
        if place.local_rank > 0:  # the first one on each machine says why
            leave_quietly(EXIT_CODE_OF_FAILURE)
        raise
    _word = _Word(PrefixStore("word", store))
    try:
        yield
    except RankEndedError as error:
        if error.is_told or place.rank > 0:
            leave_quietly(EXIT_CODE_OF_FAILURE)
        raise
    except BaseException as error:
        if not _word.leave(place.rank, error):
            leave_quietly(EXIT_CODE_OF_FAILURE)
        raise
    finally:
        if backend == "gloo":  # its threads must not outlive the interpreter
            dist.destroy_process_group()
    if backend != "gloo":  # not after a failure: it would wait for ranks that are gone
        dist.destroy_process_group()
    # Nor must the thread of the store, which the first rank keeps; after a failure others read it.
    _word = None
    del store


def _meet(place: Placement, backend: str) -> Any:
    """The store of the ranks, after all have met. Raises UserError where they cannot."""
    absent = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if absent:
        raise UserError(
            f"{place.world_size} ranks are asked for, but {absent[0]} is not set: export "
            "MASTER_ADDR (a host that all ranks reach) and MASTER_PORT, or start with torchrun"
        )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    try:
        store, _, _ = next(rendezvous("env://", place.rank, place.world_size, timeout=TIMEOUT))
        store.set_timeout(TIMEOUT)
        dist.init_process_group(
            backend,
            store=PrefixStore("ranks", store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=TIMEOUT,
        )
    except dist.DistError as error:
        where = ":".join(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise UserError(
            f"{place.world_size} ranks could not meet at {where} ({_first_line(error)}): this must "
            "be the host of the first rank and a free port, and all ranks must be started"
        ) from error
    return store


class _Word:
    """What the first rank that failed has to say, where all ranks can read it."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def leave(self, rank: int, error: BaseException) -> bool:
        """Leave word, if nobody has. False if another rank has said the very same."""
        reason = f"{type(error).__name__}: {_first_line(error)}"
        try:
            said = self._store.compare_set(KEY, "", f"{rank}\n{reason}").decode()
        except RuntimeError:  # the rank that kept it is gone
            return True
        first, _, text = said.partition("\n")
        return int(first) == rank or text != reason

    def heard(self) -> str:
        """The word that was left, e.g. ``rank 1: RuntimeError: …``, or nothing."""
        deadline = time.monotonic() + WORD_SECONDS
        try:
            while not self._store.check([KEY]):
                if time.monotonic() > deadline:
                    return ""
                time.sleep(WORD_SECONDS / 10)
            rank, _, text = self._store.get(KEY).decode().partition("\n")
        except RuntimeError:
            return ""
        return f"rank {rank}: {text}"


_word: _Word | None = None


@contextmanager
def detect_lost_rank() -> Iterator[None]:
    """Around each collective. Raises RankEndedError where another rank is gone."""
    try:
        yield
    except RuntimeError as error:
        word = _word.heard() if _word else ""
        if word:
            raise RankEndedError(word, is_told=True) from error
        reason = _first_line(error)
        if not SIGNS_OF_LOSS.search(reason):
            raise
        raise RankEndedError(
            f"another rank has ended without a word, or cannot be reached ({reason}). If it was "
            "killed, perhaps for lack of memory, the launcher says so",
            is_told=False,
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _slurm_ranks_per_node(place: Placement) -> int:
    return -(-place.world_size // int(os.environ.get("SLURM_NNODES", "1")))


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
        # Here and not as a decorator: it loads the compiler, which takes longer than all the rest.
        self._group_moments = torch.compiler.disable(_group_moments)
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
            mean, variance = self._group_moments(images)
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


def _group_moments(images: Tensor, group: Any = None) -> tuple[Tensor, Tensor]:
    """Mean and biased variance per channel over all ranks, or those of a group; gradients flow
    through both."""
    count = dist.get_world_size(group) * images.numel() // images.shape[1]
    mean = _sum_over_ranks(images.sum((0, 2, 3)), group) / count
    deviation = images - mean[:, None, None]
    return mean, _sum_over_ranks(deviation.square().sum((0, 2, 3)), group) / count


class _SumOverRanks(torch.autograd.Function):
    """A sum over all ranks whose gradient is the sum of the ranks' gradients.

    torch's own differentiable collectives are being renamed between the versions we support.
    """

    @staticmethod
    def forward(context: Any, values: Tensor, group: Any) -> Tensor:
        context.group = group
        return _summed(values.clone(), group)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _summed(gradient.clone(), context.group), None


def _summed(values: Tensor, group: Any = None) -> Tensor:
    """``values`` themselves, now the sums over all ranks, or those of a group."""
    with detect_lost_rank():
        dist.all_reduce(values, group=group)
    return values


def _sum_over_ranks(values: Tensor, group: Any = None) -> Tensor:
    total: Tensor = _SumOverRanks.apply(values, group)
    return total


class SpanBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation over each ``span`` consecutive samples of the global batch, with
    PyTorch's conventions, on any device and any number of ranks.

    Statistics may be of a part of a rank's samples, of all of them or of those of several ranks
    (distributed batch normalisation: Ying et al. 2018, arXiv:1811.06992, section 3.4). The running
    statistics of a rank are the mean over its own groups; ``TorchRanks.average`` makes them those
    of all groups, which is all the same when it is done, since they are linear in each.

    ``batch_moments`` is the mean and the variance of each of this rank's groups in the last
    training batch, (groups, channels) each; None where one group is this rank's batch.
    """

    batch_moments: tuple[Tensor, Tensor] | None = None

    def __init__(self, channels: int, over: "Span", epsilon: float, momentum: float) -> None:
        super().__init__(channels, eps=epsilon, momentum=momentum)
        self.over = over
        self._group_moments = torch.compiler.disable(_group_moments)

    def forward(self, images: Tensor) -> Tensor:
        """Same shape and type as ``images``, (share of this rank, channels, height, width)."""
        assert self.running_mean is not None
        assert self.running_var is not None
        if not self.training:
            return self._normalised(images, self.running_mean, self.running_var, training=False)
        if self.over.group is not None:
            return self._over_ranks(images)
        if self.over.local_groups == 1:
            return self._normalised(images, self.running_mean, self.running_var, self.momentum)
        parts, means, variances = [], [], []
        for part in images.chunk(self.over.local_groups):
            mean, variance = torch.zeros_like(self.running_mean), torch.ones_like(self.running_var)
            # With a momentum of 1 the running statistics are the group's own.
            parts.append(self._normalised(part, mean, variance, 1.0))
            means.append(mean)
            variances.append(variance)
        mean, variance = torch.stack(means), torch.stack(variances)
        count = images.numel() // images.shape[1] // self.over.local_groups
        self.batch_moments = mean, variance * ((count - 1) / count)
        self._keep(mean.mean(0), variance.mean(0))
        return torch.cat(parts)

    def _normalised(
        self,
        images: Tensor,
        mean: Tensor,
        variance: Tensor,
        momentum: float | None = 0.0,
        training: bool = True,
    ) -> Tensor:
        assert momentum is not None
        normalised: Tensor = functional.batch_norm(
            images, mean, variance, self.weight, self.bias, training, momentum, self.eps
        )
        return normalised

    def _over_ranks(self, images: Tensor) -> Tensor:
        """In float32, back in the type of ``images``."""
        exact = images.float()
        mean, variance = self._group_moments(exact, self.over.group)
        self.batch_moments = mean.detach()[None], variance.detach()[None]
        count = self.over.ranks * images.numel() // images.shape[1]
        self._keep(mean, variance * count / max(1, count - 1))
        scale = self.weight * torch.rsqrt(variance + self.eps)
        shift = self.bias - mean * scale
        normalised: Tensor = exact * scale[:, None, None] + shift[:, None, None]
        return normalised.to(images.dtype)

    @torch.no_grad()
    def _keep(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)


@dataclass(frozen=True)
class Span:
    """Over what one rank normalises: its own samples in ``local_groups`` equal parts, or all of
    them with those of the other members of ``group``, which has ``ranks`` ranks."""

    local_groups: int = 1
    group: Any = None
    ranks: int = 1
