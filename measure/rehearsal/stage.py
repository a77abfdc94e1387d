"""Play a scene on the CPU and on the pretend device, on one rank or several, and judge it."""

import os
import traceback
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

from cepheid.measure.engine.own_process import run_on_ranks
from cepheid.measure.rehearsal.device import offer
from cepheid.measure.rehearsal.ledger import COPY, FLOAT64, WAIT, Ledger
from cepheid.measure.rehearsal.play import (
    EVALUATION,
    FIRST,
    GENERATION,
    STEPS,
    Outcome,
    Scene,
    play,
)
from cepheid.measure.rehearsal.pretend import KIND, pretend
from cepheid.reference.machine.accelerators import DEVICE
from cepheid.reference.run.execution import GRAPHS
from cepheid.reference.torch.ranks.distributed import start_ranks
from cepheid.rules.errors import UserError

ALLOWED = Path(__file__).with_name("allowed.yaml")
ROUNDING = 1e-3  # of values and of the norm of an array: a few steps amplify rounding by less
TIMED = (STEPS, EVALUATION, GENERATION)
# In which parts events of a kind are judged: before the first step nothing is timed.
JUDGED: Mapping[str, Sequence[str]] = {WAIT: TIMED, COPY: TIMED, FLOAT64: (FIRST, *TIMED)}


@dataclass(frozen=True)
class Remark:
    """A place where something happens that an accelerator makes somebody pay for.

    ``why`` is the reason for which it may, "" where there is none.
    """

    kind: str
    what: str
    place: str
    function: str
    part: str
    times: int
    why: str

    @property
    def is_judged(self) -> bool:
        """Whether it matters in its part."""
        return self.part in JUDGED[self.kind]

    @property
    def is_finding(self) -> bool:
        """Whether it must not be."""
        return self.is_judged and not self.why


@dataclass(frozen=True)
class Report:
    """What a rehearsal of a scene has shown; ``failure`` is what ended it early, or ""."""

    scene: str
    scale: str
    ranks: int
    difference: float | None
    steps: int
    operations: Mapping[str, int]
    remarks: Sequence[Remark]
    failure: str = ""

    @property
    def numbers(self) -> str:
        """Whether the device computed what the CPU does."""
        if self.difference is None:
            return "did not end"
        if self.difference == 0:
            return "same bits"
        return f"{'within' if self.is_same else 'DIFFER BY'} {self.difference:.0e}"

    @property
    def is_same(self) -> bool:
        """Whether the numbers are those of the CPU, but for rounding."""
        return self.difference is not None and self.difference <= ROUNDING

    @property
    def is_fine(self) -> bool:
        """Whether nothing was found."""
        return self.is_same and not self.failure and not self.findings

    @property
    def findings(self) -> Sequence[Remark]:
        """The remarks that must not be."""
        return [each for each in self.remarks if each.is_finding]

    def count(self, kind: str, part: str) -> int:
        """Count the events of a kind in a part."""
        return sum(each.times for each in self.remarks if (each.kind, each.part) == (kind, part))

    def count_in_steps(self, kind: str) -> float | None:
        """Count the events of a kind in a step; those of a generation."""
        if not self.steps:
            return self.count(kind, GENERATION)
        return self.count(kind, STEPS) / self.steps

    def count_places(self, kind: str) -> int:
        """Count the places of events of a kind in the parts that matter."""
        return len({each.place for each in self.remarks if each.kind == kind and each.is_judged})

    @property
    def step_operations(self) -> float | None:
        """The operations of a step, forward, backward and update; those of a generation."""
        if not self.steps:
            return self.operations.get(GENERATION)
        return self.operations.get(STEPS, 0) / self.steps


@cache
def read_allowed() -> Mapping[tuple[str, str], str]:
    """Return why some events may be, by kind and "file function"."""
    entries = yaml.safe_load(ALLOWED.read_text(encoding="utf-8"))
    return {(kind, entry["at"]): entry["why"] for kind in entries for entry in entries[kind]}


def rehearse(scene: Scene, data_root: Path, ranks: int, has_float64: bool = True) -> Report:
    """Return what a scene shows on the pretend device, compared with the same on the CPU."""
    scene.configure(data_root)  # prepares the data
    expected, *_ = play_on(ranks, scene, data_root, "cpu")
    outcome, ledger, failure = play_on(ranks, scene, data_root, KIND, has_float64)
    difference = expected.compare(outcome) if expected and outcome else None
    remarks = judge(ledger, has_float64)
    numbers = difference, scene.steps, dict(ledger.operations)
    return Report(str(scene), scene.scale, ranks, *numbers, remarks, failure)


Played = tuple[Outcome | None, Ledger, str]


def play_on(ranks: int, *what: Any) -> Played:
    """Play on so many ranks; return what was computed, what was seen, and what ended it early."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch tells what it does not measure
    if ranks == 1:
        return _play(*what)
    return run_on_ranks(ranks, _play, *what)


def _play(scene: Scene, data_root: Path, kind: str, has_float64: bool = True) -> Played:
    """Play a scene on devices of a kind; return what this rank has seen, and what ended it.

    Processors compute step by step what another device repeats as a graph.
    """
    if kind != KIND:
        plain = tuple(text for text in scene.settings if text != f"compile={GRAPHS}")
        scene = replace(scene, settings=plain)
    torch.set_num_threads(1)
    offer(has_float64)
    os.environ[DEVICE] = kind
    config, ledger = scene.configure(data_root), Ledger(scene.roots)
    if kind != KIND:
        with start_ranks() as ranks:
            return play(scene, config, ranks, lambda part: nullcontext()), ledger, ""
    try:
        with pretend(ledger), start_ranks() as ranks:
            return play(scene, config, ranks, ledger.enter), ledger, ""
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever a task or torch raises on this device
        return None, ledger, _explain(error, ledger)


def _explain(error: BaseException, ledger: Ledger) -> str:
    """Return what ended a play, and where."""
    if isinstance(error, SystemExit) and error.__context__:  # of another rank
        error = error.__context__
    text = str(error).strip().partition("\n")[0][:300]
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    place = next(filter(None, map(ledger.read, reversed(frames))), None)
    return f"{f'{place}: ' if place else ''}{type(error).__name__}: {text}"


def judge(ledger: Ledger, has_float64: bool) -> list[Remark]:
    """Return the remarks on all events, those of one place and part together."""
    allowed, groups = read_allowed(), defaultdict(list)
    for event in ledger.events:
        # A device without float64 is asked for sums on the host, which another one is not.
        if has_float64 or event.kind not in (WAIT, COPY):
            groups[event.kind, event.place, event.part].append(event)
    remarks = []
    for (kind, place, part), events in groups.items():
        why = allowed.get((kind, f"{place.file} {place.function}"), "")
        if kind == FLOAT64 and has_float64:
            why = "this device has float64"
        what = ", ".join(sorted({event.what for event in events}))
        times = sum(ledger.events[event] for event in events)
        remarks.append(Remark(kind, what, str(place), place.function, part, times, why))
    return sorted(remarks, key=lambda each: (each.part, each.kind, each.place))
