"""The machine-readable index of a site, ``results.json``, and the changes between two of them."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compliance.leaderboard import describe_row
from compliance.leaderboard.numbers import format_number, rank_rows
from compliance.score.ranking import Rank
from compliance.site.entry import Entry, Run
from compliance.site.view import Site, make_link
from rules.documents import SCHEMAS, find_schema_problem, parse_json
from rules.errors import UserError

FILE = "results.json"
SCHEMA = "results"
SCHEMA_FILE = f"{SCHEMA}.schema.json"
VERSION = 1


def write_index(site: Site) -> str:
    """Write every result with its page, its runs and findings, valid against the schema."""
    ranks = _find_ranks(site.entries)
    document = {
        "schema": SCHEMA_FILE,
        "version": VERSION,
        "round": site.round,
        "results": [_describe_result(site, entry, ranks[entry.id]) for entry in site.entries],
    }
    return json.dumps(document, indent=1, allow_nan=False)


def read_schema() -> str:
    """Read the schema, which stands beside the index."""
    return (SCHEMAS / SCHEMA_FILE).read_text(encoding="utf-8").rstrip()


def _find_ranks(entries: Sequence[Entry]) -> dict[str, Rank | None]:
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.row.group, []).append(entry)
    found: dict[str, Rank | None] = {}
    for members in groups.values():
        for entry, (_, rank) in zip(members, rank_rows([e.row for e in members]), strict=True):
            found[entry.id] = rank
    return found


def _describe_result(site: Site, entry: Entry, rank: Rank | None) -> dict[str, Any]:
    return {
        "id": entry.id,
        "page": entry.page,
        "rank": rank.value if rank else None,
        "rank_interval": [rank.best, rank.worst] if rank else None,
        "availability": entry.availability,
        "batch_size": entry.batch_size,
        **_drop_infinite(describe_row(entry.row)),
        "quality": _keep_finite(entry.row.progress.quality),
        "run_logs": [_describe_run(site, run) for run in entry.runs],
    }


def _describe_run(site: Site, run: Run) -> dict[str, Any]:
    return {
        "run": run.summary.number,
        "log": make_link(FILE, site.folder, run.summary.path),
        "status": run.summary.ending,
        "minutes": run.summary.minutes if math.isfinite(run.summary.minutes) else None,
        "counts": run.counts,
        "samples_to_target": run.summary.samples,
        "seed": run.summary.seed,
        "energy_joules": run.summary.joules if _is_finite(run.summary.joules) else None,
        **({"generation": _keep_finite(run.summary.generation)} if run.summary.generation else {}),
    }


def _drop_infinite(found: Mapping[str, Any]) -> dict[str, Any]:
    """Replace infinite numbers, which JSON does not have, by None."""
    return {key: value if _is_finite(value) else None for key, value in found.items()}


def _keep_finite(found: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in found.items() if _is_finite(value)}


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def read(path: Path) -> Mapping[str, Any]:
    """Read the index of a site, given its folder or the file itself.

    Raises UserError for anything else.
    """
    file = path / FILE if path.is_dir() else path
    try:
        document = parse_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            f"{file}: no such file; give a folder that `cepheid leaderboard` wrote"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file}: cannot be read as JSON: {error}") from error
    problem = find_schema_problem(document, SCHEMA)
    if problem:
        raise UserError(f"{file}: is not the index of a leaderboard: {problem[:300]}")
    assert isinstance(document, dict)
    return document


@dataclass(frozen=True)
class Change:
    """A result that was ``added``, ``removed`` or ``changed``, and what is different."""

    id: str
    kind: str
    what: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind:<8} {self.id}" + "".join(f"\n           {line}" for line in self.what)


SHOWN = (  # the facts whose changes are reported, in this order
    "verdict", "score_minutes", "images_per_second", "latency_ms_p50", "latency_ms_p99", "rank",
    "runs", "converged", "samples_to_target", "rcp_verdict", "energy_joules", "batch_size",
    "accelerators", "accelerator", "processor", "nodes", "framework", "availability", "reasons",
)  # fmt: skip


def find_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """Find what changed between two indices, by the permalinks of results."""
    before = {result["id"]: result for result in old["results"]}
    after = {result["id"]: result for result in new["results"]}
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            yield Change(name, "added", (_summarize(after[name]),))
        elif name not in after:
            yield Change(name, "removed", (_summarize(before[name]),))
        else:
            what = tuple(_find_differences(before[name], after[name]))
            if what:
                yield Change(name, "changed", what)


def _summarize(result: Mapping[str, Any]) -> str:
    number = result.get("score_minutes")
    if number is not None:
        return f"{result['verdict']}, {format_number(number)} minutes"
    speed = result.get("images_per_second")
    if speed is not None:
        return f"{result['verdict']}, {format_number(speed)} images/s"
    return str(result["verdict"])


def _find_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for key in SHOWN:
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if key == "reasons":
            yield from (f"no more: {reason}" for reason in old or () if reason not in (new or ()))
            yield from (f"new: {reason}" for reason in new or () if reason not in (old or ()))
        else:
            percent = _format_percent(old, new)
            yield f"{key.replace('_', ' ')}: {_format(old)} → {_format(new)}{percent}"


def _format(value: object) -> str:
    if value is None or value == "":
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _format_percent(old: object, new: object) -> str:
    if isinstance(old, float) and isinstance(new, float) and old:
        return f" ({100 * (new - old) / old:+.1f}%)"
    return ""
