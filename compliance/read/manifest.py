"""``manifest.json`` of a submission: what binds its logs, systems and code together (rule S4)."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rules import digests
from rules.documents import find_schema_problem

FILE_NAME = "manifest.json"
FILE_BYTES_MAX = 32 * 2**20
NOT_LISTED = re.compile(r"manifest\.json|\.manifest\.json\.[0-9]+\.partial|waivers\.yaml")
"""At the top: the manifest itself, what a killed `cepheid pack` left, what organisers add later."""


@dataclass(frozen=True)
class BoundResult:
    """What one result stands on: digests of its system's description, of its code, and of the
    definition that its logs name."""

    system: str
    code: str
    definition_digest: str


@dataclass(frozen=True)
class Manifest:
    """The files of a submission with their digests, and what each of its results stands on; by
    paths relative to the submitter's folder. With a ``problem`` it could not be read."""

    path: Path
    round: str = ""
    submitter: str = ""
    results: Mapping[str, BoundResult] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


def is_listed(name: PurePosixPath) -> bool:
    """Whether a file belongs into the manifest: all do but those in ``NOT_LISTED`` and
    ``__pycache__``."""
    return not NOT_LISTED.fullmatch(str(name)) and not any(map(digests.is_left_out, name.parts))


def code_of(files: Mapping[str, str], benchmark: str) -> str:
    """The digest of the code for a benchmark, from those of all files."""
    prefix = f"benchmarks/{benchmark}/"
    inside = {name.removeprefix(prefix): files[name] for name in files if name.startswith(prefix)}
    return digests.digest_code(inside)


def text_of(manifest: Manifest) -> str:
    """As the file has it."""
    content = {
        "round": manifest.round,
        "submitter": manifest.submitter,
        "results": {name: vars(bound) for name, bound in sorted(manifest.results.items())},
        "files": dict(sorted(manifest.files.items())),
    }
    return json.dumps(content, indent=1) + "\n"


def read(path: Path) -> Manifest:
    """Read a manifest, with a bound. What is wrong with it is in ``problem``."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            return Manifest(path, problem="is larger than 32 MiB")
        content = json.loads(data.decode("utf-8"), object_pairs_hook=_without_repetition)
    except OSError as error:
        return Manifest(path, problem=f"cannot be read: {error.strerror}")
    except (ValueError, RecursionError) as error:
        return Manifest(path, problem=f"is not JSON: {str(error)[:100]}")
    problem = find_schema_problem(content, "manifest")
    if problem:
        return Manifest(path, problem=f"is not one: {problem[:200]}")
    results = {name: BoundResult(**bound) for name, bound in content["results"].items()}
    return Manifest(path, content["round"], content["submitter"], results, content["files"])


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; a key that is there twice would say two things of one file."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there more than once")
    return found


def differences(listed: Mapping[str, str], there: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each file that is not as the manifest has it, and how: changed, missing, not listed."""
    for name in sorted(listed.keys() | there.keys()):
        if name not in there:
            yield name, "missing"
        elif name not in listed:
            yield name, "not listed"
        elif listed[name] != there[name]:
            yield name, "changed"
