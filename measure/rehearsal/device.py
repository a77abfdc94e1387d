"""The pretend device as the trainer drives it, its graphs, and the collectives of its ranks.

A graph repeats the operations of a run in the memory that it had. As on a real device nothing of
Python runs again, so a value of the host is the one that it was, and what a replay is to read must
be written into the same memory.

Gloo carries the values of the collectives, and the rules are NCCL's: tensors lie on the device, a
collective returns at once, there is a reduce-scatter, and pickled objects travel in tensors of the
device too.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partialmethod
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.futures import Future
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from cepheid.measure.rehearsal import pretend
from cepheid.measure.rehearsal.ledger import GRAPH, WAIT
from cepheid.measure.rehearsal.pretend import KIND, PretendTensor
from cepheid.reference.torch.device import Device
from cepheid.reference.torch.devices.kinds import register

Kernel = Callable[..., Any]


class PretendDevice(Device):
    """One accelerator for each process: it pins, captures graphs, and has float64."""

    KIND = KIND
    matrix_side, copied_bytes, images_together = 64, 2**16, 8
    name, backend, pins, has_streams = "a pretend device", "pretended", True, False
    captures = True

    @classmethod
    def find_all(cls) -> Sequence[Self]:
        """Return the device."""
        return (cls(pretend.offer_device()),)

    @property
    def identity(self) -> str:
        """The number of the process, which has a device of its own."""
        return str(os.getpid())

    def use(self) -> None:
        """Pretend in this thread: there is one device."""
        pretend.pretend_in_thread()

    def synchronize(self) -> None:
        """Note a wait for all that the device computes."""
        pretend.open_ledger().note(WAIT, "synchronize")

    def make_generator(self) -> torch.Generator:
        """Return a generator that draws what one of the CPU does."""
        return pretend.make_generator()

    def fork_rng(self) -> AbstractContextManager[None]:
        """Return a context after which the generator of the CPU is as it was before it."""
        return torch.random.fork_rng([])

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return what repeats the operations of ``run`` in the same memory, and counts as one.

        Raises RuntimeError for what no graph can have.
        """
        run()
        with pretend.open_ledger().enter(GRAPH):
            repeat = record(run)

        def replay() -> None:
            repeat()
            pretend.open_ledger().count()

        return replay

    def list_precisions(self) -> Sequence[str]:
        """Return float32 alone: its autocast is not pretended."""
        return ("fp32",)

    def peak_bytes(self) -> int:
        """Return 0: it has no memory of its own."""
        return 0

    def release(self) -> None:
        """Return at once."""


def offer(has_float64: bool = True) -> None:
    """Let ranks of this process drive the device, where CEPHEID_DEVICE asks for it.

    GPUs of Apple have no float64.
    """
    PretendDevice.has_float64 = has_float64
    (device,) = PretendDevice.find_all()
    register(device)
    if not hasattr(dist.Backend, "PRETENDED"):
        dist.Backend.register_backend(device.backend, PretendGroup, devices=[KIND])


class _Tape:
    """The operations of a run in their order, each with its arguments and its results."""

    def __init__(self) -> None:
        self._calls: list[tuple[Kernel, Sequence[Any], Mapping[str, Any], Any]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def call(
        self, operation: Any, kernel: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run an operation and remember it; keep what it writes to as it was."""
        for number, argument in enumerate(operation._schema.arguments):
            if argument.alias_info and argument.alias_info.is_write:
                given = kwargs.get(argument.name, args[number] if number < len(args) else None)
                for written in filter(torch.is_tensor, tree_leaves(given)):
                    key = written.untyped_storage().data_ptr()
                    self._before.setdefault(key, (written, written.clone()))
        result = kernel(*args, **kwargs)
        self._calls.append((kernel, args, kwargs, result))
        return result

    def restore(self) -> None:
        """Undo what the run has written: a capture computes nothing."""
        for written, before in self._before.values():
            written.copy_(before)
        self._before.clear()

    def replay(self) -> None:
        """Run all operations again; their results go where they were."""
        for kernel, args, kwargs, results in self._calls:
            for old, new in zip(
                tree_leaves(results), tree_leaves(kernel(*args, **kwargs)), strict=True
            ):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def record(run: Callable[[], None]) -> Callable[[], None]:
    """Return what repeats the operations of ``run``, whose values are forgotten."""
    tape, state = _Tape(), torch.get_rng_state()
    with pretend.call_by(tape.call):
        run()

    def repeat() -> None:
        with torch.no_grad(), _disable_current_modes():
            tape.replay()

    with torch.no_grad(), _disable_current_modes():
        tape.restore()
    torch.set_rng_state(state)
    return repeat


_c10d: Any = c10d  # of which torch declares less than there is
_Group: Any = dist.ProcessGroup


class PretendGroup(_Group):  # type: ignore[misc]
    """Ranks that exchange tensors of the pretend device."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = _c10d.ProcessGroupGloo(store, rank, size, timeout)
        self._name = ""

    @property
    def _device_types(self) -> list[torch.device]:  # in whose tensors pickled objects travel
        return [pretend.offer_device()]

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        """The name by which a mesh of devices remembers the group."""
        return self._name

    def getBackendName(self) -> str:  # noqa: N802  # torch asks by this name
        """Return the name of the backend."""
        return PretendDevice.backend

    def _start(self, name: str, tensors: Any, *others: Any, then: Any = None) -> Any:
        """Start a collective of gloo on what the tensors hold; return its work at once."""
        with _disable_current_modes():
            work = getattr(self._gloo, name)(*tree_map(_hold, (tensors, *others)))

        def finish(done: "Future[Any]") -> Any:
            done.value()  # raises what went wrong
            if then:
                then()
            return tensors

        return _c10d._create_work_from_future(work.get_future().then(finish))

    allreduce = partialmethod(_start, "allreduce")
    broadcast = partialmethod(_start, "broadcast")
    allgather = partialmethod(_start, "allgather")
    alltoall_base = all_to_all_single = partialmethod(_start, "alltoall_base")

    def all_gather_single(self, whole: Tensor, part: Tensor, options: Any = None) -> Any:
        """Join the ``part`` (n, …) of each rank to the ``whole`` (n · ranks, …)."""
        parts = [list(whole.chunk(self.size()))]
        return self._start("allgather", parts, [part], options or c10d.AllgatherOptions())

    _allgather_base = all_gather_single

    def reduce_scatter(self, parts: Any, wholes: Any, options: Any) -> Any:
        """Sum everything and keep this rank's part: gloo's own has no future."""
        (part,), (whole,) = parts, wholes
        total = torch.cat([_hold(each).flatten() for each in whole])
        mine = total.split([each.numel() for each in whole])[self.rank()].view(part.shape)
        reduce = c10d.AllreduceOptions()
        reduce.reduceOp = options.reduceOp
        keep = lambda: _hold(part).copy_(mine)  # noqa: E731
        return self._start("allreduce", [PretendTensor(total)], reduce, then=keep)

    def reduce_scatter_single(self, part: Tensor, whole: Tensor, options: Any) -> Any:
        """Sum ``whole`` (n · ranks, …) over the ranks; keep this rank's ``part`` (n, …)."""
        rows = list(whole.view(self.size(), *part.shape).unbind())
        return self.reduce_scatter([part], [rows], options)

    _reduce_scatter_base = reduce_scatter_single

    def barrier(self, opts: Any = None) -> Any:  # torch gives it by this name
        """Wait for all ranks."""
        return self._gloo.barrier(c10d.BarrierOptions())

    def send(self, tensors: Any, rank: int, tag: int) -> Any:
        """Send tensors to a rank."""
        return self._gloo.send(tree_map(_hold, tensors), rank, tag)

    def recv(self, tensors: Any, rank: int, tag: int) -> Any:
        """Receive tensors from a rank."""
        return self._gloo.recv(tree_map(_hold, tensors), rank, tag)


def _hold(value: Any) -> Any:
    """Return what a tensor of the device holds; raise RuntimeError for one of the CPU, as NCCL."""
    if isinstance(value, Tensor) and not isinstance(value, PretendTensor):
        raise RuntimeError(f"a collective of {KIND}:0 got a tensor on {value.device}")
    return value.held if isinstance(value, PretendTensor) else value
