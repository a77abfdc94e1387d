"""Broken variants of kfac: each must miss the target within the full budget."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from cepheid.benchmarks.kfac.preconditioner import KfacPreconditioner
from cepheid.benchmarks.kfac.task import WORKLOAD, Facts, make_preconditioner
from cepheid.benchmarks.resnet50.broken import linearise
from cepheid.reference.torch import broken
from cepheid.reference.torch.workload import Seat, Workload
from cepheid.second_order.layers import Layer


class IgnoredCurvature(KfacPreconditioner):
    """K-FAC that computes its factors but does not use them: plain gradients at K-FAC's rate."""

    @override
    def attach(self, trainer: Any) -> None:
        super().attach(trainer)
        assert self.kfac is not None
        self.kfac.compute_directions = return_gradients  # type: ignore[method-assign]


def return_gradients(gradients: dict[Layer, Tensor]) -> tuple[dict[Layer, Tensor], Tensor]:
    """Return the gradients as directions, and the sum of their squares, a scalar."""
    squares = [gradient.square().sum() for gradient in gradients.values()]
    return dict(gradients), torch.stack(squares).sum()


def ignore_curvature(shape: Facts, seat: Seat) -> IgnoredCurvature:
    """Return a preconditioner with the options of the definition."""
    made = make_preconditioner(shape, seat)
    assert made is not None
    return IgnoredCurvature(made.options, made.find_damping, made.products)


PLAIN = WORKLOAD.vary(make_preconditioner=None)
"""Without K-FAC, whose factor of all pixels would be larger than a linear model."""
VARIANTS: Mapping[str, Workload[Facts]] = {
    "shuffled_labels": broken.shuffle_labels(WORKLOAD),
    "frozen": broken.freeze(PLAIN),
    "linear": linearise(PLAIN),
    "curvature_ignored": WORKLOAD.vary(make_preconditioner=ignore_curvature),
}
