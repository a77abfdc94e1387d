"""The standing of a result, and which of its numbers the rules vouch for.

Pure: no file is read. In our own rounds a result with an error has no number at all.
"""

import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cepheid.compliance.finding import Finding
from cepheid.compliance.read.summary import ResultSummary, RunSummary
from cepheid.compliance.score.convergence import Convergence
from cepheid.compliance.score.kinds import GENERATION, find_kind, format_number
from cepheid.compliance.score.scores import Score, score_generation, score_times, score_training
from cepheid.compliance.score.trimmed import trim
from cepheid.rules.definition import Definition, Runs
from cepheid.rules.rounds import RoundBenchmark

_FORM = ("T1", "T2", "T3", "T14", "S15")
_CLOCKS = (*_FORM, "T4", "T7")
VOUCHED_BY: Mapping[str, tuple[str, ...]] = {
    "seconds": _CLOCKS,
    "samples": (*_FORM, "T8", "T10"),
    "crossing": (*_FORM, "T8", "T9", "T10"),
    "trained": (*_FORM, "T8", "T10"),
    "generation": (*_CLOCKS, "T24"),
    "pace": (*_CLOCKS, "T10", "T24"),
    "update_time_ratio": (*_CLOCKS, "T10"),
    "joules": (*_CLOCKS, "T23"),
}
"""The numbers of a ``RunSummary``, with the rules that vouch for each."""


def is_vouched_for(name: str, findings: Iterable[Finding]) -> bool:
    """Return True where no error about any run breaks a rule that vouches for a number."""
    return not any(finding.is_error and finding.rule in VOUCHED_BY[name] for finding in findings)


def withhold(summary: ResultSummary, findings: Iterable[Finding]) -> ResultSummary:
    """Return the summary of a result without the numbers that no rule vouches for any more.

    An error about a log, or about the power log of its run, concerns that run; any other error
    concerns all runs of the result.
    """
    errors = [finding for finding in findings if finding.is_error]
    if not errors:
        return summary
    log_of = {path: run.path for run in summary.runs for path in _list_logs(run)}
    runs = []
    for run in summary.runs:
        about = [error for error in errors if log_of.get(_locate(error.path), run.path) == run.path]
        gone = [name for name in VOUCHED_BY if not is_vouched_for(name, about)]
        nothing: dict[str, Any] = {name: {} if name == "generation" else None for name in gone}
        runs.append(replace(run, **nothing))
    return replace(summary, runs=tuple(runs))


def _list_logs(run: RunSummary) -> tuple[Path, Path]:
    """Return the places of the log and of the power log of a run."""
    return _locate(run.path), _locate(run.path.with_name(f"power_{run.number}.csv"))


def _locate(path: Path) -> Path:
    return Path(os.path.abspath(path))


WITHDRAWN = "S8"  # the rule whose finding says so
NO_POINTS = "T21", "not_measured"

Verdict = Literal["scored", "provisional", "disputed", "rejected", "withdrawn", "pass", "fail"]


@dataclass(frozen=True)
class WeakScaling:
    """What MLPerf HPC measures of a machine that trains many models at once.

    ``minutes`` pass from the first run_start to the last run_stop. ``instance_scale`` is the number
    of accelerators, or nodes, that train one model; None where the logs do not agree.
    """

    models: int
    minutes: float
    instance_scale: int | None

    @property
    def models_per_minute(self) -> float:
        """The throughput of the machine, by which such results are ordered."""
        return self.models / self.minutes

    def __str__(self) -> str:
        rate, minutes = map(format_number, (self.models_per_minute, self.minutes))
        return f"{rate} models/min: {self.models:,} in {minutes} min"


def measure_weak_scaling(summary: ResultSummary, benchmark: RoundBenchmark) -> WeakScaling | None:
    """Measure a result of weak scaling; models that did not converge do not count.

    None where fewer models converged than a result needs.
    """
    runs = [run for run in summary.runs if math.isfinite(run.minutes)]
    starts = [run.started_ms for run in runs if run.started_ms is not None]
    if len(runs) < benchmark.runs.required or len(starts) < len(runs):
        return None
    stops = [begin + 60_000 * run.minutes for begin, run in zip(starts, runs, strict=True)]
    scales = {_read_scale(run) for run in runs}
    scale = scales.pop() if len(scales) == 1 else None
    return WeakScaling(len(runs), (max(stops) - min(starts)) / 60_000, scale)


def _read_scale(run: RunSummary) -> int | None:
    nodes, per_node = (run.setup.get(key) for key in ("number_of_nodes", "accelerators_per_node"))
    is_known = isinstance(nodes, int) and isinstance(per_node, int)
    return int(nodes or 0) * max(int(per_node or 0), 1) if is_known else None


@dataclass(frozen=True)
class Standing:
    """How a result stands in its table.

    A result is scored if it has all its runs and no error. It is provisional with fewer runs, and
    where ``doubt`` says why its score proves nothing yet: it has no rank then. It is rejected with
    errors, or disputed if all of them are disputes, and withdrawn where the organisers say so
    (S8). One of a round of MLPerf passes or fails; that is history, so its score stands beside its
    verdict. ``score`` is None without any number, ``so_far`` holds the averages of the converged
    runs of a result with too few runs by metric.
    """

    verdict: Verdict
    score: Score | None = None
    so_far: Mapping[str, float] = field(default_factory=dict)
    doubt: str = ""
    errors: tuple[Finding, ...] = ()
    runs: int = 0
    required: int = 0
    weak: WeakScaling | None = None

    @property
    def place(self) -> int:
        """What sorts tables: results with a score come before the others."""
        order = {"provisional": 1, "disputed": 2, "rejected": 3, "withdrawn": 4}
        return order.get(self.verdict, 0)

    @property
    def is_rejected(self) -> bool:
        """True where no measured number may stand beside the errors."""
        return self.verdict in ("rejected", "disputed", "withdrawn")

    @property
    def has_failed(self) -> bool:
        """True where errors stand against the result."""
        return self.verdict in ("rejected", "disputed", "fail")

    @property
    def text(self) -> str:
        """What stands in place of a score or beside it, empty where nothing needs to be said."""
        if self.has_failed:  # for example "rejected: 2 errors (T12, T10)"
            number, rules = len(self.errors), dict.fromkeys(each.rule for each in self.errors)
            plural = "" if number == 1 else "s"
            return f"{self.verdict}: {number} error{plural} ({', '.join(rules)})"
        if self.verdict == "withdrawn":
            return "withdrawn"
        if self.doubt:
            return f"provisional: {self.doubt}"
        if self.verdict == "provisional":
            return f"provisional: {self.runs} of {self.required} runs"
        has_none = self.verdict == "scored" and not self.score
        return "no score: a run missed the targets" if has_none else ""

    @property
    def cost(self) -> float:
        """What results are ranked by, less is better; infinite without a score."""
        weak = 1 / self.weak.models_per_minute if self.weak else math.inf
        return self.score.cost if self.score else weak


def judge_result(
    runs: Sequence[RunSummary],
    definition: Definition | None,
    findings: Iterable[Finding],
    convergence: Convergence | None = None,
) -> Standing:
    """Return the standing of a result of our own rounds.

    ``definition`` is None for an unknown benchmark, which has no score, and ``convergence`` where
    rule T21 does not apply.
    """
    kind, required = find_kind(definition), definition.runs.required if definition else 0
    found = tuple(findings)
    errors = tuple(finding for finding in found if finding.is_error)
    if any(finding.rule == WITHDRAWN for finding in found):
        return Standing("withdrawn", errors=errors)
    if errors:
        is_disputed = all(finding.is_dispute for finding in errors)
        return Standing("disputed" if is_disputed else "rejected", errors=errors)
    if definition is None or not runs or len(runs) < required:
        so_far = kind.average(runs) if definition else {}
        return Standing("provisional", so_far=so_far, runs=len(runs), required=required)
    # why a score must not be ranked as if it were proven
    doubts = ["its targets may still change"] if definition.provisional else []
    if any(finding.code == ".".join(NO_POINTS) for finding in found):
        doubts.append("there are no reference convergence points")
    generates = kind is GENERATION
    score = score_generation(runs) if generates else score_training(runs, definition, convergence)
    verdict: Verdict = "provisional" if doubts else "scored"
    return Standing(verdict, score, doubt=" and ".join(doubts))


def judge_published(
    summary: ResultSummary,
    benchmark: RoundBenchmark | None,
    findings: Iterable[Finding],
    is_weak: bool = False,
) -> Standing:
    """Return the standing of a published result, whose score stands whatever is found about it.

    ``benchmark`` is None where the result is not scored. Weak scaling has a measure of its own.
    """
    errors = tuple(finding for finding in findings if finding.is_error)
    score = score_published(summary, benchmark) if benchmark and not is_weak else None
    weak = measure_weak_scaling(summary, benchmark) if benchmark and is_weak else None
    return Standing("fail" if errors else "pass", score, errors=errors, weak=weak)


def score_published(summary: ResultSummary, benchmark: RoundBenchmark) -> Score | None:
    """Score a published result with the factor of mlcommons, or return None.

    None where runs are missing, or more did not converge than are dropped at the slow end. A run
    that was aborted, or whose log does not say how it ended, counts as the slowest: its time is
    never averaged. Google's v0.6 ResNet-50 on tpu-v3-1024 has 2.304 minutes so; the raw time of its
    aborted run would make it 2.273.
    """
    runs, held = summary.runs, benchmark.runs
    missed = sum(math.isinf(run.minutes) for run in runs)
    if not runs or len(runs) < held.required or missed > held.drop_slowest:
        return None
    return score_times(runs, held, summary.scaling)


def average_joules(runs: Sequence[RunSummary], held: Runs) -> float | None:
    """Return the mean energy of a run over the runs that the time to train is a mean of.

    None where one of those has no power log.
    """
    kept = trim([run.minutes for run in runs], held.drop_fastest, held.drop_slowest)
    known = [energy for place in kept if (energy := runs[place].joules) is not None]
    return statistics.fmean(known) if known and len(known) == len(kept) else None
