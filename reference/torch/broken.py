"""Variants of workloads that benchmarks share: broken ones, and the plain one's optimizer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.torch.workload import Network, Recipe, Seat, Workload

Shape = TypeVar("Shape")


class Idle(torch.optim.Optimizer):
    """An optimizer that changes nothing."""

    def __init__(self, parameters: Any, **options: Any) -> None:
        super().__init__(parameters, options)

    def step(self, closure: Any = None) -> Any:
        """Leave the weights as they are."""
        return None


def freeze(workload: Workload[Shape]) -> Workload[Shape]:
    """Return the workload with weights that stay as initialised."""

    def make_optimizer(shape: Shape, network: Any) -> Recipe:
        recipe = workload.make_optimizer(shape, network)
        return Recipe(Idle, recipe.groups, {"lr": 0.0})

    return workload.vary(make_optimizer=make_optimizer, after_update=None)


def use_default_optimizer(workload: Workload[Shape]) -> Workload[Shape]:
    """Return the workload with its optimizer as torch chooses it: for the plain variants."""

    def make_optimizer(shape: Shape, network: Any) -> Recipe:
        recipe = workload.make_optimizer(shape, network)
        return replace(recipe, options={**recipe.options, "fused": None})

    return workload.vary(make_optimizer=make_optimizer)


def shuffle_labels(workload: Workload[Any]) -> Workload[Any]:
    """Return the workload with training labels of other samples: only the prior can be learnt.

    Its shape has ``config``, its data or their ``images`` have ``labels``, of which those to train
    on come first.
    """

    def open_data(shape: Any, seat: Seat) -> Any:
        data, count = workload.open_data(shape, seat), shape.config.definition.train_samples
        order = make_generator(shape.config.seed, "shuffled labels").permutation(count)
        labels = getattr(data, "images", data).labels
        labels[:count] = labels[order]
        return data

    return workload.vary(open_data=open_data)


@dataclass(frozen=True)
class Mislabelled:
    """Images as they are, with the objects of those in another ``order``."""

    images: Any
    order: np.ndarray

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.images, name)
        if name in ("read_boxes", "read_mask_crops"):
            return lambda rows, *options: found(self.order[rows], *options)
        return found


def shuffle_objects(workload: Workload[Any]) -> Workload[Any]:
    """Return the workload with objects of other images: only where they often are can be learnt."""

    def open_data(shape: Any, seat: Seat) -> Any:
        data, count = workload.open_data(shape, seat), shape.config.definition.train_samples
        order = make_generator(shape.config.seed, "shuffled targets").permutation(count)
        data.loader.images = Mislabelled(data.images, order)
        return data

    return workload.vary(open_data=open_data)


def change_network(
    workload: Workload[Shape], change: Callable[[Network], Network]
) -> Workload[Shape]:
    """Return the workload that trains and predicts with a changed view of its network."""

    def compute_loss(shape: Shape, network: Network, inputs: Tensor, targets: Tensor) -> Tensor:
        return workload.compute_loss(shape, change(network), inputs, targets)

    def predict(shape: Shape, network: Network, *inputs: Tensor) -> Any:
        return workload.predict(shape, change(network), *inputs)

    return workload.vary(compute_loss=compute_loss, predict=predict)
