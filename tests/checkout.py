"""The checkout as tests see it: its rooms, and copies of them in which a command may write."""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cepheid.rules.host import ROOT

PUBLISHED_LOGS = Path(
    os.environ.get("CEPHEID_PUBLISHED_LOGS", ROOT.parent / "shared" / "published_logs")
)
"""Run logs of MLPerf's rounds, which lie outside of the project."""
needs_published_logs = pytest.mark.skipif(
    not PUBLISHED_LOGS.is_dir(),
    reason=f"no published logs at {PUBLISHED_LOGS} (CEPHEID_PUBLISHED_LOGS names their folder)",
)

ROOMS = sorted(path.name for path in (ROOT / "cepheid").iterdir() if path.is_symlink())


def load_script(place: str) -> ModuleType:
    """Load a module that lies beside the pages, in no package."""
    spec = importlib.util.spec_from_file_location(Path(place).stem, ROOT / place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copy_folders(target: Path, names: Iterable[str], *left_out: str) -> None:
    """Copy folders of the checkout without files ``left_out``; links stay links."""
    leave = shutil.ignore_patterns("__pycache__", *left_out)
    for name in names:
        shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=leave)


def run_program(line: Iterable[object], **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end, whatever its exit code, and return it with what it printed."""
    return subprocess.run([*map(str, line)], capture_output=True, text=True, check=False, **options)


def use_git_in(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder, with git as somebody whose settings nobody knows."""
    monkeypatch.chdir(root)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "a")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "a@example.org")


def git(*arguments: str) -> None:
    """Run git in the working directory."""
    subprocess.run(["git", *arguments], check=True, capture_output=True)


def commit() -> None:
    """Commit all that is there."""
    git("add", "-A")
    git("commit", "-q", "-m", "a change")
