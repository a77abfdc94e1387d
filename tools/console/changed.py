"""Find the submissions that a branch changes, for ``cepheid check --changed``."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cepheid.rules.errors import UserError

JUDGES = re.compile(r"(cepheid|rules|compliance)/.*|benchmarks/[^/]+/(benchmark\.yaml|rcp\.json)")
"""Files whose change may change the verdict about any submission."""


def find_submissions(revision: str, paths: Sequence[Path]) -> list[Path]:
    """Find the submitters' folders that differ from where the branch left ``revision``.

    Changes count whether they are committed or not. All folders are returned if the rules or the
    checks differ, and ``submissions`` itself if something beside these folders does. Raises
    UserError outside a git repository, for an unknown revision, and for ``paths``, since git
    decides which folders are checked.
    """
    if paths:
        raise UserError("--changed lets git choose the submissions to check; remove the path")
    root = Path(_run_git("rev-parse", "--show-toplevel").rstrip("\n"))
    if revision.startswith("-"):
        raise UserError(f"--changed {revision}: expected a revision, for example origin/main")
    names = _run_git("-C", str(root), "diff", "--name-only", "-z", "--merge-base", revision, "--")
    changed = names.split("\0")
    folders = sorted(path for path in (root / "submissions").glob("*/") if path.is_dir())
    every = [Path(os.path.relpath(folder)) for folder in folders]
    if any(map(JUDGES.fullmatch, changed)):
        return every
    touched = {name.split("/")[1] for name in changed if name.startswith("submissions/")}
    if touched - {folder.resolve().name for folder in every} - {"README.md"}:
        return [Path(os.path.relpath(root / "submissions"))]  # with what lies beside the folders
    return [folder for folder in every if folder.resolve().name in touched]


def _run_git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise UserError(
            "--changed needs git, which is not installed; give the folders instead"
        ) from error
    except subprocess.CalledProcessError as error:
        why = str(error.stderr).partition("\n")[0][:200]
        raise UserError(
            f"--changed: git failed: {why}; in CI, fetch the whole history "
            "(actions/checkout with fetch-depth: 0)"
        ) from error
    return done.stdout
