"""The request for a session. It needs no framework, so that wrong use is found at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cepheid.reference.run.config import RunConfig


@dataclass(frozen=True)
class WantedRuns:
    """The number of runs that a result shall have: in all, or so many more than there are."""

    required: int  # for a score
    number: int
    is_additional: bool = False

    def count(self, present: int) -> int:
        """Return the number in all, given how many runs are present."""
        if self.is_additional:
            return min(present + self.number, max(self.required, present))
        return self.number


@dataclass(frozen=True)
class Request:
    """What a session shall do: runs of one configuration, and where they leave their logs."""

    config: RunConfig  # of run 0, without the name of the system
    output: Path
    wanted: WantedRuns
    submitter: str = "local"
    system: Mapping[str, Any] | None = None  # a description; None: this machine is described
    task_module: str = ""  # the name of the module with the reference's task
    own_task: Path | None = None  # the file of a submitter's task, which takes its place
    planned_ranks: int = 0  # of a plan for another machine; 0: the ranks that were started
    planned_ranks_per_node: int = 1
    is_continued: bool = False  # an earlier process made the run before
