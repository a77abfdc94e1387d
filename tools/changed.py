"""Which submissions a branch changes, as git tells it: ``cepheid check --changed``."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rules.errors import UserError

JUDGES = re.compile(r"(rules|compliance)/.*|benchmarks/[^/]+/(benchmark\.yaml|rcp\.json)")
"""Files whose change may change the verdict about any submission."""


def submissions(revision: str, paths: Sequence[Path]) -> list[Path]:
    """The submitters' folders in which anything differs from where the branch left ``revision``,
    committed or not; all of them where what judges them differs.

    Raises UserError outside a git repository, for an unknown revision, and for ``paths``: git says
    which there are.
    """
    if paths:
        raise UserError("--changed asks git which submissions to check: give no path beside it")
    root = Path(_git("rev-parse", "--show-toplevel").rstrip("\n"))
    if revision.startswith("-"):
        raise UserError(f"--changed {revision}: expected a revision, for example origin/main")
    names = _git("-C", str(root), "diff", "--name-only", "-z", "--merge-base", revision, "--")
    changed = names.split("\0")
    folders = sorted(path for path in (root / "submissions").glob("*/") if path.is_dir())
    every = [Path(os.path.relpath(folder)) for folder in folders]
    if any(map(JUDGES.fullmatch, changed)):
        return every
    touched = {name.split("/")[1] for name in changed if name.startswith("submissions/")}
    return [folder for folder in every if folder.resolve().name in touched]


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise UserError("--changed needs git, which is not installed; name the folders") from error
    except subprocess.CalledProcessError as error:
        why = str(error.stderr).partition("\n")[0][:200]
        raise UserError(
            f"--changed: git says: {why}; in CI, fetch the whole history "
            "(actions/checkout with fetch-depth: 0)"
        ) from error
    return done.stdout
