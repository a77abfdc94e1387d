"""Facts that all runs of a result share: written with the first run, then compared."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cepheid.rules.errors import UserError, cannot_write, raise_if_refused
from cepheid.rules.host import atomic_write

CODE = "code"  # the short digests of the files that ran, by name
FILES_SHOWN = 10


def keep_or_compare(
    path: Path, content: dict[str, Any], what: str, compared: tuple[str, ...], why: str
) -> None:
    """Write ``content`` the first time; later check that its ``compared`` fields are the same.

    Raises UserError with the reason ``why`` where they are not, and where the file is damaged or
    cannot be written.
    """
    if not path.exists():
        try:
            atomic_write(path, json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise cannot_write(path, error) from error
        return
    refuse_difference(path, content, what, compared, why)


def refuse_difference(
    path: Path, content: dict[str, Any], what: str, compared: tuple[str, ...], why: str
) -> None:
    """Raise UserError as ``keep_or_compare`` does for a file that is there."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(before, dict):
            raise ValueError("expected a JSON object")
    except (OSError, ValueError) as error:
        raise_if_refused(path, error)
        raise UserError(
            f"{path}: damaged ({error}); move it away or choose another --output"
        ) from error
    changed = _describe_changed_files(before.get(CODE), content.get(CODE))
    before, content = ({key: facts.get(key) for key in compared} for facts in (before, content))
    if before == content:
        return
    differences = _describe_differences(_flatten(before), _flatten(content))
    differences += changed if before.get("code_digest") != content.get("code_digest") else ""
    raise UserError(
        f"{path}: holds another {what}: {differences}. {why}: "
        "choose another --output, or move that folder away"
    )


def _describe_changed_files(before: object, now: object) -> str:
    """Describe which files of the code changed, appeared or disappeared, as far as it is known."""
    if not (isinstance(before, dict) and before and isinstance(now, dict) and now):
        return ""
    parts = {
        "changed": [name for name in now if name in before and before[name] != now[name]],
        "new": [name for name in now if name not in before],
        "gone": [name for name in before if name not in now],
    }
    said = [f"{how}: {_shorten_list(names)}" for how, names in parts.items() if names]
    return f" ({'; '.join(said)})" if said else ""


def _shorten_list(names: list[str]) -> str:
    more = f" and {len(names) - FILES_SHOWN} more" if len(names) > FILES_SHOWN else ""
    return ", ".join(names[:FILES_SHOWN]) + more


def _describe_differences(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    def shorten(value: object) -> str:
        text = json.dumps(value)
        return text if len(text) <= 40 else text[:37] + "…"

    return "; ".join(
        f"{key} was {shorten(before.get(key))}, is {shorten(now.get(key))}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    )


def _flatten(content: Any, prefix: str = "") -> dict[str, object]:
    """Return nested mappings as one, with dotted keys."""
    if not isinstance(content, Mapping):
        return {prefix.rstrip("."): content}
    flat: dict[str, object] = {}
    for key, value in content.items():
        flat |= _flatten(value, f"{prefix}{key}.")
    return flat
