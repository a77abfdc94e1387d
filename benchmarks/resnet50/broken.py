"""Broken variants of resnet50: each must miss the target within the full budget.

They are mistakes and tricks that a quality target must detect.
"""

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from cepheid.benchmarks.resnet50.task import WORKLOAD, Batches, Photographs
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch import broken
from cepheid.reference.torch.workload import Norms, Seat, Workload

LINEAR_PEAK_RATE = 1e-3


def open_shuffled_labels(shape: Photographs, seat: Seat) -> Batches:
    """Open the data, then permute the training labels."""
    batches, train = Batches(shape, seat), shape.config.definition.train_samples
    labels = batches.images.labels
    generator = make_generator(shape.config.seed, "shuffled labels")
    labels[:train] = generator.permutation(labels[:train])
    return batches


def read_linear_shape(config: RunConfig) -> Photographs:
    """Return the facts with a rate that suits a linear model."""
    shape = Photographs.read(config)
    return replace(shape, schedule=replace(shape.schedule, peak=LINEAR_PEAK_RATE))


def make_linear_network(shape: Photographs, norms: Norms) -> nn.Module:
    """Return a linear layer from pixels to logits: without features it confuses the classes."""
    WORKLOAD.make_network(shape, norms)  # draws as many numbers as the network does
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * shape.cropping.pixels**2, shape.classes))


VARIANTS: Mapping[str, Workload[Photographs]] = {
    "shuffled_labels": WORKLOAD.vary(open_data=open_shuffled_labels),
    "frozen": broken.freeze(WORKLOAD),
    "linear": WORKLOAD.vary(read_shape=read_linear_shape, make_network=make_linear_network),
}
