"""The machine-readable index of a leaderboard, ``results.json``, read again.

``cepheid.leaderboard.site.records`` writes it. Reading it needs the core alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cepheid.rules.documents import SCHEMAS, find_schema_problem, parse_json
from cepheid.rules.errors import UserError

FILE = "results.json"
CHANGES_FILE = "changes.json"  # what changed since the publication, by day
SCHEMA = "results"
SCHEMA_FILE = f"{SCHEMA}.schema.json"
VERSION = 3
BYTES_MAX = 2**29  # of an index that is read


def read_schema() -> str:
    """Read the schema, which stands beside the index."""
    return (SCHEMAS / SCHEMA_FILE).read_text(encoding="utf-8").rstrip()


def read(path: Path) -> Mapping[str, Any]:
    """Read the index of a site, given its folder or the file itself.

    Raises UserError for anything else, also for an index of an earlier version.
    """
    file, document = _parse(path)
    version = document.get("version", VERSION) if isinstance(document, dict) else VERSION
    if isinstance(version, int) and version < VERSION:
        raise UserError(
            f"{file}: is an index of version {version}, and this cepheid reads version {VERSION}; "
            "fix: build that site again from its logs, with `cepheid leaderboard`"
        )
    problem = find_schema_problem(document, SCHEMA)
    if problem:
        raise UserError(f"{file}: is not the index of a leaderboard: {problem[:300]}")
    assert isinstance(document, dict)
    return document


def read_changes(folder: Path) -> list[dict[str, Any]]:
    """Read what changed since the publication of a site, by day; nothing without a record.

    Raises UserError for a record that this program did not write.
    """
    path = folder / CHANGES_FILE
    if not path.is_file():
        return []
    _, content = _parse(path)
    if isinstance(content, list) and all(
        isinstance(one, dict)
        and isinstance(one.get("on"), str)
        and isinstance(one.get("changes"), list)
        for one in content
    ):
        return content
    raise UserError(f"{path}: is not a record of changes; restore it from the last publication")


def read_ids(path: Path) -> set[str]:
    """Read the permalinks of a site, of any version. Raises UserError for anything else."""
    file, document = _parse(path)
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list):
        raise UserError(f"{file}: is not the index of a leaderboard")
    return {str(result.get("id")) for result in results if isinstance(result, dict)}


def _parse(path: Path) -> tuple[Path, Any]:
    """Parse the index of a site within bounds. Raises UserError where that is not possible."""
    file = path / FILE if path.is_dir() else path
    try:
        if file.stat().st_size > BYTES_MAX:
            raise UserError(f"{file}: is larger than {BYTES_MAX:,} bytes, so it is no index")
        return file, parse_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            f"{file}: no such file; give a folder that `cepheid leaderboard` wrote"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file}: cannot be read as JSON: {error}") from error
