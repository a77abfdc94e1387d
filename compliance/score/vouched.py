"""Which rules vouch for a number of a run, and the numbers that their errors leave.

Most rules are only checked of a log that has all records in their order and that belongs to its
folder and its definition. So T1 to T3 and T14 vouch for every number. So does S15: a check that
failed has found nothing.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cepheid.compliance.finding import Finding
from cepheid.compliance.read.summary import ResultSummary, RunSummary

_FORM = ("T1", "T2", "T3", "T14", "S15")
_CLOCKS = (*_FORM, "T4", "T7")
VOUCHED_BY: Mapping[str, tuple[str, ...]] = {
    "seconds": _CLOCKS,
    "samples": (*_FORM, "T8", "T10"),
    "generation": (*_CLOCKS, "T24"),
    "pace": (*_CLOCKS, "T10", "T24"),
    "update_time_ratio": (*_CLOCKS, "T10"),
    "joules": (*_CLOCKS, "T23"),
}
"""The numbers of a ``RunSummary``, with the rules that vouch for each."""


def is_vouched_for(name: str, findings: Iterable[Finding]) -> bool:
    """Return True where no error about any run breaks a rule that vouches for a number."""
    return not any(found.is_error and found.rule in VOUCHED_BY[name] for found in findings)


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
        runs.append(_withhold(run, {error.rule for error in about}))
    return replace(summary, runs=tuple(runs))


def _withhold(run: RunSummary, broken: Collection[str]) -> RunSummary:
    gone = [name for name, rules in VOUCHED_BY.items() if any(rule in broken for rule in rules)]
    nothing: dict[str, Any] = {name: {} if name == "generation" else None for name in gone}
    return replace(run, **nothing)


def _list_logs(run: RunSummary) -> tuple[Path, Path]:
    """Return the places of the log and of the power log of a run."""
    return _locate(run.path), _locate(run.path.with_name(f"power_{run.number}.csv"))


def _locate(path: Path) -> Path:
    return Path(os.path.abspath(path))
