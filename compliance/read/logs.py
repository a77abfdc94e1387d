"""The logs of a result, run logs or power logs, without reading more of them than is asked for."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

Log = TypeVar("Log")


class Logs(Sequence[Log]):
    """The logs of some files, each read when it is first asked for: counting them reads nothing.

    A copy that goes to another process is made of the paths alone.
    """

    def __init__(self, paths: Iterable[Path], read: Callable[[Path], Log]) -> None:
        self._paths = tuple(paths)
        self._read_one = read
        self._read: list[Log | None] = [None] * len(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    @overload
    def __getitem__(self, index: int) -> Log: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Log]: ...
    def __getitem__(self, index: int | slice) -> Log | Sequence[Log]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        log = self._read[index]
        if log is None:
            log = self._read[index] = self._read_one(self._paths[index])
        return log

    def __reduce__(self) -> tuple[type["Logs[Any]"], tuple[Any, ...]]:
        return Logs, (self._paths, self._read_one)
