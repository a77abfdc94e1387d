"""The ranks of a run, whatever the framework, and a run in one process."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cepheid.rules.errors import UserError

TIMEOUT_VARIABLE = "CEPHEID_RANK_TIMEOUT"
DEFAULT_SECONDS = 1800.0  # the first rank may have data to prepare
SILENT_SECONDS = 120.0  # but it lives then
NOTICE_SECONDS = 10.0


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

    @property
    def device_keys(self) -> Sequence[str]:
        """What a sensor knows that device by, such as its UUID; nothing where nobody knows."""

    @property
    def usable(self) -> int:
        """The number of such devices that this process could drive."""

    @property
    def device_code(self) -> Path | None:
        """The file of a vendor's own device, None where the device is one of ours."""

    @property
    def libraries(self) -> Mapping[str, str]:
        """The versions of what lies below the framework on that device, by name."""

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
    device_keys: Sequence[str] = ()
    usable: int = 1
    device_code: Path | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)

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


class RankEndedError(UserError):
    """The end of another rank; ``is_reported`` where that rank itself prints the reason.

    Otherwise the rank ``speaker`` prints it for all.
    """

    def __init__(self, message: str, *, is_reported: bool, speaker: int = 0) -> None:
        super().__init__(message)
        self.is_reported, self.speaker = is_reported, speaker


@dataclass(frozen=True)
class RankTimeout:
    """How long a rank waits for the others until it says so, and until it gives up."""

    seconds: float
    silent_seconds: float  # for a rank that sends no heartbeat either: stopped, or gone

    @property
    def notice_seconds(self) -> float:
        """The seconds after which a rank says whom it waits for."""
        return min(NOTICE_SECONDS, self.seconds / 3)

    @property
    def beat_seconds(self) -> float:
        """The seconds between two heartbeats."""
        return self.notice_seconds / 10

    def __str__(self) -> str:
        return f"giving up after {self.seconds:,.0f} s ({TIMEOUT_VARIABLE})"


def read_rank_timeout() -> RankTimeout:
    """Read from the environment how long to wait. Raises UserError for a value that is none."""
    text = os.environ.get(TIMEOUT_VARIABLE, str(DEFAULT_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise UserError(f"{TIMEOUT_VARIABLE}={text}: expected seconds above 0, for example 600")
    return RankTimeout(seconds, seconds if TIMEOUT_VARIABLE in os.environ else SILENT_SECONDS)
