"""The changes between two indices of a site, and whether they are more than chance.

Two builds of a result are compared by the test that compares two results
(``cepheid.compliance.score.comparison``), from what the index says of their runs.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cepheid.compliance.finding import escape
from cepheid.compliance.score.comparison import Ratio, format_ratio, ratio
from cepheid.compliance.score.convergence import Loading
from cepheid.compliance.score.kinds import format_number
from cepheid.compliance.score.levels import Level

Result = Mapping[str, Any]
"""A result of an index."""
MLPERF = "mlperf-"  # how the names of its rounds begin: it compares benchmarks by their names
Verdict = Literal[
    "faster", "slower", "no difference", "few runs", "other definition", "unknown", "not tested"
]  # fmt: skip

SHOWN = (  # the facts whose changes are reported, in this order
    "verdict", "definition_digest", "code_digest", "score_minutes", "score_low", "score_high",
    "time_minutes", "time_low", "time_high", "charged", "sittings", "images_per_second",
    "images_per_second_low", "images_per_second_high", "latency_ms_p50", "latency_ms_p90",
    "latency_ms_p99", "rank", "runs", "converged", "samples_to_target", "rcp_verdict",
    "energy_joules", "batch_size", "accelerators", "accelerator", "processor", "nodes", "framework",
    "availability", "last_run",
)  # fmt: skip
OF_RUN = ("minutes", "status", "samples_to_target", "crossing", "seed", "energy_joules")
LISTS = ("codes", "reasons")
NUMBERS = {  # of which the first one that a result has orders it, with the unit
    "score_minutes": "minutes", "images_per_second": "images/s", "time_minutes": "minutes",
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """A fact that has another value. ``old`` or ``new`` is None where there is none."""

    field: str
    old: object
    new: object

    def __str__(self) -> str:
        name = escape(self.field.replace("_", " "))
        if self.field in LISTS:
            word = "new" if self.old is None else "no more"
            return f"{word}: {_format(self.new if self.old is None else self.old)}"
        old, new, percent = self.old, self.new, ""
        if isinstance(old, float) and isinstance(new, float) and old:
            percent = f" ({100 * (new - old) / abs(old):+.1f}%)"
        return f"{name}: {_format(old)} → {_format(new)}{percent}"


@dataclass(frozen=True)
class SpeedChange:
    """How many times as fast a result is as before, and what can be said of that.

    ``verdict`` is ``faster`` or ``slower`` where the test finds a difference, ``no difference``
    where it finds none, ``few runs`` where it needs more, ``other definition`` where the two were
    not judged by the same definition, ``unknown`` where an index does not say by which, or lacks
    what the test needs, and ``not tested`` where scipy, which tests it, is not installed.
    """

    verdict: Verdict
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.verdict == "other definition":
            return "not comparable: the definition of the benchmark has changed"
        if self.ratio is None:
            return "cannot be tested: an index does not say all that a comparison needs"
        is_slower = self.verdict == "slower"  # a ratio that is claimed is never below 1
        speed = f"{format_ratio(1 / self.ratio if is_slower else self.ratio)} times as fast"
        speed += " before" if is_slower else ""
        if self.verdict == "not tested":
            return f"{speed}; it was not tested whether this is more than chance"
        if self.low is None or self.high is None:
            return f"{speed}; too few runs for an interval, no change can be claimed"
        ends = (1 / self.high, 1 / self.low) if is_slower else (self.low, self.high)
        interval = "–".join(map(format_ratio, ends))
        said = "no change can be claimed" if self.verdict == "no difference" else self.verdict
        return f"{said}: {speed}, 95% interval {interval}"


@dataclass(frozen=True)
class Change:
    """A result that was ``added``, ``removed`` or ``changed``, and what is different.

    ``speed`` is None unless both have a score and their runs differ.
    """

    id: str
    kind: Literal["added", "removed", "changed"]
    summary: str
    speed: SpeedChange | None = None
    differences: tuple[Difference, ...] = ()

    def __str__(self) -> str:
        told = [self.summary, *([str(self.speed)] if self.speed else []), *self.differences]
        lines = [str(line) for line in told if line]
        return f"{self.kind:<8} {escape(self.id)}" + "".join(f"\n           {x}" for x in lines)


def find_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """Find what changed between two indices, by the permalinks of results."""
    before = {result["id"]: result for result in old["results"]}
    after = {result["id"]: result for result in new["results"]}
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            yield Change(name, "added", _summarize(after[name]))
        elif name not in after:
            yield Change(name, "removed", _summarize(before[name]))
        else:
            differences = tuple(_find_differences(before[name], after[name]))
            if differences:
                speed = compare_speed(before[name], after[name])
                yield Change(name, "changed", "", speed, differences)


def compare_speed(old: Result, new: Result) -> SpeedChange | None:
    """Compare two builds of a result; None where one has no score, or both have the same runs."""
    if not (has_score(old) and has_score(new)):
        return None
    digests = old.get("definition_digest"), new.get("definition_digest")
    rounds = old.get("round"), new.get("round")
    are_of_mlperf = all(str(name).startswith(MLPERF) for name in rounds)
    if None in digests and not (are_of_mlperf or (rounds[0] == rounds[1] and not any(digests))):
        return SpeedChange("unknown")  # nothing says that the two were judged alike
    if digests[0] != digests[1]:
        return SpeedChange("other definition")
    first, second = _read_level(old), _read_level(new)
    if first is None or second is None:
        return SpeedChange("unknown")
    if first == second:
        return None
    try:
        return _judge(ratio(second, first))
    except ModuleNotFoundError:  # scipy, which is not part of the core
        return SpeedChange("not tested", math.exp(first.log_mean - second.log_mean))
    except (OverflowError, ZeroDivisionError):  # an index may hold impossible numbers
        return SpeedChange("unknown")


def _judge(speed: Ratio) -> SpeedChange:
    """Say what can be claimed from a ratio of speeds."""
    ends = speed.value, speed.low or 1.0, speed.high or 1.0
    if not all(math.isfinite(end) and end > 0 for end in ends):
        return SpeedChange("unknown")
    if speed.low is None or speed.high is None:
        return SpeedChange("few runs", speed.value)
    better: Verdict = "faster" if speed.value > 1 else "slower"
    verdict = better if speed.is_difference else "no difference"
    return SpeedChange(verdict, speed.value, speed.low, speed.high)


def _read_level(result: Result) -> Level | None:
    """Read from an index what a result is compared by; None without it."""
    said = result.get("comparison")
    if said is None:
        return None
    degrees, own = said["degrees"], said["own"]

    def read(part: Mapping[str, Any], basis: Any, **more: Any) -> Level:
        variance = part["variance"] if degrees >= 1 else None
        return Level(part["log_mean"], variance, degrees, said["n"], basis, **more)

    loadings = tuple(Loading(**one) for one in said["points"])
    more = {"is_charged": said["charged"], "sittings": said["sittings"]}
    of_own = read(own, "own") if own else None
    return read(said, said["basis"], loadings=loadings, own=of_own, **more)


def has_score(result: Result) -> bool:
    """Return whether a result of an index has a number: a score, or only a time."""
    return any(result.get(name) is not None for name in NUMBERS)


def find_number(result: Result) -> tuple[str, float] | None:
    """Return the name and the value of the number that orders a result, None without one."""
    known = ((name, result.get(name)) for name in NUMBERS)
    return next(((name, float(value)) for name, value in known if value is not None), None)


def _summarize(result: Result) -> str:
    found, verdict = find_number(result), escape(str(result["verdict"]))
    return f"{verdict}, {format_number(found[1])} {NUMBERS[found[0]]}" if found else verdict


def _find_differences(before: Result, after: Result) -> Iterator[Difference]:
    old, new = _flatten(before), _flatten(after)
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield Difference(key, old.get(key), new.get(key))
    for key in LISTS:
        gone, come = before.get(key) or (), after.get(key) or ()
        yield from (Difference(key, one, None) for one in gone if one not in come)
        yield from (Difference(key, None, one) for one in come if one not in gone)


def _flatten(result: Result) -> dict[str, object]:
    """Return the facts that are compared by their names; a run that is not there has none."""
    facts = {key: result.get(key) for key in SHOWN}
    for prefix, name in (("quality", "quality"), ("hyperparameter", "hyperparameters")):
        facts |= {f"{prefix} {key}": value for key, value in (result.get(name) or {}).items()}
    for run in sorted(result["run_logs"], key=lambda run: run["run"]):
        facts |= {f"run {run['run']} {key}": run.get(key) for key in OF_RUN}
    return facts


def _format(value: object) -> str:
    if value is None or value == "":
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else escape(str(value)[:200])
