"""The digest of the code that a run executes, from which derived seeds and rule T18 follow."""

import hashlib
import json
import re
from pathlib import Path

from cepheid.rules import digests

SHORT = 12  # hexadecimal digits that tell the versions of a file apart
SOURCES = {".py", ".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".cuh", ".so", ".pyd", ".sh"}


def digest_code(
    root: Path, benchmark: str, own: Path | None = None, device: Path | None = None
) -> str:
    """Return the SHA-256 over the source files that a run executes, in the order of their paths.

    These are ``rules``, ``reference``, ``second_order``, the benchmark and those that it imports.
    With a folder of a submitter's ``own`` code they are that folder and the benchmarks that it
    imports instead. The file of a vendor's own ``device`` comes last. The digest needs no version
    control, and it covers edits that are not committed.
    """
    digest = hashlib.sha256()
    for name, of_file in list_code(root, benchmark, own).items():
        digest.update(json.dumps([name, of_file]).encode())
    if own is not None:
        digest.update(json.dumps(["task", digest_own_code(own)]).encode())
    if device is not None:
        digest.update(json.dumps(["device", digest_file(device)]).encode())
    return digest.hexdigest()


def list_code(root: Path, benchmark: str, own: Path | None = None) -> dict[str, str]:
    """Return the SHA-256 of each file of the project that ``digest_code`` covers, by its name."""
    names = _follow_imports(root, {benchmark} if own is None else _find_imports(own))
    folders = [root / room for room in ("rules", "reference", "second_order")]
    folders += [root / "benchmarks" / name for name in names]
    files = sorted(
        path for folder in folders for path in folder.rglob("*") if path.suffix in SOURCES
    )
    return {path.relative_to(root).as_posix(): digest_file(path) for path in files}


def list_all_code(
    root: Path, benchmark: str, own: Path | None = None, device: Path | None = None
) -> dict[str, str]:
    """Return a short digest of each file that a run executes, own code and device included.

    It is kept beside the runs, to name the files that changed.
    """
    files = list_code(root, benchmark, own)
    if own is not None:
        files |= {
            f"{own.name}/{name}": digest for name, digest in digests.digest_files(own).items()
        }
    if device is not None:
        files[device.name] = digest_file(device)
    return {name: digest[:SHORT] for name, digest in files.items()}


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digest_own_code(folder: Path) -> str:
    """Return the digest of a submitter's folder of code, as the manifest has it (rule S4)."""
    return digests.digest_code(digests.digest_files(folder))


def _follow_imports(root: Path, benchmarks: set[str]) -> set[str]:
    """Return the benchmarks and all those whose modules they import, directly or not."""
    known: set[str] = set()
    waiting = benchmarks
    while waiting:
        known |= waiting
        imports = (_find_imports(root / "benchmarks" / name) for name in waiting)
        waiting = set().union(*imports) - known
    return known


def _find_imports(folder: Path) -> set[str]:
    """Return the benchmarks whose modules the Python files of a folder import."""
    statement = re.compile(r"^\s*(?:from|import) cepheid\.benchmarks\.(\w+)", re.MULTILINE)
    texts = (path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    return {name for text in texts for name in statement.findall(text)}
