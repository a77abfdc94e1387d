"""What tools measured about a benchmark and keep beside its definition.

``evidence.json`` and ``rcp.json``: each is one JSON object with an entry for each scale.
"""

import json
from pathlib import Path
from typing import Any

from rules import definition
from rules.errors import UserError
from rules.host import atomic_write


def path(name: str, file: str) -> Path:
    """Where a benchmark's file lies."""
    return definition.locate_benchmarks() / name / file


def read(name: str, file: str) -> dict[str, Any]:
    """The content of a benchmark's file, by scale; empty where there is none.

    Raises UserError where it is no JSON object.
    """
    where = path(name, file)
    return parse(where, where.read_text(encoding="utf-8")) if where.exists() else {}


def parse(where: Path, text: str) -> dict[str, Any]:
    """``text``, the content of the file ``where``. Raises UserError where it is no JSON object."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise UserError(f"{where}: expected an object with an entry for each scale")
    return document


def write(name: str, file: str, document: dict[str, Any]) -> None:
    """Replace a benchmark's file as a whole: a reader never sees half of it."""
    atomic_write(path(name, file), json.dumps(document, indent=1) + "\n")
