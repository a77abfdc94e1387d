"""Documents that people and tools write: their JSON Schemas, and the fields still to fill in."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

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


def parse_json(text: str | bytes, may_repeat: bool = False) -> Any:
    """Parse a JSON document as strictly as the standard says.

    Raises ValueError for what `json.loads` lets pass: a key that is there twice, of which each
    reader may take another one, and numbers that are not finite. So does deep nesting. With
    ``may_repeat`` the last one of a key counts.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        return json.loads(
            text,
            object_pairs_hook=dict if may_repeat else _refuse_repetition,
            parse_constant=_refuse_constant,
            parse_float=_parse_finite,
            parse_int=_parse_whole,
        )
    except RecursionError as error:
        raise ValueError("lists and objects are nested too deeply") from error


def parse_yaml(text: str) -> Any:
    """Parse a safe YAML document, by libyaml where it is there: it takes a tenth of the time."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _refuse_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the name {twice[:80]!r} is there more than once")
    return content


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def _parse_finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is too large for a number")
    return value


def _parse_whole(digits: str) -> int:
    _parse_finite(digits[:400])  # as any reader does that has no whole numbers of that size
    return int(digits)


def find_unfilled(content: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield each field that still begins with ``FILL_IN``, with the text that follows."""
    for key, value in content.items():
        if isinstance(value, str) and value.startswith(FILL_IN):
            yield key, value.removeprefix(FILL_IN)
