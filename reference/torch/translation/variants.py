"""Variants of benchmarks that translate: broken ones, and the plain ones for comparison."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch

from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.data.sentences.batches import Tokens
from cepheid.reference.torch.translation.sentences import Translation
from cepheid.reference.torch.workload import Recipe, Seat, Workload

Shape = TypeVar("Shape", bound=Translation)


def change_targets(
    workload: Workload[Shape], change: Callable[[Shape, Tokens], Tokens]
) -> Workload[Shape]:
    """Return the workload with other targets; those of the evaluation set must stay."""

    def open_data(shape: Shape, seat: Seat) -> Any:
        corpus = workload.open_data(shape, seat)
        corpus.use(replace(corpus.pairs, target=change(shape, corpus.pairs.target)))
        return corpus

    return workload.vary(open_data=open_data)


def shuffle_targets(shape: Translation, target: Tokens) -> Tokens:
    """Return training targets of other sources: only German can be learnt, not the content."""
    train = shape.config.definition.train_samples
    order = np.arange(len(target.ends))
    order[:train] = make_generator(shape.config.seed, "shuffled targets").permutation(train)
    rows = [target.row(int(row)) for row in order]
    return Tokens(np.concatenate(rows), np.cumsum([len(row) for row in rows]))


def simplify(workload: Workload[Shape]) -> Workload[Shape]:
    """Return the workload with a share in one pass and torch's default Adam, for steps only."""

    def open_data(shape: Shape, seat: Seat) -> Any:
        corpus = workload.open_data(shape, seat)
        corpus.pass_tokens = sys.maxsize
        return corpus

    return workload.vary(
        make_optimizer=lambda shape, network: Recipe(
            torch.optim.Adam, [{"params": list(network.parameters())}]
        ),
        open_data=open_data,
        passes=None,
        predict_noise=lambda shape, inference, noise: None,
    )
