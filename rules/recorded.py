"""Measurements that are kept beside a benchmark's definition.

``evidence.json`` and ``rcp.json`` are JSON objects with an entry for each scale.
"""

import json
from pathlib import Path
from typing import Any

from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.rules.host import atomic_write


def path(name: str, file: str) -> Path:
    """Return the path of a benchmark's file."""
    return definition.locate_benchmarks() / name / file


def read(name: str, file: str) -> dict[str, Any]:
    """Return the content of a benchmark's file by scale, or nothing if the file is missing.

    Raises UserError if the content is not a JSON object.
    """
    where = path(name, file)
    return parse(where, where.read_text(encoding="utf-8")) if where.exists() else {}


def parse(where: Path, text: str) -> dict[str, Any]:
    """Parse ``text``, the content of the file ``where``.

    Raises UserError if it is not a JSON object.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise UserError(f"{where}: expected an object with an entry for each scale")
    return document


def write(name: str, file: str, document: dict[str, Any]) -> None:
    """Replace a benchmark's file as a whole."""
    atomic_write(path(name, file), json.dumps(document, indent=1) + "\n")
