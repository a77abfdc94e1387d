"""Which timed loop runs a benchmark: the one for its kind."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from reference.run import generate, train
from rules.events import Kind

Progress = train.Progress | generate.Progress
Outcome = train.Outcome | generate.Outcome

LOOPS: Mapping[Kind, Callable[..., Any]] = MappingProxyType(
    {"train": train.run, "generate": generate.run}
)
"""Each takes definition, task, configuration, log and ``on_progress``, and returns its Outcome."""
