"""The ``manifest.json`` of a submission, which binds logs, systems and code together (S4).

It is read as all JSON documents of a submission are: within bounds, and as strictly as can be.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from cepheid.rules import digests
from cepheid.rules.documents import find_schema_problem, parse_json

FILE_NAME = "manifest.json"
FILE_BYTES_MAX = 32 * 2**20
NOT_LISTED = re.compile(r"manifest\.json|\.manifest\.json\.[0-9]+\.partial|waivers\.yaml")
"""Files at the top: the manifest, what a killed `cepheid pack` left, what organisers add later."""


@dataclass(frozen=True)
class BoundResult:
    """The digests that one result depends on.

    They are those of its system's description, of its code, and of the definition in its logs.
    """

    system: str
    code: str
    definition_digest: str


@dataclass(frozen=True)
class Manifest:
    """The files of a submission with their digests, and what each of its results depends on.

    Paths are relative to the submitter's folder. A manifest with a ``problem`` could not be read.
    """

    path: Path
    round: str = ""
    submitter: str = ""
    results: Mapping[str, BoundResult] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


def is_listed(name: PurePosixPath) -> bool:
    """Return True for a file that belongs in the manifest.

    Every file does, except those in ``NOT_LISTED`` and in ``__pycache__``.
    """
    return not NOT_LISTED.fullmatch(str(name)) and not any(map(digests.is_left_out, name.parts))


def digest_code(files: Mapping[str, str], benchmark: str) -> str:
    """Return the digest of the code for a benchmark, from the digests of all files."""
    prefix = f"benchmarks/{benchmark}/"
    inside = {name.removeprefix(prefix): files[name] for name in files if name.startswith(prefix)}
    return digests.digest_code(inside)


def format_manifest(manifest: Manifest) -> str:
    """Return the manifest as the text of its file."""
    content = {
        "round": manifest.round,
        "submitter": manifest.submitter,
        "results": {name: vars(bound) for name, bound in sorted(manifest.results.items())},
        "files": dict(sorted(manifest.files.items())),
    }
    return json.dumps(content, indent=1) + "\n"


def read_json(
    path: Path, bytes_max: int, *, shown_max: int = 200, may_repeat: bool = False
) -> tuple[Any, str]:
    """Read a JSON document up to a bound; return its content, and what is wrong with it."""
    try:
        data = read_bytes(path, bytes_max)
        if len(data) > bytes_max:
            return None, f"is larger than {bytes_max // 2**20} MiB"
        return parse_json(data, may_repeat), ""
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    except ValueError as error:
        return None, f"is not JSON: {str(error)[:shown_max]}"


def read_bytes(path: Path, bytes_max: int) -> bytes:
    """Read a file, and a byte more of one that is larger than its bound.

    Links are not followed, and a pipe does not block. Raises OSError where that is not possible.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        return file.read(min(bytes_max, os.fstat(descriptor).st_size) + 1)


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"(\s*:)?|[{}\[\]]')


def find_line(path: Path, names: Sequence[str]) -> int | None:
    """Return the line of the key in a JSON document to which names lead, or None."""
    try:
        text = read_bytes(path, FILE_BYTES_MAX).decode("utf-8-sig", "replace")
    except OSError:
        return None
    depth = found = 0  # brackets that are open, and names that lead into them
    for token in _TOKEN.finditer(text):
        if token[0] in "{[":
            depth += 1
        elif token[0] in "}]":
            depth -= 1
        elif token[1] and found >= depth - 1:
            is_next = token[0].removesuffix(token[1]) == json.dumps(names[depth - 1])
            found = depth if is_next else depth - 1
            if found == len(names):
                return text.count("\n", 0, token.start()) + 1
    return None


def read(path: Path) -> Manifest:
    """Read a manifest up to a bound; what is wrong with it is in ``problem``."""
    content, problem = read_json(path, FILE_BYTES_MAX, shown_max=100)
    if problem:
        return Manifest(path, problem=problem)
    mistake = find_schema_problem(content, "manifest")
    if mistake:
        return Manifest(path, problem=f"does not follow its schema: {mistake[:200]}")
    results = {name: BoundResult(**bound) for name, bound in content["results"].items()}
    return Manifest(path, content["round"], content["submitter"], results, content["files"])


def find_differences(
    listed: Mapping[str, str], there: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Find the files that differ from the manifest: changed, missing or not listed."""
    for name in sorted(listed.keys() | there.keys()):
        if name not in there:
            yield name, "missing"
        elif name not in listed:
            yield name, "not listed"
        elif listed[name] != there[name]:
            yield name, "changed"
