"""What a check is, one function for each numbered rule, and what a log is judged by."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from cepheid.compliance.checks.agreement import JsonSource
from cepheid.compliance.finding import Finding
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.summary import HasTexts
from cepheid.rules import definition, rounds
from cepheid.rules.definition import Definition
from cepheid.rules.events import CHOICES, Kind, is_integer
from cepheid.rules.rounds import RoundBenchmark


class Needs(IntEnum):
    """What must be known or sound before a check is useful.

    A log that is broken at one level is not judged at the next, so that one mistake gives one
    finding. Each level has its own signature.
    """

    RECORDS = 0  # the records that could be read: (run, place)
    DEFINITION = 1  # and the definition of the benchmark: (run, definition, place)
    TIMELINE = 2  # and every event of the timed part, in order: (run, definition, place)
    RESULT = 3  # all logs of a result: (result, definition or the round's benchmark, place)
    SUBMITTER = 4  # a submitter's folder as it was read: (who)
    SUMMARIES = 5  # and what remains of its logs once they are judged: (who, summaries)


@dataclass(frozen=True)
class Described:
    """The sound description of a system, and how many ``accelerators`` all its nodes have."""

    source: JsonSource = field(hash=False)
    accelerators: int

    @property
    def system(self) -> Mapping[str, Any]:
        """All of the description."""
        return self.source.content


@dataclass(frozen=True)
class Place:
    """What the folder of a log requires the log to say; None where it requires nothing."""

    round: str
    submitter: str | None = None
    system: str | None = None
    benchmark: str | None = None
    scale: str | None = None
    division: str | None = None
    in_result: bool = False  # judged as one log of a result, not by itself
    in_submission: bool = False
    described: Described | None = None


@dataclass(frozen=True)
class Check:
    """The function that looks for breaches of one rule."""

    rule: str
    needs: Needs
    find: Callable[..., Iterator[Finding]]
    kinds: tuple[Kind, ...]  # the kinds of benchmarks that the rule applies to


CHECKS: dict[str, Check] = {}


def rule(
    rule_id: str, needs: Needs, kinds: tuple[Kind, ...] = ("train", "generate")
) -> Callable[[Callable[..., Iterator[Finding]]], Callable[..., Iterator[Finding]]]:
    """Register the check of a numbered rule; raise ValueError if the rule has one already."""

    def register(find: Callable[..., Iterator[Finding]]) -> Callable[..., Iterator[Finding]]:
        if rule_id in CHECKS:
            raise ValueError(f"{rule_id} has a check already: {CHECKS[rule_id].find.__name__}")
        CHECKS[rule_id] = Check(rule_id, needs, find, kinds)
        return find

    return register


DIVISIONS = CHOICES["submission_division"]


def find_log_definition(run: HasTexts, place: Place) -> Definition | None:
    """Return the definition that a log is judged by.

    That is the one that its folder names, else the one that the log names. It is None for an
    unknown benchmark or scale, and in a round of MLPerf.
    """
    if rounds.load(place.round).is_mlperf:
        return None
    return find_named_definition(
        place.benchmark, place.scale, place.round
    ) or find_named_definition(
        run.text("submission_benchmark"), run.text("submission_scale"), place.round
    )


def find_named_definition(
    benchmark: str | None, scale: str | None, judged_in: str | None = None
) -> Definition | None:
    """Return the definition of a benchmark at a scale in a round, or None if there is none."""
    is_known = benchmark in definition.names(judged_in)
    if benchmark and is_known and scale in definition.scales(benchmark, judged_in):
        return definition.load(benchmark, scale, judged_in)
    return None


def find_round_benchmark(run: HasTexts, place: Place) -> RoundBenchmark | None:
    """Return the benchmark of a round of MLPerf that the log names, else the one of its folder."""
    judged_in = rounds.load(place.round)
    named = judged_in.benchmark(run.text("submission_benchmark"))
    return named or judged_in.benchmark(place.benchmark)


def find_division(run: RunLog, place: Place) -> str | None:
    """Return the division of the folder, else the one that the log names; None if it is unknown."""
    division = place.division or run.text("submission_division")
    return division if division in DIVISIONS else None


def has_digest_of(run: RunLog, judged_by: Definition) -> bool:
    """Return False if the log was written for another version of the definition."""
    logged = run.text("definition_digest")
    return logged is None or logged == judged_by.digest


def find_given_weights(run: RunLog, definition: Definition) -> Mapping[str, str] | None:
    """Return file and digest of the weights from which a run must start; most have none."""
    choices = {name: rule.default for name, rule in definition.hyperparameters.items()}
    choices |= {event.key: event.value for event in run.events if event.key in choices}
    return definition.find_given_weights(choices)


BATCH_SIZE = "global_batch_size"  # rules T8, T10 and T11 count with it


def read_batch_size(run: RunLog) -> int | None:
    """Return the global batch size in the log, or None if it is not a positive integer."""
    value = run.value(BATCH_SIZE)
    return value if is_integer(value) and value > 0 else None
