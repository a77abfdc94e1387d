"""Values on the device of a rank: how they get there, and how the host gets them back.

This is all that a benchmark needs to know of devices, and it names none. ``kinds`` says what is
different on which; a device of which it was told nothing is as a processor.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

_guard: Callable[[], AbstractContextManager[None]] = nullcontext


def guard_waits(guard: Callable[[], AbstractContextManager[None]]) -> None:
    """Enter ``guard()`` around all waits of the host from now on: it names a rank that is lost."""
    global _guard
    _guard = guard


def enter_guard() -> AbstractContextManager[None]:
    """Return the context of a wait of the host."""
    return _guard()


@dataclass(frozen=True)
class Values:
    """The values of a device at ``place``, where torch has it."""

    place: torch.device

    has_float64: ClassVar[bool] = True

    @property
    def pins(self) -> bool:
        """Whether copies from pinned memory of the host overlap with work."""
        return False

    def to_device(self, values: Tensor) -> Tensor:
        """Return values of any shape on the device; the host waits where nothing can be pinned.

        Those in float64 become float32 where the device has none.
        """
        narrows = values.dtype == torch.float64 and not self.has_float64
        dtype = torch.float32 if narrows else None
        return self.pin(values).to(self.place, dtype, non_blocking=self.pins)

    def pin(self, values: Tensor) -> Tensor:
        """Return values of any shape in memory from which a copy overlaps with work, if they can.

        From other memory of the host a copy waits for what the device was given before.
        """
        if not self.pins or values.device.type != "cpu" or values.is_pinned():
            return values
        return torch.empty_like(values, pin_memory=True).copy_(values)

    def fetch(self, values: Tensor) -> Tensor:
        """Return values of any shape on the host, after a wait; name a rank that is lost."""
        with enter_guard():
            return values.cpu()

    def widen(self, values: Tensor) -> Tensor:
        """Return values of any shape in float64, in which sums are exact: on the host at worst."""
        return (values if self.has_float64 else self.fetch(values)).double()

    def make_sums(self, *shape: int) -> Tensor:
        """Return zeros of any shape where ``widen`` puts values, to be added to."""
        return self.widen(torch.zeros(shape, device=self.place))

    def make_generator(self) -> torch.Generator:
        """Return a generator of random numbers on the device."""
        return torch.Generator(self.place)


classes: dict[str, type[Values]] = {}
"""What is different on devices, by torch's types of them; ``kinds`` fills it."""


def find_values(place: torch.device) -> Values:
    """Return the values of the device at a place of torch."""
    return classes.get(place.type, Values)(place)


def to_device(values: Any, place: torch.device) -> Tensor:
    """Return an array or a tensor at a place of torch, in the same shape and type."""
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    return find_values(place).to_device(tensor)


def widen(values: Tensor) -> Tensor:
    """Return values of any shape in float64, on their device or, where it has none, on the host."""
    return find_values(values.device).widen(values)


def make_constant(
    values: tuple[float, ...], place: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """Return ``values``, (n,), at ``place``, to be read only.

    They are copied there once: the host waits for such a copy, which no step should.
    """
    if torch.compiler.is_compiling():  # it makes a constant of its own
        return torch.tensor(values, dtype=dtype, device=place)
    return _keep_constant(values, place, dtype)


@lru_cache(maxsize=256)
def _keep_constant(
    values: tuple[float, ...], place: torch.device, dtype: torch.dtype | None
) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=place)
