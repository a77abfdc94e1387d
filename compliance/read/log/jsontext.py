"""The JSON of a single record: read quickly where nothing about it is odd, otherwise with care.

``msgspec`` is quick, but keeps the last of two equal keys and refuses NaN. ``parse_plain`` returns
None where that could matter. ``make_decoder`` then reads what it can and reports what is odd.
"""

import json
import math
from typing import Any

import msgspec

NESTING_MAX = 32

_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_MANY_DIGITS = b"0" * 19  # 2**63 has so many
_decode = msgspec.json.Decoder().decode


def parse_plain(text: bytes) -> object | None:
    """Return the JSON of a record, or None where something about it needs a closer look."""
    try:
        record = _decode(text)
    except (ValueError, RecursionError):  # not UTF-8 is a ValueError, too
        return None
    if _may_have_large_integer(text):
        return None
    keys = count_keys(record)
    # None: nested deeply. Another count: a colon in a string, or a key that is there twice.
    return record if keys is not None and keys == text.count(b":") else None


def _may_have_large_integer(text: bytes) -> bool:
    """Return False if no number has so many digits that it might need more than 64 bits."""
    return _MANY_DIGITS in text.translate(_ZEROS)


def make_decoder(duplicates: list[str]) -> json.JSONDecoder:
    """Return a slower decoder that reads NaN and adds duplicate keys to a list."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen:
                    duplicates.append(key[:80])
                    break
                seen.add(key)
        return found

    def integer(digits: str) -> float:
        number = int(digits) if len(digits) <= 20 else 2**64
        return number if -(2**63) <= number < 2**64 else float(digits)

    return json.JSONDecoder(object_pairs_hook=pairs, parse_int=integer)


def count_keys(record: object) -> int | None:
    """Return the number of object keys at all depths, or None if the nesting is too deep."""
    keys = 0
    layer = [record]
    for _ in range(NESTING_MAX):
        inner: list[Any] = []
        for value in layer:
            if isinstance(value, dict):
                keys += len(value)
                inner.extend(item for item in value.values() if isinstance(item, dict | list))
            elif isinstance(value, list):
                inner.extend(item for item in value if isinstance(item, dict | list))
        if not inner:
            return keys
        layer = inner
    return None


def is_finite(value: object) -> bool:
    """Return False if a value holds NaN or an infinite number, which is not JSON."""
    if isinstance(value, float):
        return math.isfinite(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(is_finite, inner))
