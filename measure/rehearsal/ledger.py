"""What happens on the pretend device, with the line of our code that makes it happen."""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

from cepheid.rules.host import ROOT

WAIT, COPY, FLOAT64 = "wait", "copy", "float64"
GRAPH = "graph"  # the part in which operations are captured
_LOCK = threading.Lock()
# Who calls these is named: they wait and copy for others.
FOR_OTHERS = ("device.py", "devices/values.py", "ranks/distributed.py", "ranks/collectives.py")
NOT_OURS = ("measure/", "tests/", ".venv/", *(f"reference/torch/{name}" for name in FOR_OTHERS))


class Place(NamedTuple):
    """A line of our code, or a node of the backward pass, which has no line."""

    file: str
    line: int = 0
    function: str = ""

    def __str__(self) -> str:
        """Return ``file:line``, as editors take it."""
        return f"{self.file}:{self.line}" if self.line else self.file


class Event(NamedTuple):
    """What an accelerator would make somebody pay for, and where it happened.

    The kind is a wait of the host for a value of the device, a blocking copy to the device, or a
    value in float64.
    """

    kind: str
    what: str
    place: Place
    part: str


@dataclass
class Ledger:
    """Counts of events, and of operations by part of a run.

    ``roots`` are the folders of the code whose lines are named. All threads write to it: backward
    passes of an accelerator have their own.
    """

    roots: tuple[Path, ...] = (ROOT,)
    part: str = ""
    events: Counter[Event] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def enter(self, part: str) -> Iterator[None]:
        """Count for ``part`` of a run in the context."""
        before, self.part = self.part, part
        try:
            yield
        finally:
            self.part = before

    def count(self) -> None:
        """Count an operation that the device computes."""
        with _LOCK:
            self.operations[self.part] += 1

    def note(self, kind: str, what: str) -> None:
        """Count an event at the line of our code that is running now.

        Raises RuntimeError for a wait or a copy while a graph is captured: no graph can have it.
        """
        event = Event(kind, what, self.find_place(), self.part)
        if self.part == GRAPH and kind in (WAIT, COPY):
            raise RuntimeError(f"{event.place}: {what}, which no graph can have")
        with _LOCK:
            self.events[event] += 1

    def find_place(self) -> Place:
        """Return the innermost line of our code that is running, or what the backward pass does."""
        frame: FrameType | None = sys._getframe(1)
        while frame:
            if place := self.read(frame):
                return place
            frame = frame.f_back
        node = torch._C._current_autograd_node()
        return Place(f"backward pass, {node.name()}" if node else "torch")

    def read(self, frame: FrameType) -> Place | None:
        """Return the line that a frame runs, None where it is not one of our code."""
        code = frame.f_code
        for root in map(str, self.roots):
            if code.co_filename.startswith(f"{root}/"):
                file = code.co_filename[len(root) + 1 :].removeprefix("cepheid/")
                function = code.co_qualname.partition(".<")[0]
                is_ours = not file.startswith(NOT_OURS)
                return Place(file, frame.f_lineno, function) if is_ours else None
        return None
