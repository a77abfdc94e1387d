"""Broken variants of resnet50: each must miss the target within the full budget.

They are mistakes and tricks that a quality target must detect.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from cepheid.benchmarks.resnet50.task import WORKLOAD, Photographs
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch import broken
from cepheid.reference.torch.workload import Norms, Workload

LINEAR_PEAK_RATE = 1e-3


def linearise(workload: Workload[Any]) -> Workload[Any]:
    """Return the workload with a linear model of the pixels: it confuses the classes."""

    def read_shape(config: RunConfig) -> Photographs:
        shape: Photographs = workload.read_shape(config)
        return replace(shape, schedule=replace(shape.schedule, peak=LINEAR_PEAK_RATE))

    def make_network(shape: Photographs, norms: Norms) -> nn.Module:
        workload.make_network(shape, norms)  # draws as many numbers as the network does
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * shape.cropping.pixels**2, shape.classes))

    return workload.vary(read_shape=read_shape, make_network=make_network)


VARIANTS: Mapping[str, Workload[Photographs]] = {
    "shuffled_labels": broken.shuffle_labels(WORKLOAD),
    "frozen": broken.freeze(WORKLOAD),
    "linear": linearise(WORKLOAD),
}
