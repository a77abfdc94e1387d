"""Files beside run logs that repeat what the logs say: the configuration, reports of runs."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compliance.read.contents import CONFIGURATION, ResultFolder
from rules.documents import parse_json

FILE_BYTES_MAX = 2**20


@dataclass(frozen=True)
class Attached:
    """A JSON object beside the logs of a result; ``problem`` says why there is none."""

    path: Path
    content: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def number(self) -> int | None:
        """The number k of ``report_<k>.json``; None for the configuration."""
        number = self.path.stem.partition("_")[2]
        return int(number) if number.isdigit() else None


def read_attached(folder: ResultFolder) -> Iterator[Attached]:
    """Read the configuration of a result, if there is one, and the reports of its runs."""
    configuration = folder.path / CONFIGURATION
    if configuration.is_file() and not configuration.is_symlink():
        yield _read(configuration)
    for path in folder.attached:
        if path.suffix == ".json":
            yield _read(path)


def _read(path: Path) -> Attached:
    try:
        # Links are not followed, and a pipe does not block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            return Attached(path, problem="is larger than 1 MiB")
        content = parse_json(data)
    except OSError as error:
        return Attached(path, problem=f"cannot be read: {error.strerror}")
    except (ValueError, RecursionError) as error:
        return Attached(path, problem=f"is not JSON: {str(error)[:200]}")
    if not isinstance(content, dict):
        return Attached(path, problem="is not a JSON object")
    return Attached(path, content)
