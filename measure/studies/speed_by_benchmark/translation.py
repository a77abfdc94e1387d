"""What `cepheid measure speed` compares of every translator, eagerly in float32."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cepheid.measure.engine.subject import (
    Measurement,
    Row,
    Sides,
    Subject,
    configure_open,
    make_task,
)
from cepheid.measure.engine.turns import Comparison
from cepheid.reference.data.wmt.sentence_batches import pad, sort_by_length
from cepheid.reference.data.wmt.vocabulary import PADDING
from cepheid.rules.definition import Block

SENTENCES = 32
EAGER = ("precision=fp32", "compile=off")


def make_eager_task(subject: Subject, *settings: str, source: Any = None) -> Any:
    """Return a task that is ready, with further settings, by default that of the reference."""
    config = configure_open(
        subject.config.definition,
        overrides=[*EAGER, *subject.overrides, *settings],
        data_root=subject.config.data_root,
    )
    return make_task(config, subject.ranks, source)


def train_to_translate(task: Any) -> Tensor:
    """Train a task that is ready for an epoch, and return sentences of its evaluation data.

    An untrained network ends its sentences at once. The result has shape (sentences, places).
    """
    train = task.config.definition.train_samples
    task.train(Block(1, 0, train), lambda samples: None)
    task.model.eval()
    count = min(SENTENCES, task.config.definition.evaluation_samples)
    places = sort_by_length(task.pairs, np.arange(train, train + count))
    return torch.from_numpy(pad(task.pairs, places).source)


def compare_searches(
    subject: Subject,
    task: Any,
    source: Tensor,
    other_ways: Mapping[str, Callable[[], object]],
    describe: Callable[[Comparison], Row] | None = None,
) -> Measurement:
    """Compare the search for translations of ``source`` with other ways, one of them one by one.

    ``source`` has shape (sentences, places); ``describe`` makes the line of a comparison.
    """

    def translate_one_by_one() -> None:
        for row in source:
            task.predict(row[row != PADDING][None])

    ways = {**other_ways, "one sentence at a time": translate_one_by_one}
    what = f"{len(source)} translations"
    all_sides = {
        name: Sides(what, name, work, lambda: task.predict(source)) for name, work in ways.items()
    }
    return subject.measure_all(all_sides, describe)
