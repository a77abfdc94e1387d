"""Ranks in rows and columns, and sums over them as chains of collectives that nobody waits for.

A sum over rows, then over columns, lets only a share travel between the rows (Ying et al. 2018,
arXiv:1811.06992, on a torus). Nodes are one choice of rows.
"""

import inspect
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from cepheid.reference.torch.devices.kinds import find_device
from cepheid.reference.torch.ranks import shared_memory
from cepheid.reference.torch.ranks.collectives import detect_lost_rank
from cepheid.reference.torch.ranks.distributed import TorchRanks

Step = Callable[[Tensor], "Future[Tensor]"]

# Both were renamed in torch 2.13, which warns of the earlier names.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Chain:
    """Collectives, one after the other, on each of many tensors at the same time.

    Each collective starts as soon as the one before it has ended; no caller waits. A collective
    takes the tensors in the order of the calls, on every rank, because ranks that start the same
    collectives in different orders exchange the wrong tensors.
    """

    def __init__(self, device: torch.device, *steps: Step) -> None:
        self._steps = [(step, _InOrder()) for step in steps]
        has_streams = find_device(device).has_streams and not _speaks_gloo(device)
        self._devices: Any = [device] if has_streams else None
        self._calls = 0

    def __call__(self, values: Tensor) -> "Future[Tensor]":
        """Start the chain on ``values`` (n,); the future has what its last collective returns."""
        result: Future[Tensor] = Future(devices=self._devices)
        self._calls += 1
        self._continue(0, self._calls - 1, values, result)
        return result

    def _continue(self, place: int, number: int, values: Tensor, result: "Future[Tensor]") -> None:
        if place == len(self._steps):
            result.set_result(values)
            return
        step, in_order = self._steps[place]

        def start() -> None:
            try:
                step(values).add_done_callback(proceed)
            except RuntimeError as error:  # a rank is gone; who waits for the result gets it
                result.set_exception(error)  # type: ignore[arg-type]  # as documented

        def proceed(done: "Future[Tensor]") -> None:
            try:
                values = done.value()
            except RuntimeError as error:
                result.set_exception(error)  # type: ignore[arg-type]
            else:
                self._continue(place + 1, number, values, result)

        in_order.call(number, start)


def _speaks_gloo(place: torch.device) -> bool:
    """Return whether collectives of tensors at ``place`` go through gloo, which has no streams."""
    return find_device(place).backend == "gloo"


class _InOrder:
    """Calls functions in the order of their numbers from 0, whichever is given first."""

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[int, Callable[[], None]] = {}
        self._lock = threading.RLock()

    def call(self, number: int, function: Callable[[], None]) -> None:
        with self._lock:
            self._waiting[number] = function
            while self._next in self._waiting:
                self._next += 1
                self._waiting.pop(self._next - 1)()


class RankMesh:
    """This rank in a mesh of rows and columns, with the chains of collectives over it.

    ``reduce_scatter`` sums a tensor (n · ranks,) over all ranks and returns part ``place`` of it,
    (n,); ``all_gather`` is its inverse. ``all_reduce`` returns the whole sum of a tensor whose
    length the columns divide. All three return futures.
    """

    def __init__(self, ranks: TorchRanks, shape: tuple[int, int]) -> None:
        rows, columns = shape
        self.size, self.columns = ranks.world_size, columns
        row, column = divmod(ranks.rank, columns)
        self.place = column * rows + row
        # Collectives of two chains may start in any order, so each direction has its own groups.
        there, back = (_make_groups(ranks, shape) for _ in range(2))
        self.reduce_scatter = Chain(
            ranks.device,
            *_over(there, "within", _start_reduce_scatter),
            *_over(there, "between", _start_reduce_scatter),
        )
        self.all_gather = Chain(
            ranks.device,
            *_over(back, "between", _start_all_gather),
            *_over(back, "within", _start_all_gather),
        )
        self.all_reduce = Chain(
            ranks.device,
            *_over(there, "within", _start_reduce_scatter),
            *_over(there, "between", _start_all_reduce),
            *_over(back, "within", _start_all_gather),
        )


def average_bucket(
    mesh: RankMesh,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch requires both annotations
) -> torch.futures.Future[Tensor]:
    """Start to average a bucket, (n,), over all ranks: a communication hook of DDP."""
    gradients = bucket.buffer()
    padding = -len(gradients) % mesh.columns
    total = mesh.all_reduce(nn.functional.pad(gradients, (0, padding)) / mesh.size)
    return total.then(lambda done: done.value()[: len(gradients)])


def _make_groups(ranks: TorchRanks, shape: tuple[int, int]) -> dict[str, Any]:
    """Return the process groups of this rank's column and row, where they have other ranks.

    None is the group of all ranks, even where it has all: whoever frees a DDP model frees that
    group under Python's lock, for which a thread of the group that ends a chain may wait.
    """
    rows = torch.arange(ranks.world_size).view(shape)
    lines = {"between": rows.T, "within": rows}
    with detect_lost_rank():
        return {
            name: dist.new_subgroups_by_enumeration(grid.tolist())[0]
            for name, grid in lines.items()
            if grid.shape[1] > 1
        }


def _over(
    groups: Mapping[str, Any], name: str, collective: Callable[[Any, Tensor], "Future[Tensor]"]
) -> list[Step]:
    """Return the step that starts ``collective`` over the group ``name``, if there is one.

    The step does not keep the group alive. Its last part runs in a thread of the group, and a
    group that is destroyed by its own thread ends the process.
    """
    if name not in groups:
        return []
    find_group = weakref.ref(groups[name])

    def start(values: Tensor) -> "Future[Tensor]":
        group = find_group()
        if group is None:  # None would stand for all ranks
            raise RuntimeError("the process group of this mesh is destroyed")
        return collective(group, values)

    return [start]


def _start_reduce_scatter(group: Any, values: Tensor) -> "Future[Tensor]":
    """Sum ``values`` (n · size,) over the group; the future has this rank's part, (n,).

    Gloo's own reduce-scatter has no future and sends as much as an all-reduce (counted with torch
    2.13). So each rank sends every other one its part, and adds up what it gets.
    """
    size = dist.get_world_size(group)
    if not _speaks_gloo(values.device):
        part = values.new_empty(len(values) // size)
        return _follow(_reduce_scatter(part, values, group=group, async_op=True), lambda: part)
    parts = torch.empty_like(values)
    work = dist.all_to_all_single(parts, values, group=group, async_op=True)
    return _follow(work, lambda: parts.view(size, -1).sum(0))


def _start_all_reduce(group: Any, values: Tensor) -> "Future[Tensor]":
    """Sum ``values`` of any shape over the group in place."""
    return _follow(dist.all_reduce(values, group=group, async_op=True), lambda: values)


def _start_all_gather(group: Any, values: Tensor) -> "Future[Tensor]":
    """Join the ``values`` (n,) of the ranks of the group; the future has (n · size,)."""
    whole = values.new_empty(len(values) * dist.get_world_size(group))
    return _follow(_all_gather(whole, values, group=group, async_op=True), lambda: whole)


def _follow(work: Any, finish: Callable[[], Tensor]) -> "Future[Tensor]":
    """Return a future of what ``finish`` returns once ``work`` has ended without an error."""

    def complete(done: "Future[Any]") -> Tensor:
        done.value()  # raises what went wrong
        return finish()

    return work.get_future().then(complete)


BUCKET_MIB = 25


def make_data_parallel(
    model: nn.Module, ranks: TorchRanks, shape: tuple[int, int], bucket_mib: float = BUCKET_MIB
) -> nn.Module:
    """Return ``model`` wrapped so that the backward pass averages its gradients over all ranks.

    On one rank the model itself is returned. If ``shape``, rows and columns, has several rows, the
    ranks of each row sum and scatter the gradients, the parts are summed between the rows, and
    gathered in each row. Ranks on one machine add in memory that they share, if they have no GPUs.
    Buffers stay as they are.
    """
    if ranks.world_size == 1:
        return model
    parameters = inspect.signature(DistributedDataParallel).parameters
    renamed = "forward_sync_buffers" in parameters  # in torch 2.13
    options: dict[str, Any] = {
        "forward_sync_buffers" if renamed else "broadcast_buffers": False,
        "bucket_cap_mb": bucket_mib,
        "gradient_as_bucket_view": True,
    }
    with detect_lost_rank():
        parallel = DistributedDataParallel(model, **options)
    if shape[0] > 1:
        parallel.register_comm_hook(RankMesh(ranks, shape), average_bucket)
    elif ranks.device.type == "cpu":
        parallel.register_comm_hook(ranks.world_size, shared_memory.average_bucket)
    return parallel
