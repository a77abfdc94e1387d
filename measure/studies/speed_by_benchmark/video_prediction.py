"""What `cepheid measure speed video_prediction` adds: the last stage, and the penalty."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from cepheid.measure.engine.subject import (
    PLAIN,
    Measure,
    Measurement,
    Sides,
    Subject,
    make_plain_task,
    make_task,
)
from cepheid.measure.engine.turns import time_steps

STEPS = 4  # of each turn; the penalty is computed in one of four at mini scale


def compare_stage(subject: Subject, is_fading: bool) -> Measurement:
    """Compare a step in the last stage with the plain one, while it fades in or after that."""
    fading = " fading in" if is_fading else ""
    what = f"step of {subject.config.global_batch_size} clips, last stage{fading}"
    return _compare(subject, what, PLAIN, make_plain_task(subject), is_fading)


def compare_penalty(subject: Subject) -> Measurement:
    """Compare steps in the last stage, with the penalty in each, with those of the definition."""
    every = make_task(subject.config, subject.ranks)
    every.hyperparameters = replace(every.hyperparameters, gan_penalty_interval_steps=1)
    interval = subject.task.hyperparameters.gan_penalty_interval_steps
    what = f"step with the penalty in one of {interval}"
    return _compare(subject, what, "the penalty in each step", every, False)


def _compare(subject: Subject, what: str, name: str, other: Any, is_fading: bool) -> Measurement:
    slow, fast = (partial(time_stage, task, is_fading) for task in (other, subject.task))
    return subject.measure(Sides(what, name, slow, fast, timed=True))


def time_stage(task: Any, is_fading: bool) -> float:
    """Return the mean seconds of a step in the last stage of a ``VideoPrediction``."""
    place_in_last_stage(task, is_fading)
    return time_steps(task, STEPS)


def place_in_last_stage(task: Any, is_fading: bool) -> None:
    """Let the next step be the first one of the last stage, or the first one after it faded in."""
    values = task.hyperparameters
    task.samples = values.find_start(task.stages - 1)
    if not is_fading:
        task.samples += values.growth_fading_samples


MEASUREMENTS: Mapping[str, Mapping[str, Measure]] = {
    "video_prediction": {
        "last_stage": partial(compare_stage, is_fading=False),
        "fading_stage": partial(compare_stage, is_fading=True),
        "penalty": compare_penalty,
    }
}
ON_REQUEST = ()
