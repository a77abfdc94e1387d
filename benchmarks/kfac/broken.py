"""Broken variants of kfac: each must miss the target within the full budget."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from cepheid.benchmarks.kfac import classifier as resnet50
from cepheid.benchmarks.kfac.task import PreconditionedResNet50
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.second_order import KFAC
from cepheid.second_order.layers import Layer


class ShuffledLabels(resnet50.ShuffledLabels, PreconditionedResNet50):
    """Training labels belong to other images: only the frequency of each class can be learnt."""


class Frozen(resnet50.Frozen, PreconditionedResNet50):
    """The weights stay as initialised."""


class Linear(resnet50.Linear, PreconditionedResNet50):
    """A linear model of the pixels at a suitable rate.

    It is trained without K-FAC, whose factor of all pixels would be larger than the model.
    """

    def make_preconditioner(self) -> KFAC | None:
        """Return None."""
        return None


class CurvatureIgnored(PreconditionedResNet50):
    """K-FAC computes its factors but does not use them: plain gradients at K-FAC's rate."""

    def make_preconditioner(self) -> KFAC | None:
        """Return K-FAC whose directions are the gradients."""
        kfac = super().make_preconditioner()
        assert kfac is not None
        kfac.compute_directions = _return_gradients  # type: ignore[method-assign]
        return kfac


def _return_gradients(gradients: dict[Layer, Tensor]) -> tuple[dict[Layer, Tensor], Tensor]:
    squares = [gradient.square().sum() for gradient in gradients.values()]
    return dict(gradients), torch.stack(squares).sum()


VARIANTS: Mapping[str, Callable[[RunConfig, TorchRanks], PreconditionedResNet50]] = {
    "shuffled_labels": ShuffledLabels,
    "frozen": Frozen,
    "linear": Linear,
    "curvature_ignored": CurvatureIgnored,
}
