"""The standing of a result: scored, provisional or rejected; in a published round, its verdict.

Pure: no file is read. In our own rounds a result with an error has no number at all.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from cepheid.compliance.finding import Finding
from cepheid.compliance.read.summary import RunSummary
from cepheid.compliance.score.kinds import TRAINING, Score, find_kind
from cepheid.compliance.score.trimmed import mean, trim
from cepheid.rules.definition import Definition, Runs
from cepheid.rules.rounds import RoundBenchmark

Verdict = Literal["scored", "provisional", "rejected", "pass", "fail"]


@dataclass(frozen=True)
class Standing:
    """How a result stands in its table.

    ``score`` is None without one, ``so_far`` holds the averages of a provisional result by metric.
    ``place`` sorts tables: results with a score come before the others.
    """

    score: Score | None = None
    so_far: Mapping[str, float] = field(default_factory=dict)
    place: ClassVar[int] = 0
    is_rejected: ClassVar[bool] = False  # no measured number may stand beside the errors

    @property
    def verdict(self) -> Verdict:
        """The word for the standing."""
        raise NotImplementedError

    @property
    def has_failed(self) -> bool:
        """True where errors stand against the result."""
        return self.verdict in ("rejected", "fail")

    @property
    def text(self) -> str:
        """What stands in place of a score or beside it, empty where nothing needs to be said."""
        return ""

    @property
    def cost(self) -> float:
        """What results are ranked by, less is better; infinite without a score."""
        return self.score.cost if self.score else math.inf


@dataclass(frozen=True)
class Scored(Standing):
    """A result with all its runs and no error."""

    @property
    def verdict(self) -> Verdict:
        """The word for the standing."""
        return "scored"


@dataclass(frozen=True)
class Provisional(Standing):
    """Fewer runs than required, and no error: averages of the converged runs so far, no score."""

    runs: int = 0
    required: int = 0
    place: ClassVar[int] = 1

    @property
    def verdict(self) -> Verdict:
        """The word for the standing."""
        return "provisional"

    @property
    def text(self) -> str:
        """How many runs are there, for example ``provisional: 1 of 5 runs``."""
        return f"provisional: {self.runs} of {self.required} runs"


@dataclass(frozen=True)
class Rejected(Standing):
    """A result with errors. There is no number, only the reasons."""

    errors: tuple[Finding, ...] = ()
    place: ClassVar[int] = 2
    is_rejected: ClassVar[bool] = True

    @property
    def verdict(self) -> Verdict:
        """The word for the standing."""
        return "rejected"

    @property
    def text(self) -> str:
        """The number of errors and their rules, for example ``rejected: 2 errors (T12, T10)``."""
        return f"rejected: {_count_errors(self.errors)}"


@dataclass(frozen=True)
class Published(Standing):
    """A result of a round of MLPerf, which is history: its score stands beside its verdict."""

    errors: tuple[Finding, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Whether errors were found: ``pass`` or ``fail``."""
        return "fail" if self.errors else "pass"

    @property
    def text(self) -> str:
        """The number of errors and their rules, or an empty text."""
        return f"fail: {_count_errors(self.errors)}" if self.errors else ""


def _count_errors(errors: Sequence[Finding]) -> str:
    rules = ", ".join(dict.fromkeys(finding.rule for finding in errors))
    return f"{len(errors)} error{'' if len(errors) == 1 else 's'} ({rules})"


def judge_result(
    runs: Sequence[RunSummary], definition: Definition | None, findings: Iterable[Finding]
) -> Standing:
    """Return the standing of a result of our own rounds.

    ``definition`` is None for an unknown benchmark, which has no score.
    """
    kind, required = find_kind(definition), definition.runs.required if definition else 0
    errors = tuple(finding for finding in findings if finding.is_error)
    if errors:
        return Rejected(errors=errors)
    if definition is None or not runs or len(runs) < required:
        so_far = kind.average(runs) if definition else {}
        return Provisional(so_far=so_far, runs=len(runs), required=required)
    return Scored(Score(kind, kind.estimate(runs, definition.runs)))


def judge_published(
    runs: Sequence[RunSummary], benchmark: RoundBenchmark | None, findings: Iterable[Finding]
) -> Published:
    """Return the standing of a published result, whose score stands whatever is found about it.

    ``benchmark`` is None where the result is not scored.
    """
    errors = tuple(finding for finding in findings if finding.is_error)
    return Published(score_published(runs, benchmark) if benchmark else None, errors=errors)


def score_published(runs: Sequence[RunSummary], benchmark: RoundBenchmark) -> Score | None:
    """Score a published result, or return None.

    None where runs are missing, or more did not converge than are dropped at the slow end. A run
    that was aborted, or whose log does not say how it ended, counts as the slowest: its time is
    never averaged. Google's v0.6 ResNet-50 on tpu-v3-1024 has 2.304 minutes so; the raw time of its
    aborted run would make it 2.273.
    """
    missed, held = sum(math.isinf(run.minutes) for run in runs), benchmark.runs
    if not runs or len(runs) < held.required or missed > held.drop_slowest:
        return None
    return Score(TRAINING, TRAINING.estimate(runs, held))


def average_joules(runs: Sequence[RunSummary], held: Runs) -> float | None:
    """Return the mean energy of a run over the runs that the score is a mean of (rule T23).

    None where one of those has no power log.
    """
    kept = trim([run.minutes for run in runs], held.drop_fastest, held.drop_slowest)
    known = [energy for place in kept if (energy := runs[place].joules) is not None]
    return mean(known) if known and len(known) == len(kept) else None
