"""Documents that people and tools write: their JSON Schemas, and the fields still to fill in."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

SCHEMAS = Path(__file__).resolve().parent / "schemas"

FILL_IN = "FILL IN: "
"""Begins a text that says what a person must write in its place. Rules S2 and S3 look for it."""


def find_schema_problem(document: object, schema: str) -> str | None:
    """Return the first way ``document`` breaks ``schemas/<schema>.schema.json``, or None."""
    import jsonschema

    rules = json.loads((SCHEMAS / f"{schema}.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(rules)
    error = next(iter(sorted(validator.iter_errors(document), key=lambda e: list(e.path))), None)
    if error is None:
        return None
    place = ".".join(str(part) for part in error.path) or "top level"
    has_bound = error.validator in ("minLength", "maxLength")  # the message leaves the bound out
    bound = f" ({error.validator}: {error.validator_value})" if has_bound else ""
    return f"{place}: {error.message}{bound}"


def find_unfilled(content: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield each field that still begins with ``FILL_IN``, with the text that follows."""
    for key, value in content.items():
        if isinstance(value, str) and value.startswith(FILL_IN):
            yield key, value.removeprefix(FILL_IN)
