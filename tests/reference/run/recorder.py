"""An observer that keeps what a session tells it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cepheid.reference.run.progress import OnProgress, ignore_progress
from cepheid.reference.run.report import Table
from cepheid.reference.session.observer import LiveCheck, OnCount
from cepheid.rules.definition import Definition


class Recorder:
    def __init__(self) -> None:
        self.messages: list[str] = []
        self.tables: list[Table] = []

    @property
    def text(self) -> str:
        return "\n".join(self.messages)

    def tell(self, message: str) -> None:
        self.messages.append(message)

    @contextmanager
    def count(self, title: str, unit: str) -> Iterator[OnCount]:
        yield lambda done, total: self.messages.append(f"{title}: {done} of {total} {unit}")

    @contextmanager
    def show_run(self, definition: Definition) -> Iterator[OnProgress]:
        yield ignore_progress

    def show_table(self, table: Table) -> None:
        self.tables.append(table)

    def check_live(self, log: Path) -> LiveCheck:
        raise NotImplementedError("no run log grows here")

    def judge_finished(self, folder: Path) -> bool:
        raise NotImplementedError("no run is made here")
