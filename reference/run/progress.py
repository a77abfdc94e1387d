"""What a run reports while it goes on, and how it ended; whatever the kind of benchmark."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum


class Stage(Enum):
    """The stages of a run; the value is the text that a display shows."""

    INITIALISING = "initialising"
    TRAINING = "training"
    GENERATING = "generating"
    GENERATED = "generated"
    EVALUATING = "evaluating"
    EVALUATED = "evaluated"
    MEASURING = "measuring, not timed"
    VERIFYING = "digesting the data, not timed"

    @property
    def is_repeated(self) -> bool:
        """True for a stage that is reported at every step, and adds nothing to the log."""
        return self in (Stage.TRAINING, Stage.GENERATING)

    @property
    def follows_run_stop(self) -> bool:
        """True for a stage of a run that is finished, but whose log is not."""
        return self in (Stage.MEASURING, Stage.VERIFYING)


@dataclass(frozen=True)
class Progress:
    """A report to whoever waits: the stage, the samples so far, the last quality."""

    stage: Stage
    samples: int = 0
    quality: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Outcome:
    """The end of a run: whether every target holds, the samples, the last quality, why not.

    ``is_finite`` is False if the loss or the quality was not. ``data_problem`` says what is wrong
    with the data that were read: then the run does not count.
    """

    reached: bool
    samples: int
    quality: Mapping[str, float]
    reason: str = ""
    data_problem: str = ""
    is_finite: bool = True


OnProgress = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """Do nothing; for runs that nobody watches."""
