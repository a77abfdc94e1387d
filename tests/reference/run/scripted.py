"""Tasks that learn and make nothing, and an observer that keeps what a session tells it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cepheid.reference.data.verification import DataRead
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.generation import Times
from cepheid.reference.run.log import RunLogWriter
from cepheid.reference.run.progress import OnProgress, ignore_progress
from cepheid.reference.run.task import run_task
from cepheid.reference.session.observer import LiveCheck, OnCount
from cepheid.rules.definition import Block, Definition

Event = dict[str, Any]


class Scripted:
    """A task that needs no framework, with a diary of what it was asked for."""

    data_digest = "d" * 64

    def __init__(self) -> None:
        self.diary: list[str] = []

    def drop_caches(self) -> bool | None:
        self.diary.append("drop_caches")
        return None

    def build(self) -> int:
        self.diary.append("build")
        return 12

    def implementation(self) -> Mapping[str, Any]:
        return {"framework": "none"}

    def open_data(self) -> None:
        self.diary.append("open_data")

    def digest_data(self) -> DataRead:
        return DataRead(self.data_digest)

    def synchronize(self) -> None:
        self.diary.append("synchronize")


class ScriptedTask(Scripted):
    """A training that reports qualities from a list."""

    def __init__(
        self, qualities: list[dict[str, float]], loss: float | BaseException = 1.0
    ) -> None:
        super().__init__()
        self.qualities, self.loss = qualities, loss

    def warm_up(self) -> None:
        self.diary.append("warm_up")

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        self.diary.append(f"train to {block.samples}")
        if isinstance(self.loss, BaseException):
            raise self.loss
        on_samples(block.samples)
        return self.loss

    def evaluate(self) -> dict[str, float]:
        self.diary.append("evaluate")
        return self.qualities.pop(0)

    def state(self) -> Mapping[str, Any]:
        return {}


class ScriptedGenerator(Scripted):
    """A generation: sampling lasts a second of its own clock, decoding two."""

    weights_digest = "e" * 64

    def __init__(self, quality: Mapping[str, float], error: BaseException | None = None) -> None:
        super().__init__()
        self.quality, self.error = quality, error
        self.judged = ""
        self.seconds = 0.0
        self.times: Sequence[Times] = ()

    def warm_up(self, images: int) -> None:
        self.diary.append(f"warm_up {images}")

    def sample(self, images: int, repetition: int) -> tuple[int, int]:
        if self.error:
            raise self.error
        self.diary.append(f"sample {images} {repetition}")
        self.seconds += 1
        return images, repetition

    def decode(self, latents: tuple[int, int]) -> str:
        self.seconds += 2
        return f"{latents[0]} images of repetition {latents[1]}"

    def evaluate(self, images: str) -> dict[str, float]:
        self.judged = images
        return dict(self.quality)

    def project(self, images: str) -> list[float]:
        return [float(len(images))]

    def keep_times(self, times: Sequence[Times]) -> None:
        self.times = times


def execute(config: RunConfig, task: Any, path: Path) -> tuple[Any, list[Event]]:
    """Return the outcome of a run, or what was raised, and the events of its log.

    ``machine_use`` is left out: the clocks of processors may not move in so short a run.
    """
    log = RunLogWriter(path)
    result: Any
    try:
        result = run_task(task, config, log)
    except BaseException as error:
        result = error
    closed = log.close()
    assert closed is not None
    return result, [event for event in read_events(closed) if event["key"] != "machine_use"]


def read_events(path: Path) -> list[Event]:
    """Return the records of a log."""
    lines = path.read_text().splitlines()
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


class Recorder:
    def __init__(self) -> None:
        self.messages: list[str] = []

    @property
    def text(self) -> str:
        return "\n".join(self.messages)

    def tell(self, message: str) -> None:
        self.messages.append(message)

    @contextmanager
    def count(self, title: str, unit: str = "") -> Iterator[OnCount]:
        shown = self.messages if unit else []
        yield lambda done, total: shown.append(f"{title}: {done} of {total} {unit}")

    @contextmanager
    def show_run(self, definition: Definition) -> Iterator[OnProgress]:
        yield ignore_progress

    def check_live(self, log: Path) -> LiveCheck:
        raise NotImplementedError("no run log grows here")

    def judge_finished(self, folder: Path) -> bool:
        raise NotImplementedError("no run is made here")
