"""Earlier rounds beside this one: the best result of each, and what has become of every result.

Rounds are read from their indices. Two results are compared only where one definition judged both;
where it has changed, or an index does not say, that is what is said instead of a number.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cepheid.compliance.score.kinds import GENERATION, TRAINING, BenchmarkKind
from cepheid.leaderboard.rows.changes import (
    Result,
    SpeedChange,
    compare_speed,
    find_number,
    has_score,
)
from cepheid.leaderboard.rows.data import describe_entry, describe_level
from cepheid.leaderboard.rows.entry import Entry, Group
from cepheid.leaderboard.rows.facts import Hardware


@dataclass(frozen=True)
class Round:
    """A round as its index tells it: the results with a score, by permalink."""

    label: str
    day: str
    results: Mapping[str, Result]


@dataclass(frozen=True)
class Step:
    """The best result of a group in a round. ``change`` compares it with the best one before it.

    ``ends`` are those of its interval. ``part`` counts the stretches of comparable rounds: another
    definition of the benchmark begins a new one, and so does an index that does not say enough.
    """

    round: str
    day: str
    id: str
    value: float
    ends: tuple[float, float] | None
    change: SpeedChange | None
    part: int
    hardware: str


@dataclass(frozen=True)
class Line:
    """The best results of a group over the rounds."""

    group: Group
    kind: BenchmarkKind
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Since:
    """What has become of a result since the last round; ``change`` is None for the same runs."""

    round: str
    is_new: bool
    change: SpeedChange | None

    @property
    def text(self) -> str:
        """Say it in words."""
        return "new" if self.is_new else str(self.change or "the same runs")

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        verdict = "new" if self.is_new else self.change.verdict if self.change else "same runs"
        change = self.change or SpeedChange("unknown")
        ends = {"ratio": change.ratio, "low": change.low, "high": change.high}
        return {"round": self.round, "verdict": verdict, **ends}


def read_rounds(documents: Sequence[Mapping[str, Any]]) -> list[Round]:
    """Read rounds from their indices, the oldest first, each under a label of its own."""
    rounds = [_read_round(document["round"], document["results"]) for document in documents]
    return list(_label(rounds))


def add_current(rounds: Sequence[Round], name: str, entries: Iterable[Entry]) -> list[Round]:
    """Add the round of these entries as the last one."""
    results = (
        {"id": entry.id, **describe_entry(entry), "comparison": describe_level(entry.level)}
        for entry in entries
        if entry.level
    )
    return list(_label([*rounds, _read_round(name, results)]))


def _read_round(name: str, results: Iterable[Result]) -> Round:
    """Read a round; what is provisional proves nothing."""
    scored = {
        result["id"]: result
        for result in results
        if has_score(result) and result.get("verdict") != "provisional"
    }
    return Round(name, max((r.get("last_run") or "" for r in scored.values()), default=""), scored)


def _label(rounds: Sequence[Round]) -> Iterator[Round]:
    """Tell rounds of one name apart by their days, or else by a number."""
    counts = Counter(one.label for one in rounds)
    seen: Counter[str] = Counter()
    for one in rounds:
        label = f"{one.label} ({one.day})" if counts[one.label] > 1 and one.day else one.label
        seen[label] += 1
        yield replace(one, label=label if seen[label] == 1 else f"{label} no. {seen[label]}")


def trace_bests(rounds: Sequence[Round]) -> list[Line]:
    """Trace the best result of every benchmark, scale and division over the rounds."""
    groups: dict[Group, list[tuple[Round, Result]]] = {}
    for one in rounds:
        bests: dict[Group, Result] = {}
        for result in sorted(one.results.values(), key=_find_cost):
            group = result["benchmark"], result["scale"] or "", result["division"]
            bests.setdefault(group, result)
        for group, best in bests.items():
            groups.setdefault(group, []).append((one, best))
    return [_trace_line(group, found) for group, found in sorted(groups.items())]


def _find_cost(result: Result) -> float:
    found = find_number(result)
    if found is None:
        return math.inf
    return found[1] if found[0] != GENERATION.ranked_by else 1 / max(found[1], 1e-300)


def _trace_line(group: Group, bests: Sequence[tuple[Round, Result]]) -> Line:
    has_speed = bests[-1][1].get(GENERATION.ranked_by) is not None
    steps: list[Step] = []
    best: Result | None = None
    part = 0
    for one, result in bests:
        change = compare_speed(best, result) if best else None
        if change and change.verdict in ("other definition", "unknown"):
            part, best = part + 1, None
        name, value = find_number(result) or ("", math.nan)
        prefix = name.removesuffix("_minutes")
        low, high = result.get(f"{prefix}_low"), result.get(f"{prefix}_high")
        ends = (low, high) if low is not None and high is not None and low > 0 else None
        day = result.get("last_run") or ""
        facts = [result.get(key) for key in ("accelerators", "accelerator", "processor")]
        machine = Hardware(facts[0], facts[1] or "", facts[2] or "", 0, "")
        steps.append(Step(one.label, day, result["id"], value, ends, change, part, str(machine)))
        if best is None or _find_cost(result) < _find_cost(best):
            best = result
    return Line(group, GENERATION if has_speed else TRAINING, tuple(steps))


def compare_with_last(rounds: Sequence[Round]) -> dict[str, Since]:
    """Compare each result of the last round with that of its permalink in the round before."""
    if len(rounds) < 2:
        return {}
    before, now = rounds[-2:]
    return {
        name: Since(before.label, old is None, compare_speed(old, result) if old else None)
        for name, result in now.results.items()
        for old in [before.results.get(name)]
    }
