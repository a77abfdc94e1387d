"""Define what a check is, and register one function for each numbered rule."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from cepheid.compliance.finding import Finding
from cepheid.rules.events import Kind


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
    """What the system description says of the machine that logs name too.

    ``accelerators`` are those of all nodes, ``ranks`` the fewest and the most that there can be.
    ``system`` is all of the description.
    """

    framework: str
    accelerators: int
    ranks: tuple[int, int]
    system: Mapping[str, object] = field(default_factory=dict, repr=False, hash=False)


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
