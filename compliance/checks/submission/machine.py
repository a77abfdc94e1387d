"""S2: the description of a system is valid, possible, and agrees with itself."""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from cepheid.compliance.checks.agreement import JsonSource, find_disagreements
from cepheid.compliance.checks.registry import Described, Needs, rule
from cepheid.compliance.finding import Finding, breach, escape, format_value
from cepheid.compliance.read.contents import Submitter, SystemFile
from cepheid.rules.documents import SCHEMAS, find_unfilled
from cepheid.rules.errors import did_you_mean
from cepheid.rules.events import is_integer
from cepheid.rules.systems import ORDER, explain_name, find_device, find_organisation

COUNTS_MAX = {  # as in the schema
    "nodes": 1_000_000,
    "accelerators_per_node": 1024,
    "processor_cores_per_node": 16_384,
}
PROBLEMS_PER_DESCRIPTION_MAX = 10
ROUNDED = 0.01
"""By so much of it the value of a datasheet may differ from that of ``rules/devices.yaml``."""


@rule("S2", Needs.SUBMITTER)
def check_system_descriptions(who: Submitter) -> Iterator[Finding]:
    """Check that each description is valid and names its file and submitter (S2)."""
    used = {result.system for result in who.results}
    for name, system in who.systems.items():
        if name in used or who.in_submission:
            yield from _check_description(system, who)
        if who.in_submission:
            for key, what in find_unfilled(system.content or {}):
                key, what = escape(key)[:100], escape(what)[:200]
                yield breach(system, None, "S2.unfilled", key=key, what=what)


def _check_description(system: SystemFile, who: Submitter) -> Iterator[Finding]:
    if system.content is None:
        yield breach(system, None, "S2.unreadable", problem=escape(system.problem))
        return
    problems = list(_check_schema(system)) or list(check_machine(system))
    yield from problems[:PROBLEMS_PER_DESCRIPTION_MAX]
    named = system.text("system")
    if named is not None and named != system.name:
        yield breach(
            system, None, "S2.system", name=format_value(system.name), system=format_value(named)
        )
    by, submitter = system.text("submitter"), who.name
    why = explain_name(by) if by and by != submitter else ""  # else S1 reports the folder
    if why:
        yield breach(system, None, "S2.submitter_name", why=why, submitter=format_value(by))
    elif by is not None and submitter is not None and by != submitter:
        if by == find_organisation(Path(os.path.abspath(who.path))):
            yield breach(system, None, "S2.team", submitter=by, folder=submitter)
            return
        yield breach(
            system, None, "S2.submitter",
            case="team" if re.fullmatch(rf"{re.escape(by)}.?[0-9]+", submitter) else "",
            folder=format_value(submitter), submitter=format_value(by),
        )  # fmt: skip


def _check_schema(system: SystemFile) -> Iterator[Finding]:
    import jsonschema  # imported here, because a single log is checked without it

    path = SCHEMAS / "system.schema.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    content = dict(system.content or {})
    unknown = [key for key in content if key not in schema["properties"]]
    missing = [key for key in schema["required"] if key not in content]
    for key in unknown:
        guess = did_you_mean(key[:100], missing or schema["properties"])
        yield breach(
            system, None, "S2.unknown_field", key=format_value(key), guess=guess, schema=path.name
        )
    if missing:
        yield breach(system, None, "S2.missing_field", fields=", ".join(missing))
    validator = jsonschema.Draft202012Validator(schema)
    for error in validator.iter_errors(content):
        if error.validator in ("required", "additionalProperties") and not error.path:
            continue  # reported above
        yield breach(
            system, None, "S2.value", key=escape(".".join(map(str, error.path))[:100]),
            allowed=_describe_schema(error.schema), value=format_value(error.instance),
            schema=path.name,
        )  # fmt: skip


def _describe_schema(schema: object) -> str:
    """Describe the part of a schema that a value breaks: ``type: integer, minimum: 1``."""
    if not isinstance(schema, dict):
        return ""
    parts = (f"{key}: {json.dumps(value)}" for key, value in schema.items())
    return ", ".join(parts).replace('"', "")


def check_machine(system: SystemFile) -> Iterator[Finding]:
    """Check that fields of a valid description fit together, and that versions agree (S2)."""
    content = system.content or {}
    source = JsonSource(system.path, content)
    found = find_disagreements("system", system=source)
    contradictions = [(str(one.key), one.expected, one.others) for one in found]
    for field, expected, because in (*contradictions, *_find_other_peaks(content)):
        yield breach(
            system, source.find_line(tuple(field.split("."))), "S2.contradiction", field=field,
            because=because, expected=expected, value=format_value(content.get(field)),
        )  # fmt: skip


def _find_other_peaks(content: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield where the peaks contradict what the maker of a known accelerator states."""
    known = find_device(content["accelerator"])
    if known is None:
        yield from _find_unordered(content)
        return
    because = f"rules/devices.yaml, which has {known.device}"
    peaks = content.get("peak_tflops", {})
    stated = [
        ("peak_tflops", f" for {precision}", peaks.get(precision, {}), value)
        for precision, value in known.peak_tflops.items()
    ]
    if known.memory_gb_per_second:
        field = "memory_gb_per_second"
        stated.append((field, "", content.get(field, {}), known.memory_gb_per_second))
    for field, what, peak, value in stated:
        if not math.isclose(peak.get("datasheet", value), value, rel_tol=ROUNDED):
            yield field, f"a datasheet value of {value:g}{what}", because
        if peak.get("measured", 0) > value:
            yield field, f"a measured value of at most {value:g}{what}", because


def _find_unordered(content: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield where a narrower number would be slower; no accelerator is built like that."""
    peaks = content.get("peak_tflops", {}) if content["accelerators_per_node"] else {}
    stated = [(name, peak) for name in ORDER if (peak := peaks.get(name, {}).get("datasheet"))]
    for (wide, slow), (narrow, fast) in pairwise(stated):
        if fast < slow:
            yield "peak_tflops", f"at least {slow:g} for {narrow}", f"{wide} has {slow:g}"


def describe_machine(system: SystemFile | None) -> Described | None:
    """Return the description of the machine that logs name too, or None if it is unsound."""
    content = (system.content if system else None) or {}
    framework = content.get("framework")
    known = [
        count
        for key, most in COUNTS_MAX.items()
        if is_integer(count := content.get(key)) and 0 <= count <= most
    ]
    if len(known) < len(COUNTS_MAX) or not isinstance(framework, str):
        return None
    if not any(map(str.isalnum, framework)):
        return None
    nodes, accelerators, _ = known
    if system is None or (accelerators and not isinstance(content.get("accelerator"), str)):
        return None
    # A plain dict: what is judged elsewhere is sent to another process.
    return Described(JsonSource(system.path, dict(content)), nodes * accelerators)
