"""Kinds of round: our own rounds, and the published rounds of MLPerf, which are history.

Descriptions of machines are read in the words of both.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from cepheid.compliance.finding import escape
from cepheid.compliance.judge.judgement import JudgedResult
from cepheid.compliance.score.kinds import find_kind
from cepheid.compliance.score.standing import Standing, judge_published, judge_result
from cepheid.leaderboard.rows.runs import (
    Progress,
    average_kept,
    find_median,
    find_median_quality,
    find_update_time_ratio,
    list_metrics,
)
from cepheid.rules.events import is_integer
from cepheid.rules.rounds import Round

COUNT_MAX = 1_000_000  # nodes, or accelerators of a node
EPOCHS_MAX = 10_000


@dataclass(frozen=True)
class Hardware:
    """The machine of a result. ``accelerators`` counts those of all nodes, None where unknown."""

    accelerators: int | None
    accelerator: str
    processor: str
    nodes: int
    framework: str

    @property
    def device(self) -> str:
        """The accelerator, or the processor where there is none."""
        return (self.accelerators and self.accelerator) or self.processor or "unknown"

    def __str__(self) -> str:
        """Return the accelerators, or the processor where there are none: ``8 x NVIDIA H200``."""
        if self.accelerators and self.accelerator:
            return f"{self.accelerators} x {self.accelerator}"
        return self.processor or "unknown"


def read_hardware(system: Mapping[str, object]) -> Hardware:
    """Read the machine from a system's description."""
    nodes = _read_count(system, "nodes") or _read_count(system, "number_of_nodes")
    per_node = _read_count(system, "accelerators_per_node")
    return Hardware(
        accelerators=None if per_node is None else per_node * (nodes or 1),
        accelerator=_read_text(system, "accelerator", "accelerator_model_name"),
        processor=_read_text(system, "processor", "host_processor_model_name"),
        nodes=nodes or 0,
        framework=_read_text(system, "framework"),
    )


def _read_text(system: Mapping[str, object], *keys: str) -> str:
    """Return the first of several fields that is a text and not empty."""
    values = (system.get(key) for key in keys)
    texts = (escape(value[:200]) for value in values if isinstance(value, str))
    return next(filter(None, texts), "")


def _read_count(system: Mapping[str, object], key: str) -> int | None:
    """Return a number of something; descriptions of MLPerf write numbers as text.

    No machine has more than ``COUNT_MAX``; the schema says so too, which rounds of MLPerf lack.
    """
    value: object = system.get(key)
    if isinstance(value, str) and re.fullmatch(r" *[0-9]{1,9} *", value):
        value = int(value)
    return value if is_integer(value) and 0 <= value <= COUNT_MAX else None


NAME_MAX = 64  # characters of a name that are shown
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Names:
    """Whose result it is, and of what. ``scale`` is None where the round has none."""

    submitter: str
    system: str
    division: str
    benchmark: str
    scale: str | None

    def __str__(self) -> str:
        return f"{self.submitter}/{self.system}"


class RoundKind(ABC):
    """How the results of a kind of round become rows.

    ``progress_unit`` is what counts the way to the target: samples or epochs. ``has_verdicts`` is
    True where a score stands beside a verdict, pass or fail, and not in its place.
    """

    progress_unit: ClassVar[str]
    has_verdicts: ClassVar[bool]

    @abstractmethod
    def find_standing(self, result: JudgedResult) -> Standing:
        """Return the standing of a result."""

    @abstractmethod
    def find_names(self, result: JudgedResult) -> Names:
        """Return the names of a result."""

    @abstractmethod
    def find_progress(self, result: JudgedResult) -> Progress:
        """Return how far the runs came. The result is not rejected."""

    @abstractmethod
    def find_machine(self, result: JudgedResult) -> Mapping[str, object]:
        """Return the description of the machine."""

    @abstractmethod
    def find_code(self, result: JudgedResult, benchmark: str) -> Path | None:
        """Return where the submitted code of a benchmark belongs, or None for no such place."""


class _OwnRound(RoundKind):
    """Our own rounds: folders name everything, and an error rejects a result."""

    progress_unit, has_verdicts = "samples", False

    def find_standing(self, result: JudgedResult) -> Standing:
        return judge_result(result.runs, result.definition, result.findings, result.convergence)

    def find_names(self, result: JudgedResult) -> Names:
        place = result.place
        return Names(
            **_name_who(result),
            benchmark=_name(place.benchmark, find_logged(result, "submission_benchmark")),
            scale=_name(place.scale, find_logged(result, "submission_scale")),
        )

    def find_progress(self, result: JudgedResult) -> Progress:
        definition, kind = result.definition, find_kind(result.definition)
        evaluated = [run for run in result.runs if run.converged and run.metrics is not None]
        ratio = find_update_time_ratio(result.runs)
        if definition is None:
            return Progress(update_time_ratio=ratio)
        return Progress(
            samples=find_median([kind.count_samples(run) for run in evaluated]),
            quality=find_median_quality(evaluated, list_metrics(definition)),
            update_time_ratio=ratio,
        )

    def find_machine(self, result: JudgedResult) -> Mapping[str, object]:
        return result.system

    def find_code(self, result: JudgedResult, benchmark: str) -> Path | None:
        root = Path(os.path.abspath(result.folder.path)).parents[2]
        return root / "benchmarks" / benchmark if result.folder.parts else None


class _PublishedRound(RoundKind):
    """Published rounds of MLPerf: logs name benchmarks, and a score stands beside its verdict."""

    progress_unit, has_verdicts = "epochs", True

    def find_standing(self, result: JudgedResult) -> Standing:
        is_weak = result.folder.scale == "weak"  # HPC: models per minute
        return judge_published(result.summary, result.benchmark, result.findings, is_weak)

    def find_names(self, result: JudgedResult) -> Names:
        """Return the names; a benchmark is called as the logs call it, whatever its folder is."""
        place = result.place
        return Names(
            **_name_who(result),
            benchmark=_name(find_logged(result, "submission_benchmark"), place.benchmark),
            scale=place.scale,
        )

    def find_progress(self, result: JudgedResult) -> Progress:
        held = result.benchmark.runs if result.benchmark else None
        samples = average_kept([run.samples for run in result.runs], held)
        epochs = average_kept([run.epochs for run in result.runs], held)
        if epochs and epochs > EPOCHS_MAX:  # some logs call the number of samples so
            samples, epochs = epochs, None
        return Progress(
            samples=samples,
            epochs=epochs,
            update_time_ratio=find_update_time_ratio(result.runs),
        )

    def find_machine(self, result: JudgedResult) -> Mapping[str, object]:
        """Return the description; without one, what logs of MLPerf HPC say of their nodes."""
        if result.system or not result.runs:
            return result.system
        return result.runs[0].setup

    def find_code(self, result: JudgedResult, benchmark: str) -> Path | None:
        return None


OWN: RoundKind = _OwnRound()
PUBLISHED: RoundKind = _PublishedRound()


def find_round_kind(judged_in: Round) -> RoundKind:
    """Return the kind of a round."""
    return PUBLISHED if judged_in.is_mlperf else OWN


def find_logged(result: JudgedResult, key: str) -> str | None:
    """Return the first text that a log of a result has for a key."""
    return next(filter(None, (run.text(key) for run in result.runs)), None)


def _name_who(result: JudgedResult) -> dict[str, str]:
    """Return submitter, system and division: as the folders say, else as the first log says."""
    place = result.place
    return {
        "submitter": _name(place.submitter, find_logged(result, "submission_org")),
        "system": _name(place.system, find_logged(result, "submission_platform")),
        "division": _name(place.division, find_logged(result, "submission_division")),
    }


def _name(*texts: str | None) -> str:
    """Return the first text that is not empty."""
    return escape((next(filter(None, texts), None) or UNKNOWN)[:NAME_MAX])
