"""What folders hold, as it was read: results, systems, submitters. Nothing here judges."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from compliance.read.manifest import Manifest
from compliance.read.powerlog import PowerLog
from compliance.read.runlog import RunLog
from compliance.read.waivers import Waivers
from rules.definition import NAME as NAME

LOG_NAME = re.compile(r"result_(0|[1-9][0-9]{0,5})\.txt")
README = "README.md"
LEFT_BY_TOOLS = ("checkpoints", "leaderboard")  # folders that no submission holds


def is_like_log(path: Path) -> bool:
    """True for a name that was probably meant to be that of a run log."""
    return path.name.lower().startswith("result") and path.name != "results"


@dataclass(frozen=True)
class Refused:
    """Something that was not read, and why."""

    path: Path
    why: str


@dataclass(frozen=True)
class SystemFile:
    """``systems/<name>.json``. ``content`` is None where it is no JSON object, see ``problem``."""

    path: Path
    name: str
    content: Mapping[str, Any] | None
    problem: str = ""

    def text(self, key: str) -> str | None:
        """A field of the description if it is a string."""
        value = self.content.get(key) if self.content else None
        return value if isinstance(value, str) else None


@dataclass(frozen=True)
class ResultFolder:
    """The run logs of one result. ``system`` is None for a folder that lies in no layout.

    ``interrupted`` are the logs of runs that do not count, ``power`` the power logs of those that
    do. ``has_readme`` tells of a README.md with something in it. ``benchmark`` and ``scale`` (HPC:
    strong or weak) are given only in the layout of MLPerf.
    """

    path: Path
    system: str | None
    runs: Sequence[RunLog]
    unfinished: tuple[Path, ...] = ()  # logs of runs that are going on, or were killed
    interrupted: Sequence[RunLog] = ()
    unexpected: tuple[Path, ...] = ()
    power: Sequence[PowerLog] = ()
    has_readme: bool = False
    benchmark: str | None = None
    scale: str | None = None

    @property
    def parts(self) -> tuple[str, str, str] | None:
        """Benchmark, scale and division as the folder's name says them, or None."""
        names = Path(os.path.abspath(self.path)).name.rsplit("-", 2)
        if self.system is None or len(names) != 3 or not all(names):
            return None
        return names[0], names[1], names[2]


@dataclass(frozen=True)
class SubmittedFile:
    """A file or folder of a submission; ``name`` is its path relative to the submitter's folder.

    ``sha256`` is empty for a folder, and for a file that is too large or cannot be read.
    """

    name: PurePosixPath
    size_bytes: int
    is_folder: bool = False
    sha256: str = ""


@dataclass(frozen=True)
class Submitter:
    """A folder with ``systems`` and ``results``. ``name`` is given only under ``submissions/``.

    ``left_by_tools`` are the folders beside those that only its owner needs. ``files`` is all that
    lies in a submission, None where only a part of the folder was read or it is no submission;
    ``unfilled`` are the READMEs among that in which a person has still to write something.
    """

    path: Path
    name: str | None
    in_submission: bool
    systems: Mapping[str, SystemFile]
    results: tuple[ResultFolder, ...]
    refused: tuple[Refused, ...] = ()
    left_by_tools: tuple[Path, ...] = ()
    is_whole: bool = False  # all results were read, not only one or those of one system
    files: tuple[SubmittedFile, ...] | None = None
    waivers: Waivers | None = None
    manifest: Manifest | None = None
    unfilled: tuple[PurePosixPath, ...] = ()
