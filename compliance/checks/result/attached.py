"""S14: what the configuration and the reports of a result repeat is what its logs say."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cepheid.compliance.checks.registry import Needs, Place, rule
from cepheid.compliance.checks.result.reports import find_impossible_rows, find_wrong_energy
from cepheid.compliance.finding import Finding, breach, encode_canonically, escape, format_value
from cepheid.compliance.read.attached import Attached
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.logs import ResultLogs
from cepheid.rules.definition import Definition
from cepheid.rules.events import is_integer

KEYS = {  # of a file, and the events that say the same
    "round": "submission_round",
    "benchmark": "submission_benchmark",
    "scale": "submission_scale",
    "division": "submission_division",
    "submitter": "submission_org",
    "system": "submission_platform",
    "definition_digest": "definition_digest",
    "code_digest": "code_digest",
    "task_digest": "task_digest",
    "seed": "seed",
}
OF_RESULT = [key for key in KEYS.values() if key.startswith("submission_")]
EXECUTION = ("precision", "compile", "threads")
Contradiction = tuple[str, object, object]
"""What a file says about, what it says, and what the log says."""


@rule("S14", Needs.RESULT)
def check_attached(result: ResultLogs, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check configuration, reports and logs that were set aside against the logs (S14)."""
    for aside in result.interrupted:
        yield from _check_set_aside(aside, result)
    for attached in result.attached:
        if attached.problem:
            yield breach(attached, None, "S14.unreadable", problem=escape(attached.problem))
            continue
        if not attached.content:
            continue  # a picture, or a file that says nothing
        runs = [run for run in result.runs if attached.number in (None, run.index)]
        found = (
            (run, wrong)
            for run in runs
            for wrong in _find_contradictions(attached, run, result, definition)
        )
        for run, (what, said, logged) in [*found][:1]:  # one is enough to look at the file
            yield breach(
                attached,
                None,
                "S14.contradiction",
                what=escape(what)[:100],
                run=run.path.name,
                logged=format_value(logged),
                said=format_value(said),
            )


def _check_set_aside(aside: RunLog, result: ResultLogs) -> Iterator[Finding]:
    """Check that the log of an interrupted run is one, and belongs to this result."""
    is_cut_off = any(problem.kind == "truncated" for problem in aside.problems)
    if not (aside.events or is_cut_off or _is_empty(aside.path)):
        yield breach(aside, None, "S14.no_log")
    for key in OF_RESULT:
        event, other = aside.first(key), result.runs[0].first(key)
        if event is not None and other is not None and event.value != other.value:
            yield breach(
                aside,
                event,
                "S14.other_result",
                key=key,
                other=result.runs[0].path.name,
                expected=format_value(other.value),
                value=format_value(event.value),
            )
            return


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return True  # T1 reports a file that cannot be read


def _find_contradictions(
    attached: Attached, run: RunLog, result: ResultLogs, definition: Definition
) -> Iterator[Contradiction]:
    content = attached.content
    for key, event_key in KEYS.items():
        event = run.first(event_key)
        if key in content and event is not None and not _is_equal(content[key], event.value):
            yield key, content[key], event.value
    if attached.number is None:
        yield from _check_configuration(content, run)
        return
    if "run" in content and content["run"] != attached.number:
        yield "run", content["run"], attached.number
    power = next((log for log in result.power if log.index == attached.number), None)
    yield from find_wrong_energy(content.get("energy"), run, power)
    yield from find_impossible_rows(content.get("tables"), run)


def _check_configuration(content: Mapping[str, Any], run: RunLog) -> Iterator[Contradiction]:
    given = content.get("hyperparameters")
    for name, value in given.items() if isinstance(given, dict) else ():
        event = run.first(name)
        if event is None or not _is_equal(value, event.value):
            yield name, value, event.value if event else f"no {name}"
    how = run.value("implementation")
    used = how if isinstance(how, dict) else {}
    framework, logged = content.get("framework"), str(used.get("framework", ""))
    if isinstance(framework, str) and framework.casefold() not in logged.casefold():
        yield "framework", framework, logged
    wanted, execution = content.get("execution"), used.get("execution")
    if isinstance(wanted, dict) and isinstance(execution, dict):
        for name in EXECUTION:
            value = wanted.get(name, "auto")
            if value not in ("auto", execution.get(name)):
                yield f"execution.{name}", value, execution.get(name)
        own, logged_own = wanted.get("own"), execution.get("own", wanted.get("own"))
        if isinstance(own, dict) and _put_in_place_of_auto(own, logged_own) != logged_own:
            yield "execution.own", own, logged_own
    yield from _check_seeds(content.get("seeds"), run)


def _put_in_place_of_auto(asked: Mapping[str, Any], used: object) -> dict[str, Any]:
    """Return the settings ``asked`` for, with what was ``used`` where a measurement decided."""
    measured = used if isinstance(used, dict) else {}
    return {name: measured.get(name) if value == "auto" else value for name, value in asked.items()}


def _check_seeds(seeds: object, run: RunLog) -> Iterator[Contradiction]:
    event = run.first("seed")
    if not isinstance(seeds, str) or event is None:
        return
    origin, seed = event.metadata.get("origin"), event.value
    given = re.fullmatch(r"given, from (-?[0-9]{1,20})", seeds)
    if seeds == "derived" or given is None:
        if seeds != origin:
            yield "seeds", seeds, origin
    elif origin != "given" or (is_integer(seed) and seed != int(given[1]) + (run.index or 0)):
        yield "seeds", seeds, f"{origin} {seed}"


def _is_equal(value: object, logged: object) -> bool:
    """Return True for equal JSON values; a number may have lost digits to another precision."""
    if type(value) is type(logged) and value == logged:
        return True
    numbers = [v for v in (value, logged) if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == 2:
        return math.isclose(*numbers, rel_tol=1e-6)
    return encode_canonically(value) == encode_canonically(logged)
