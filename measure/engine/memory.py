"""Count the bytes that tensors take: at most at a time, and for a backward pass."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import accumulate, chain

import torch
from torch import Tensor


def measure_peak_bytes(job: Callable[[], object]) -> int:
    """Return the most bytes that tensors take at a time while a job runs, above those before it."""
    with torch.autograd.profiler.profile(profile_memory=True) as profiled:
        job()
    assert profiled.kineto_results is not None
    changes = [event for event in profiled.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(accumulate((int(event.nbytes()) for event in changes), initial=0))


def count_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of an optimizer's state on this rank."""
    values = chain.from_iterable(state.values() for state in optimizer.state.values())
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


@dataclass
class SavedBytes:
    """The bytes that a forward pass keeps for the backward pass: now, and at most.

    Tensors whose addresses are ``ignored``, such as parameters, do not count, and each storage
    counts once.
    """

    ignored: set[int] = field(default_factory=set)
    most: int = 0
    _kept: dict[int, list[int]] = field(default_factory=dict)  # uses and bytes, by address

    @classmethod
    def beside(cls, parameters: Iterable[Tensor]) -> "SavedBytes":
        """Return a counter that ignores these parameters, of any shapes."""
        return cls({parameter.data_ptr() for parameter in parameters})

    def count(self) -> AbstractContextManager[object]:
        """Return a context in which passes are counted."""
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: _Kept(self, tensor), lambda kept: kept.tensor
        )

    def add(self, address: int, size: int) -> None:
        """Count a use of a storage."""
        self._kept.setdefault(address, [0, size])[0] += 1
        self.most = max(self.most, sum(size for _, size in self._kept.values()))

    def remove(self, address: int) -> None:
        """Count a use less."""
        self._kept[address][0] -= 1
        if not self._kept[address][0]:
            del self._kept[address]


class _Kept:
    """A tensor that is counted while it exists."""

    def __init__(self, counter: SavedBytes, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.tensor, self.counter, self.address = tensor, counter, storage.data_ptr()
        self.counts = self.address not in counter.ignored
        if self.counts:
            counter.add(self.address, storage.nbytes())

    def __del__(self) -> None:
        if self.counts:
            self.counter.remove(self.address)
