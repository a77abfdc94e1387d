"""The logs of one result, parsed: what the process that judges it holds, and nobody else."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from cepheid.compliance.read import powerlog
from cepheid.compliance.read.attached import Attached, read_attached
from cepheid.compliance.read.contents import ResultFolder
from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.powerlog import PowerLog


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
