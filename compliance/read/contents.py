"""What folders hold: submitters, systems, results and the paths of their logs.

No log is opened here. ``cepheid.compliance.read.logs`` parses the logs of one result where it is
judged.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from cepheid.compliance.finding import Finding
from cepheid.compliance.read.decisions import Decisions
from cepheid.compliance.read.manifest import Manifest
from cepheid.rules import rounds

LOG_NAME = re.compile(r"result_(0|[1-9][0-9]{0,5})\.txt")
README = "README.md"
CONFIGURATION = "configuration.json"
OLD_WAIVERS = "waivers.yaml"  # of an earlier version, in the folder of a submitter
LEFT_BY_TOOLS = ("checkpoints", "leaderboard")  # folders that no submission holds


def is_like_log(path: Path) -> bool:
    """Return True for a name that was probably meant to be that of a run log."""
    return path.name.lower().startswith("result") and path.name != "results"


@dataclass(frozen=True)
class Refused:
    """Something that was not read, and the reason."""

    path: Path
    why: str


@dataclass(frozen=True)
class SystemFile:
    """The file ``systems/<name>.json``.

    ``content`` is None where the file holds no JSON object; ``problem`` says why. In rounds of
    MLPerf an object with a key that is there twice has both.
    """

    path: Path
    name: str
    content: Mapping[str, Any] | None
    problem: str = ""

    def text(self, key: str) -> str | None:
        """Return a field of the description if it is a string."""
        value = self.content.get(key) if self.content else None
        return value if isinstance(value, str) else None


@dataclass(frozen=True)
class ResultFolder:
    """The folder of one result and the paths of its logs. No log has been read.

    ``system`` is None for a folder that lies outside any layout. ``runs`` are the run logs that
    count, ``interrupted`` those that do not, ``power`` the power logs of the runs that count.
    ``unfinished`` are logs of runs that still go on or were killed. ``has_readme`` is True for a
    README.md that is not empty. ``attached`` are reports and pictures. Only the layout of MLPerf
    sets ``benchmark``, ``scale`` (HPC: strong or weak), ``power_of``, the power logs of each run by
    the name of its log, and ``bypassed``, the checks of mlcommons that review let pass.
    """

    path: Path
    system: str | None
    runs: tuple[Path, ...]
    unfinished: tuple[Path, ...] = ()
    interrupted: tuple[Path, ...] = ()
    unexpected: tuple[Path, ...] = ()
    power: tuple[Path, ...] = ()
    has_readme: bool = False
    attached: tuple[Path, ...] = ()
    benchmark: str | None = None
    scale: str | None = None
    power_of: Mapping[str, tuple[Path, ...]] | None = None
    bypassed: frozenset[str] = frozenset()

    @property
    def parts(self) -> tuple[str, str, str] | None:
        """Benchmark, scale and division as the folder's name gives them, or None."""
        names = Path(os.path.abspath(self.path)).name.rsplit("-", 2)
        if self.system is None or len(names) != 3 or not all(names):
            return None
        return names[0], names[1], names[2]


@dataclass(frozen=True)
class SubmittedFile:
    """A file or folder of a submission; ``name`` is its path relative to the submitter's folder.

    ``sha256`` is empty for a folder, for a file that is too large or cannot be read, and for the
    log of a result, which is hashed when it is judged. ``mode`` are its permissions.
    """

    name: PurePosixPath
    size_bytes: int
    is_folder: bool = False
    sha256: str = ""
    mode: int = 0


HowCarried = Literal["format", "binary", "picture", "encoded", "numbers"]


@dataclass(frozen=True)
class Carrier:
    """A file of code that could hold weights.

    ``size`` is in bytes, in characters where they encode something, or a number of numbers;
    ``share`` is that size in units of what is too much for one file.
    """

    name: PurePosixPath
    how: HowCarried
    size: int
    share: float


HowFlawed = Literal["bytes", "utf_16", "direction", "signature", "unfilled", "thin"]


@dataclass(frozen=True)
class Flaw:
    """What is wrong with a text of a submission, on a line of it or (None) as a whole."""

    name: PurePosixPath
    how: HowFlawed
    line: int | None
    what: str


@dataclass(frozen=True)
class Submitter:
    """A folder with ``systems`` and ``results``.

    ``name`` is set only for a folder under ``submissions/``. ``left_by_tools`` are the folders
    beside the results that only their owner needs. ``is_whole`` is True where all results were
    found, not only one or those of one system. ``files`` is everything that lies in a submission;
    it is None where only a part of the folder was read, or where it is no submission.
    ``decisions`` are those of the organisers, beside the folder; ``old_waivers`` is a file of
    waivers in it, which counts for nothing.
    ``carriers`` are files of code that could hold weights.
    ``flaws`` are those of texts among the files.
    ``round`` is the one that it is judged in.
    ``failures`` are our own while the folder was read (S15).
    ``unfit`` is what mlcommons' repositories do not take, ``without_logs`` folders of results.
    """

    path: Path
    name: str | None
    in_submission: bool
    systems: Mapping[str, SystemFile]
    results: tuple[ResultFolder, ...]
    refused: tuple[Refused, ...] = ()
    left_by_tools: tuple[Path, ...] = ()
    is_whole: bool = False
    files: tuple[SubmittedFile, ...] | None = None
    decisions: Decisions | None = None
    old_waivers: Path | None = None
    manifest: Manifest | None = None
    carriers: tuple[Carrier, ...] = ()
    flaws: tuple[Flaw, ...] = ()
    round: str = rounds.CURRENT
    failures: tuple[Finding, ...] = ()
    unfit: tuple[Refused, ...] = ()
    without_logs: tuple[Path, ...] = ()
