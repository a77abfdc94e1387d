"""The logs of one result, parsed, and the files beside them that repeat what the logs say.

The process that judges the result holds them, and nobody else.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from cepheid.compliance.read import powerlog
from cepheid.compliance.read.contents import CONFIGURATION, ResultFolder
from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.manifest import read_json
from cepheid.compliance.read.mlperf_folders import SCALING
from cepheid.compliance.read.powerlog import PowerLog
from cepheid.compliance.read.texts import PICTURE_BYTES_MAX, is_png

FILE_BYTES_MAX = 2**20


@dataclass(frozen=True)
class Attached:
    """A JSON object beside the logs of a result, or a picture, of which nothing is kept.

    ``problem`` says why it is neither.
    """

    path: Path
    content: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def number(self) -> int | None:
        """The number k of ``report_<k>.json``; None for the configuration."""
        number = self.path.stem.partition("_")[2]
        return int(number) if number.isdigit() else None


def read_attached(folder: ResultFolder) -> Iterator[Attached]:
    """Read the configuration of a result, if there is one, and reports and pictures of its runs."""
    configuration = folder.path / CONFIGURATION
    if configuration.is_file() and not configuration.is_symlink():
        yield _read(configuration)
    for path in folder.attached:
        yield _read(path) if path.suffix == ".json" else _read_signature(path)


def _read_signature(path: Path) -> Attached:
    """Return a picture without its content; anything but a whole PNG file is a problem."""
    try:
        # Links are not followed, and a pipe does not block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            is_picture = is_png(file.read(PICTURE_BYTES_MAX + 1))
    except OSError as error:
        return Attached(path, problem=f"cannot be read: {error.strerror}")
    return Attached(path, problem="" if is_picture else "is not a PNG file")


def _read(path: Path) -> Attached:
    content, problem = read_json(path, FILE_BYTES_MAX)
    if isinstance(content, dict):
        return Attached(path, content)
    return Attached(path, problem=problem or "is not a JSON object")


@dataclass(frozen=True)
class ResultLogs:
    """All logs of a result: ``runs`` count, ``interrupted`` do not, ``power`` belongs to runs."""

    folder: ResultFolder
    runs: Sequence[RunLog]
    interrupted: Sequence[RunLog] = ()
    power: Sequence[PowerLog] = ()
    attached: Sequence[Attached] = ()

    @property
    def path(self) -> Path:
        """The folder that the logs lie in."""
        return self.folder.path

    @property
    def scaling(self) -> object:
        """What ``scaling.json`` of a round of MLPerf says; 1 where there is no such file."""
        found = [each for each in self.attached if each.path.name == SCALING]
        return found[0].content.get("scaling_factor", found[0].problem) if found else 1.0

    @property
    def digests(self) -> Mapping[str, str]:
        """The SHA-256 of each file that was hashed, by its absolute path."""
        logs = chain[RunLog | PowerLog](self.runs, self.interrupted, self.power)
        return {os.path.abspath(log.path): log.sha256 for log in logs if log.sha256}


def read_logs(folder: ResultFolder, with_digests: bool = False) -> ResultLogs:
    """Parse every log of a result once. ``with_digests`` also hashes them from the same bytes."""
    return ResultLogs(
        folder,
        tuple(runlog.read(path, with_digests) for path in folder.runs),
        tuple(runlog.read(path, with_digests) for path in folder.interrupted),
        tuple(powerlog.read(path, with_digests) for path in folder.power),
        tuple(read_attached(folder)),
    )
