"""The checkout as tests see it: its rooms, and copies of them in which a command may write."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from cepheid.rules.installation import ROOT

ROOMS = sorted(path.name for path in (ROOT / "cepheid").iterdir() if path.is_symlink())


def copy_folders(target: Path, names: Iterable[str], *left_out: str) -> None:
    """Copy folders of the checkout without files ``left_out``; links stay links."""
    leave = shutil.ignore_patterns("__pycache__", *left_out)
    for name in names:
        shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=leave)
