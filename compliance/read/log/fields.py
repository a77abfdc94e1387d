"""What is wrong with the fields of a record that could be read (rule T1)."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cepheid.compliance.read.log.records import (
    EVENT_TYPES,
    FIELDS,
    GOT_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    Problem,
    names_its_source,
)
from cepheid.rules.events import is_integer
from cepheid.rules.rounds import ProblemKind


def find_field_problems(
    number: int, record: Mapping[str, Any], *, has_schema: bool
) -> Iterator[Problem]:
    """Yield what a record lacks, and where ``has_schema`` also what ``event.schema.json`` forbids.

    Key and time are good: without them there is no record.
    """
    if "value" not in record:
        yield Problem(number, "fields", 'the record lacks "value"')
    metadata = record.get("metadata")
    if "metadata" not in record:
        yield Problem(number, "fields", 'the record lacks "metadata"')
    elif not isinstance(metadata, dict):
        yield _describe(number, record, "metadata", "is not an object", "fields")
    if has_schema:
        yield from _find_schema_problems(number, record)


def _find_schema_problems(number: int, record: Mapping[str, Any]) -> Iterator[Problem]:
    if len(record) != len(FIELDS) or any(name not in record for name in FIELDS):
        for name in ("namespace", "event_type"):
            if name not in record:
                yield Problem(number, "schema", f'the record lacks "{name}"')
        for name in sorted(record.keys() - set(FIELDS)):
            message = f'the record has a field "{name[:80]}" too many'
            yield Problem(number, "schema", message)
    if not is_integer(record["time_ms"]):
        yield _describe(number, record, "time_ms", "is not an integer")
    if len(record["key"]) > NAME_CHARACTERS_MAX:
        yield _describe(number, record, "key", "is too long")
    namespace = record.get("namespace", "")
    if not isinstance(namespace, str) or len(namespace) > NAME_CHARACTERS_MAX:
        yield _describe(number, record, "namespace", "is not a short string")
    if record.get("event_type", EVENT_TYPES[0]) not in EVENT_TYPES:
        yield _describe(number, record, "event_type", f"is none of {', '.join(EVENT_TYPES)}")
    metadata = record.get("metadata")
    if isinstance(metadata, dict) and not names_its_source(metadata):
        message = "metadata does not name the file and lineno that wrote the record"
        yield Problem(number, "schema", message)


def _describe(
    number: int, record: Mapping[str, Any], name: str, wrong: str, kind: ProblemKind = "schema"
) -> Problem:
    return Problem(number, kind, f"{name} {wrong}", format_field(record, name)[:GOT_CHARACTERS_MAX])


def format_field(record: Mapping[str, Any], name: str) -> str:
    """Return the value of a field as a message shows it."""
    return json.dumps(record[name])[:200] if name in record else "nothing"
