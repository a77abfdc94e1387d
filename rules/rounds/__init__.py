"""Rounds: versions of the rules. ``load(name)`` reads ``rounds/<name>.yaml``.

The rounds of MLPerf, such as ``mlperf-training-5.1``, are those of the installed mlperf-logging.
"""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import yaml

from cepheid.rules.definition import Runs
from cepheid.rules.documents import parse_yaml
from cepheid.rules.errors import UserError, did_you_mean
from cepheid.rules.events import CURRENT_ROUND
from cepheid.rules.mlperf.rule_files import (
    RuleSet,
    find_rule_sets,
    make_empty_set,
    require_rule_set,
)

CURRENT = CURRENT_ROUND
FOLDER = Path(__file__).parent
OF_MLPERF = Path(__file__).parents[1] / "mlperf" / "rounds.yaml"
MLPERF = "mlperf-"  # how the names of MLPerf's rounds begin

Severity = Literal["error", "warning", "note"]
Dialect = Literal["mllog", "mll", "mlp"]
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

    @property
    def is_lenient(self) -> bool:
        """Whether what stands around records, and which fields they have, does not matter."""
        return self.tolerated >= {"text", "around", "schema"}


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

    A round of MLPerf has ``benchmarks`` and a ``rule_set`` of mlcommons. ``as_published``: its
    results have been accepted, and what we see beyond mlcommons' rules is no error. The benchmarks
    of our own rounds are definitions. ``of_mlcommons`` are the rules that its checkers have too,
    ``description_fields`` and ``statuses`` what they ask of the description of a system.
    ``due`` is the day on which submissions are due (S10), None while it is not announced;
    ``undecided`` says what follows from that.
    ``carries`` are earlier rounds whose results may be submitted again where their definition is
    the same. ``checker`` is the version of this program that judges the round, empty until it is
    frozen, and ``published`` the day of its tables.
    ``nonce`` is a text from which seeds follow, drawn when the round began (T15).
    """

    name: str
    title: str
    rules: Mapping[str, RoundRule]
    layout: Layout = "cepheid"
    log: LogForm = LogForm()
    benchmarks: Mapping[str, RoundBenchmark] = field(default_factory=dict)
    rule_set: RuleSet | None = None
    as_published: bool = False
    of_mlcommons: frozenset[str] = frozenset()
    description_fields: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    nonce: str = ""
    due: datetime.date | None = None
    carries: tuple[str, ...] = ()
    checker: str = ""
    published: datetime.date | None = None

    @property
    def is_mlperf(self) -> bool:
        """Whether mlcommons made the rules, so that its scores stand beside their verdicts."""
        return self.rule_set is not None

    @property
    def judge(self) -> str:
        """Whose rules these are, such as mlperf-logging 4.1.68: a package is no history."""
        return self.rule_set.judge if self.rule_set else f"cepheid, {self.title}"

    def benchmark(self, name: str | None) -> RoundBenchmark | None:
        """Return the benchmark that a log calls by this name, or None."""
        for known in self.benchmarks.values():
            if name == known.name or name in known.also_called:
                return known
        return None

    @property
    def undecided(self) -> str:
        """What the organisers have not decided, and what that means; empty for a round with D."""
        if self.due or self.rule_set:
            return ""
        return (
            f"{self.name} has no date yet: until the organisers announce the day D (S10), nothing "
            "is late, no waiver expires, and no preview has a last day; fix: organisers, write "
            f"due: YEAR-MONTH-DAY into rules/rounds/{self.name}.yaml"
        )

    def __reduce__(self) -> tuple[Callable[..., "Round"], tuple[str, bool]]:
        return load, (self.name, self.as_published)  # another process loads it by its name


def names() -> tuple[str, ...]:
    """Return the names of all rounds."""
    return (*_list_own(), *find_rule_sets(), *_read_ours()["without_rules"])


def _list_own() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def load(name: str = CURRENT, as_published: bool = False) -> Round:
    """Return the round of this name; ``as_published`` makes a difference to MLPerf's alone.

    Raises UserError for an unknown one, and where the rules of mlcommons are not there.
    """
    if name not in _list_own():
        if runs := _read_ours()["without_rules"].get(name):
            return _make_mlperf_round(name, make_empty_set(name, runs), as_published)
        if name.startswith(MLPERF) and (name in find_rule_sets() or not find_rule_sets()):
            return _make_mlperf_round(name, require_rule_set(name), as_published)
        raise UserError(
            f'no round "{name}"{did_you_mean(name, names())}; `cepheid check --list-rounds` lists '
            "all of them"
        )
    document = _read(FOLDER / f"{name}.yaml")
    return Round(
        document["name"],
        document["title"],
        _read_rules(document),
        layout=document.get("layout", "cepheid"),
        log=_read_form(document.get("log", {})),
        nonce=document.get("nonce", ""),
        due=_read_day(document, "due"),
        carries=tuple(document.get("carries", ())),
        checker=document.get("checker", ""),
        published=_read_day(document, "published"),
    )


def _read_day(document: Mapping[str, Any], key: str) -> datetime.date | None:
    """Return a day of a round, None where it is not decided. Raises UserError for anything else."""
    day = document.get(key)
    if day is None or type(day) is datetime.date:
        return day
    raise UserError(
        f"{FOLDER / document['name']}.yaml: {key} is {day!r}, expected a day; "
        f"fix: write it as {key}: 2026-06-30, without quotation marks or a time"
    )


def _make_mlperf_round(name: str, rule_set: RuleSet, as_published: bool) -> Round:
    ours = _read_ours()
    rules = _read_rules(ours)
    decided = {"integrity", "round"} if rule_set.runs else {"integrity"} if as_published else set()
    rules = MappingProxyType(
        {rule.id: replace(rule, severity="warning")
         if rule.kind in decided and rule.severity == "error" else rule
         for rule in rules.values()}
    )  # fmt: skip
    version = float(rule_set.version)
    is_training = rule_set.usage == "training"
    form = {**ours["log"], "dialect": ours["dialects"].get(rule_set.version, "mllog")}
    form["seed_required"] = is_training and version >= ours["seeds_since"]
    no_seeds = {"T15"} if version < ours["seeds_compared_since"] else set[str]()
    benchmarks = {}
    for benchmark, runs in rule_set.count_runs().items():
        dropped, also = ours["drop"].get(benchmark, 1), ours["also_called"].get(benchmark, ())
        held = Runs(runs, dropped, dropped)
        benchmarks[benchmark] = RoundBenchmark(benchmark, tuple(also), held)
    usage = "Training" if is_training else "HPC"
    fields, statuses = rule_set.read_description_rules()
    return Round(
        name,
        f"MLPerf {usage} v{rule_set.version}",
        rules,
        layout="mlperf",
        log=_read_form(form),
        benchmarks=MappingProxyType(benchmarks),
        rule_set=rule_set,
        as_published=as_published,
        of_mlcommons=frozenset(() if rule_set.runs else ours["of_mlcommons"]) - no_seeds,
        description_fields=tuple(fields) if version >= ours["descriptions_since"] else (),
        statuses=tuple(statuses) if is_training and version >= ours["statuses_since"] else (),
    )


def _read_rules(document: Mapping[str, Any]) -> Mapping[str, RoundRule]:
    return MappingProxyType({
        rule: RoundRule(rule, how["kind"], how.get("severity", "error"), how.get("waivable", False))
        for rule, how in document["rules"].items()
    })  # fmt: skip


def _read_form(form: Mapping[str, Any]) -> LogForm:
    return LogForm(**{**form, "tolerated": frozenset(form.get("tolerated", ()))})


@cache
def _read_ours() -> Mapping[str, Any]:
    return _read(OF_MLPERF)


def _read(path: Path) -> Mapping[str, Any]:
    """Read a YAML file of this folder; a test validates each one against its schema.

    Raises UserError for what is no YAML.
    """
    try:
        document: Mapping[str, Any] = parse_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:  # ValueError for a day such as 2026-13-01
        raise UserError(f"{path}: not valid YAML ({error}); fix: correct the file") from error
    return document
