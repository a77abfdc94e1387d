"""What a run asks of its ranks, whatever the framework; and a run in one process."""

from dataclasses import dataclass
from typing import Any, Protocol


class Ranks(Protocol):
    """This process among those of the run: ``distributed.Ranks`` of torch, or ``SingleProcess``."""

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""

    @property
    def world_size(self) -> int:
        """How many there are."""

    @property
    def ranks_per_node(self) -> int:
        """How many there are on each machine."""

    @property
    def is_first(self) -> bool:
        """True on the one rank that writes."""

    @property
    def framework(self) -> str:
        """Name and version, e.g. ``torch 2.13.0``."""

    @property
    def accelerator(self) -> str | None:
        """The name of the device that this rank drives, None where that is the processor."""

    def barrier(self) -> None:
        """Wait for this rank's device, then for all other ranks."""

    def broadcast(self, message: Any) -> Any:
        """The first rank's ``message``, on every rank."""

    def all_gather_object(self, message: Any) -> list[Any]:
        """Every rank's ``message``, by rank, on every rank."""

    def is_true_everywhere(self, well: bool) -> bool:
        """True on every rank if it is on all of them."""

    def split_batch(self, global_batch_size: int) -> int:
        """Samples per rank in a global batch."""


@dataclass(frozen=True)
class SingleProcess:
    """The one process of a run, for frameworks that are not driven on several ranks here."""

    framework: str
    accelerator: str | None = None
    rank: int = 0
    world_size: int = 1
    ranks_per_node: int = 1
    is_first: bool = True

    def barrier(self) -> None:
        """Nobody to wait for: a step returns when its loss is there."""

    def broadcast(self, message: Any) -> Any:
        """``message``."""
        return message

    def all_gather_object(self, message: Any) -> list[Any]:
        """``message`` alone."""
        return [message]

    def is_true_everywhere(self, well: bool) -> bool:
        """``well``."""
        return well

    def split_batch(self, global_batch_size: int) -> int:
        """All of it."""
        return global_batch_size
