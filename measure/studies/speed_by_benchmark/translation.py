"""What `cepheid measure speed` compares of every translator, eagerly in float32."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cepheid.measure.engine.subject import Measurement, Row, Subject, describe_comparison
from cepheid.measure.engine.turns import Comparison
from cepheid.reference.data.wmt.sentence_batches import pad, sort_by_length
from cepheid.reference.data.wmt.vocabulary import PADDING
from cepheid.reference.run.config import RunConfig, configure
from cepheid.rules.definition import Block

SENTENCES = 32
SETTINGS = ("precision=fp32", "compile=off")


def configure_eager(subject: Subject, *settings: str) -> RunConfig:
    """Return the configuration of an open run with further ``settings``, which may be open ones."""
    return configure(
        subject.config.definition,
        division="open",
        overrides=[*SETTINGS, *subject.overrides, *settings],
        data_root=subject.config.data_root,
        seed=1,
    )


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


def compare_decoding(
    subject: Subject,
    task: Any,
    source: Tensor,
    other_ways: Mapping[str, Callable[[], object]],
    describe: Callable[[Comparison], Row] = describe_comparison,
) -> Measurement:
    """Compare the search for translations of ``source`` with other ways, one of them one by one.

    ``source`` has shape (sentences, places); ``describe`` makes the line of a comparison.
    """
    ways = {
        **other_ways,
        "one sentence at a time": lambda: [
            task.predict(row[row != PADDING][None]) for row in source
        ],
    }
    rows, facts = [], {}
    for name, work in ways.items():
        compared = subject.compare(
            f"{len(source)} translations",
            name,
            partial(time_once, work),
            partial(time_once, partial(task.predict, source)),
        )
        rows.append(describe(compared))
        facts[name] = compared.as_json()
    return Measurement(rows, facts)


def time_once(work: Callable[[], object]) -> float:
    """Return the seconds that ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
