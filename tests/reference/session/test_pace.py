"""A run that slows down says so once, says why, and how to fix it."""

from dataclasses import dataclass, field

import pytest

from cepheid.reference.run.autotune import OTHER_WORK
from cepheid.reference.run.generate import GenerationProgress
from cepheid.reference.run.progress import Progress, Stage
from cepheid.reference.session.pace import PaceWatch, explain_few_threads, explain_slowness


@dataclass
class Run:
    """A run on clocks of its own, which trains a sample at each call."""

    seconds: float = 0.0
    processor_seconds: float = 0.0
    samples: int = 0
    told: list[str] = field(default_factory=list)
    shown: list[Progress] = field(default_factory=list)

    def __post_init__(self) -> None:
        clocks = (lambda: self.seconds, lambda: self.processor_seconds)
        self.show = PaceWatch(self.told.append, lambda: 2, *clocks).watch(self.shown.append)

    def train(self, seconds: float, per_sample: float, processors: float) -> None:
        """Train at this pace, with this many processors."""
        for _ in range(round(seconds / per_sample)):
            self.samples += 1
            self.seconds += per_sample
            self.processor_seconds += per_sample * processors
            self.show(Progress(Stage.TRAINING, self.samples))

    def generate(self, images: int, per_image: float, repetitions: int) -> None:
        """Generate so many images at a time, at this pace, on two processors."""
        for done in range(repetitions):
            self.show(GenerationProgress(Stage.GENERATING, images=images, done=done))
            self.seconds += per_image * images
            self.processor_seconds += 2 * per_image * images
        self.show(GenerationProgress(Stage.GENERATED, images=images, done=repetitions))


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cepheid.reference.session.pace.usable_processors", lambda: 2)


def test_a_steady_run_says_nothing() -> None:
    run = Run()
    run.train(60, 0.1, 2.0)
    run.train(60, 0.15, 1.5)
    assert run.told == []
    assert len(run.shown) == run.samples


def test_a_run_that_slows_down_says_so_once() -> None:
    run = Run()
    run.train(60, 0.1, 2.0)
    run.train(60, 1.0, 0.9)
    (told,) = run.told
    assert "fell from 10 to " in told
    assert "0.9 of the 2 processors" in told
    assert "--set threads=1" in told


def test_a_run_of_seconds_is_watched_too() -> None:
    run = Run()
    run.train(8, 0.1, 2.0)
    run.train(8, 0.5, 0.5)
    (told,) = run.told
    assert "other work has the rest" in told


def test_evaluations_are_no_slow_training() -> None:
    run = Run()
    for _ in range(6):
        run.train(15, 0.1, 2.0)
        run.seconds += 100
        run.show(Progress(Stage.EVALUATING, run.samples))
    assert run.told == []


def test_short_blocks_add_up() -> None:
    run = Run()
    for per_sample in (0.01, 0.1):
        for _ in range(20):
            run.train(2, per_sample, 1.0)
            run.show(Progress(Stage.EVALUATING, run.samples))
    assert len(run.told) == 1


def test_generation_becomes_faster_with_the_images_at_a_time() -> None:
    run = Run()
    for images, per_image in ((1, 0.1), (10, 0.02), (100, 0.01)):
        run.generate(images, per_image, round(20 / per_image / images))
    assert run.told == []
    run.generate(200, 0.015, 10)
    assert run.told == []
    run.generate(200, 0.03, 10)
    (told,) = run.told
    assert told.startswith("the generation fell from 100 to ")
    assert "images a second; it computes all the time" in told


def test_slowness_has_two_reasons() -> None:
    assert "other work has the rest" in explain_slowness(0.5, 1)
    assert "--set threads" not in explain_slowness(0.5, 1)
    assert "slower" in explain_slowness(2.0, 2)


def test_threads_that_other_work_takes_are_told() -> None:
    reason = f"{OTHER_WORK}: 0.1 of 2 processors are idle"
    told = explain_few_threads({"threads": "1", "because": {"threads": reason}})
    assert told.startswith(f"{reason}, so all runs of this result compute on 1 thread; fix: end")
    assert not explain_few_threads({"threads": "2", "because": {"threads": "fastest step: …"}})
    assert not explain_few_threads({})  # of a framework that chooses no threads
