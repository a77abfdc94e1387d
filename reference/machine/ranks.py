"""The ranks of a run, whatever the framework, and a run in one process."""

from dataclasses import dataclass
from typing import Any, Protocol


class Ranks(Protocol):
    """This process among those of the run: ``TorchRanks`` or ``SingleProcess``."""

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""

    @property
    def world_size(self) -> int:
        """The number of processes."""

    @property
    def ranks_per_node(self) -> int:
        """The number of processes on each machine."""

    @property
    def is_first(self) -> bool:
        """Whether this is the one rank that writes."""

    @property
    def framework(self) -> str:
        """Name and version of the framework, e.g. ``torch 2.13.0``."""

    @property
    def accelerator(self) -> str | None:
        """The name of the device that this rank drives, or None if that is the processor."""

    def barrier(self) -> None:
        """Wait for this rank's device, then for all other ranks."""

    def broadcast(self, message: Any) -> Any:
        """Return the first rank's ``message`` on every rank."""

    def all_gather_object(self, message: Any) -> list[Any]:
        """Return every rank's ``message``, by rank, on every rank."""

    def is_true_everywhere(self, flag: bool) -> bool:
        """Return whether ``flag`` is true on all ranks, on every rank."""

    def split_batch(self, global_batch_size: int) -> int:
        """Return the samples per rank in a global batch."""


@dataclass(frozen=True)
class SingleProcess:
    """The only process of a run, for frameworks that do not run on several ranks here."""

    framework: str
    accelerator: str | None = None
    rank: int = 0
    world_size: int = 1
    ranks_per_node: int = 1
    is_first: bool = True

    def barrier(self) -> None:
        """Return at once: a step is complete when its loss has been read."""

    def broadcast(self, message: Any) -> Any:
        """Return ``message``."""
        return message

    def all_gather_object(self, message: Any) -> list[Any]:
        """Return a list of ``message`` alone."""
        return [message]

    def is_true_everywhere(self, flag: bool) -> bool:
        """Return ``flag``."""
        return flag

    def split_batch(self, global_batch_size: int) -> int:
        """Return the whole batch."""
        return global_batch_size
