"""Rounds: frozen versions of the rules. ``load(name)`` reads ``rounds/<name>.yaml``."""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import yaml

from cepheid.rules.definition import Runs
from cepheid.rules.errors import UserError, did_you_mean
from cepheid.rules.events import CURRENT_ROUND
from cepheid.rules.rounds.requirements import Requirements, parse

CURRENT = CURRENT_ROUND
FOLDER = Path(__file__).parent
SHARED = Path(__file__).parent / "shared"  # requirements that several rounds include

Severity = Literal["error", "warning", "note"]
Dialect = Literal["mllog", "mll"]
Layout = Literal["cepheid", "mlperf"]
ProblemKind = Literal[
    "file",  # the file cannot be read, or not to its end
    "text",  # not UTF-8 text
    "around",  # other text before the marker, or after a carriage return behind the record
    "place",  # a record that does not stand on a line of its own
    "json",  # what follows the marker is not one JSON object; the record is lost
    "truncated",  # the last line ends in the middle of a record; the record is lost
    "fields",  # key, time, value or metadata is missing, twice there, or of a wrong type
    "schema",  # another field is not as event.schema.json says
]
"""What can be wrong with the form of a log (rule T1)."""


@dataclass(frozen=True)
class RoundRule:
    """How one numbered rule applies in a round; integrity rules hold in every round.

    The organisers may waive a rule that is ``waivable`` (rule S9).
    """

    id: str
    kind: Literal["integrity", "round"]
    severity: Severity
    waivable: bool = False


@dataclass(frozen=True)
class LogForm:
    """The form of the run logs of a round.

    ``tolerated`` are problems of form that are ignored if they lose no record.
    """

    dialect: Dialect = "mllog"
    monotonic_clock: bool = True
    tolerated: frozenset[ProblemKind] = frozenset()
    seed_required: bool = True


@dataclass(frozen=True)
class RoundBenchmark:
    """A benchmark of a round of MLPerf.

    ``name`` is its name in the logs and ``also_called`` other names that logs use for it. ``runs``
    says how many runs a result has and drops.
    """

    name: str
    also_called: tuple[str, ...]
    runs: Runs


@dataclass(frozen=True)
class Round:
    """A round: its name, the rules that are checked, and the form of its logs.

    A round of MLPerf is history: its scores are shown beside their verdicts, and its benchmarks and
    requirements are listed here. The benchmarks of our own rounds are definitions.
    ``due`` is the day on which submissions are due (S10), None while it is not announced.
    ``carries`` are earlier rounds whose results may be submitted again where their definition is
    the same. ``checker`` is the version of this program that judges the round, empty until it is
    frozen, and ``published`` the day of its tables.
    ``data_not_proven`` are the SHA-256 of the records of the logs that are older than rule T27.
    """

    name: str
    title: str
    rules: Mapping[str, RoundRule]
    is_history: bool = False
    layout: Layout = "cepheid"
    log: LogForm = LogForm()
    benchmarks: Mapping[str, RoundBenchmark] = field(default_factory=dict)
    requirements: tuple[Requirements, ...] = ()
    data_not_proven: frozenset[str] = frozenset()
    due: datetime.date | None = None
    carries: tuple[str, ...] = ()
    checker: str = ""
    published: datetime.date | None = None

    def benchmark(self, name: str | None) -> RoundBenchmark | None:
        """Return the benchmark that a log calls by this name, or None."""
        for known in self.benchmarks.values():
            if name == known.name or name in known.also_called:
                return known
        return None

    def __reduce__(self) -> tuple[Callable[[str], "Round"], tuple[str]]:
        return load, (self.name,)  # another process loads it by its name


def names() -> tuple[str, ...]:
    """Return the names of all rounds."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


@cache
def load(name: str = CURRENT) -> Round:
    """Return the round of this name. Raises UserError for an unknown one."""
    if name not in names():
        raise UserError(
            f'no round "{name}"{did_you_mean(name, names())} (all: {", ".join(names())})'
        )
    document = _read(FOLDER / f"{name}.yaml")
    form = document.get("log", {})
    return Round(
        document["name"],
        document["title"],
        MappingProxyType({rule.id: rule for rule in map(_rule, document["rules"].items())}),
        is_history=document.get("is_history", False),
        layout=document.get("layout", "cepheid"),
        log=LogForm(**{**form, "tolerated": frozenset(form.get("tolerated", ()))}),
        benchmarks=MappingProxyType(
            {
                benchmark: _benchmark(benchmark, entry)
                for benchmark, entry in document.get("benchmarks", {}).items()
            }
        ),
        requirements=tuple(
            parse(group)
            for group in (
                *(_read(SHARED / f"{shared}.yaml") for shared in document.get("include", ())),
                *document.get("requirements", ()),
            )
        ),
        data_not_proven=frozenset(document.get("data_not_proven", ())),
        due=document.get("due"),
        carries=tuple(document.get("carries", ())),
        checker=document.get("checker", ""),
        published=document.get("published"),
    )


def _rule(entry: tuple[str, Mapping[str, Any]]) -> RoundRule:
    rule_id, how = entry
    return RoundRule(rule_id, how["kind"], how.get("severity", "error"), how.get("waivable", False))


def _benchmark(name: str, entry: Mapping[str, Any]) -> RoundBenchmark:
    runs, drop = entry["runs"], entry["runs"]["drop"]
    return RoundBenchmark(
        name,
        tuple(entry.get("also_called", ())),
        Runs(runs["required"], drop["fastest"], drop["slowest"]),
    )


def _read(path: Path) -> Mapping[str, Any]:
    """Read a YAML file of this folder; a test validates each one against its schema."""
    document: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document
