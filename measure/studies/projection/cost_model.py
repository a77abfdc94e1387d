"""Predict the time to train on N devices from the costs of a step. Pure and framework-free.

A step of n devices with b samples each takes, in seconds,

    fixed + sample b^p + exposed communication

An exponent p below 1 says that samples take longer where a device has few of them. Where r devices
share the work of a sample, a part d of it is divided: b samples of a replica take 1 - d + d / r of
their time (Amdahl).
The gradients of M bytes are summed by a ring, which sends 2 (n - 1) messages of M / n bytes, each
in α + size / β (Thakur et al. 2005, doi:10.1177/1094342005051521), or in two dimensions: along a
ring of n_1 members, then along rings or a tree that sum the M / n_1 bytes of each (Ying et al.
2018, arXiv:1811.06992, section 3). A part of the backward pass may hide it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cepheid.rules.errors import UserError, did_you_mean

LINKS = Path(__file__).with_name("links.yaml")  # the links that are known by name
BACKWARD_SHARE = 2 / 3
"""Of the time that grows with the samples: a backward pass has twice the products of a forward."""
FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class Link:
    """A connection: seconds to start a message (α), bytes per second in one direction (β)."""

    name: str
    latency_seconds: float
    bytes_per_second: float


@cache
def read_links() -> Mapping[str, Mapping[str, Any]]:
    """Return all links by name: latency, rate and source."""
    return yaml.safe_load(LINKS.read_text(encoding="utf-8"))


def find_link(name: str) -> Link:
    """Return a link by its name. Raises UserError for a name that nobody knows."""
    links = read_links()
    if name not in links:
        raise UserError(
            f'"{name}" is no known link{did_you_mean(name, links)}; known: {", ".join(links)}'
        )
    facts = links[name]
    return Link(name, facts["latency_us"] / 1e6, 1e9 * facts["gigabytes_per_second"])


@dataclass(frozen=True)
class Network:
    """How devices are connected: links within a node of ``devices_per_node``, and between nodes.

    ``shape`` is how gradients are summed: ``ring`` over all devices, over the slowest link;
    ``nodes``, a ring in each node and rings between them; ``tree``, the same with a tree between
    the nodes; or ``torus``, rings along rows and columns, which are as equal as they can be.
    """

    within: Link
    between: Link
    devices_per_node: int
    shape: str = "tree"

    def all_reduce_seconds(self, devices: int, size: float) -> float:
        """Return the seconds to sum ``size`` bytes over ``devices``."""
        if self.shape == "torus":
            row = find_row(devices)
            return ring_seconds(self.within, row, size) + ring_seconds(
                self.between, devices // row, size / row
            )
        row = min(devices, self.devices_per_node)
        if self.shape == "ring":
            return ring_seconds(self.within if devices <= row else self.between, devices, size)
        sum_between = tree_seconds if self.shape == "tree" else ring_seconds
        return ring_seconds(self.within, row, size) + sum_between(
            self.between, math.ceil(devices / row), size / row
        )


def ring_seconds(link: Link, members: int, size: float) -> float:
    """Return the seconds of a ring all-reduce of ``size`` bytes over ``members``."""
    messages = 2 * (members - 1)
    return messages * (link.latency_seconds + size / members / link.bytes_per_second)


def tree_seconds(link: Link, members: int, size: float) -> float:
    """Return the seconds of an all-reduce along two trees, which share the bytes.

    They send as many bytes as a ring in 2 log2(n) messages after one another (Sanders et al. 2009,
    doi:10.1016/j.parco.2009.09.001; NCCL does so between nodes since version 2.4).
    """
    messages = 2 * math.ceil(math.log2(members))
    sent = 2 * (members - 1) / members * size
    return messages * link.latency_seconds + sent / link.bytes_per_second


def find_row(devices: int) -> int:
    """Return the largest divisor of ``devices`` that is not above its square root."""
    return next(row for row in range(math.isqrt(devices), 0, -1) if devices % row == 0)


@dataclass(frozen=True)
class Costs:
    """What a step costs on one device.

    ``fixed_seconds`` is independent of the samples, ``sample_seconds`` is that of a single sample,
    and b samples take b to the power of ``exponent`` times as long.
    ``overlap`` is the share of the backward pass that can hide communication.
    ``divided`` is the part of the work of a sample that devices of a replica share.
    """

    fixed_seconds: float
    sample_seconds: float
    gradient_bytes: float
    overlap: float = 0.0
    exponent: float = 1.0
    divided: float = 0.0

    def samples_seconds(self, samples: float, replica: int = 1) -> float:
        """Return the seconds of what grows with the samples of a replica of so many devices."""
        part = 1 - self.divided + self.divided / replica
        return self.sample_seconds * samples**self.exponent * part


@dataclass(frozen=True)
class Training:
    """What a training needs besides steps: ``epochs`` to the target by batch size, evaluations."""

    train_samples: int
    evaluation_samples: int
    evaluate_every_epochs: float
    epochs: Mapping[int, float]

    def epochs_at(self, batch_size: int) -> float:
        """Return the epochs at a batch size, between two known ones as the logarithm grows.

        Below the smallest known batch size they are those of the smallest. Raises ValueError above
        the largest, where nobody knows whether the target is reached at all.
        """
        sizes = sorted(self.epochs)
        if batch_size > sizes[-1]:
            raise ValueError(
                f"batch size {batch_size:,}: the epochs to the target are known up to {sizes[-1]:,}"
            )
        above = next(size for size in sizes if size >= batch_size)
        below = max((size for size in sizes if size <= batch_size), default=above)
        if above == below:
            return self.epochs[above]
        share = math.log(batch_size / below) / math.log(above / below)
        return self.epochs[below] + share * (self.epochs[above] - self.epochs[below])


@dataclass(frozen=True)
class Step:
    """The seconds of a step by their causes: the communication that nothing hides is exposed."""

    compute: float
    exposed: float

    @property
    def seconds(self) -> float:
        """The seconds of the step."""
        return self.compute + self.exposed


def find_share(devices: int, batch_size: int, replica: int = 1) -> float:
    """Return the samples of the fullest replica; below 1, devices share a sample."""
    share = batch_size * replica / devices
    return math.ceil(share) if share > 1 else share


def predict_step(
    costs: Costs, network: Network, devices: int, batch_size: int, replica: int = 1
) -> Step:
    """Predict the seconds of a step; the device with the most samples decides."""
    of_samples = costs.samples_seconds(find_share(devices, batch_size, replica), replica)
    compute = costs.fixed_seconds + of_samples
    communication = network.all_reduce_seconds(devices, costs.gradient_bytes)
    hidden = costs.overlap * BACKWARD_SHARE * of_samples
    return Step(compute, max(0.0, communication - hidden))


def predict_seconds(
    costs: Costs, network: Network, training: Training, devices: int, batch_size: int
) -> float:
    """Predict the seconds to the target. Raises ValueError where the epochs are not known."""
    epochs = training.epochs_at(batch_size)
    steps = count_steps(training, batch_size, epochs)
    evaluations = count_evaluations(training, epochs)
    evaluation = predict_evaluation(costs, training, devices, batch_size)
    step = predict_step(costs, network, devices, batch_size)
    return steps * step.seconds + evaluations * evaluation


def predict_evaluation(
    costs: Costs, training: Training, devices: int, batch_size: int, replica: int = 1
) -> float:
    """Predict the seconds of an evaluation: forward passes with as many samples as a step has."""
    share = find_share(devices, batch_size, replica)
    of_one = FORWARD_SHARE * costs.samples_seconds(share, replica) / share
    return of_one * training.evaluation_samples * replica / devices


def count_steps(training: Training, batch_size: int, epochs: float) -> float:
    """Return the steps of a training."""
    return epochs * training.train_samples / batch_size


def count_evaluations(training: Training, epochs: float) -> float:
    """Return the evaluations of a training."""
    return math.ceil(epochs / training.evaluate_every_epochs)


@dataclass(frozen=True)
class Projection:
    """What is predicted for a number of devices; ``seconds`` are to the target."""

    devices: int
    batch_size: int
    efficiency: float
    epochs: float
    seconds: float


def project(
    costs: Costs,
    network: Network,
    training: Training,
    devices: Sequence[int],
    batch_per_device: int,
    least_share: float = 1.0,
) -> list[Projection]:
    """Project to each number of devices, as far as every one gets so much of a sample.

    Each has ``batch_per_device`` samples, until the largest batch size at which ``training`` knows
    the epochs; more devices share that.
    """
    largest = max(training.epochs)
    one = batch_per_device / predict_step(costs, network, 1, batch_per_device).seconds
    projections = []
    for count in devices:
        batch = min(count * batch_per_device, largest)
        if batch / count < least_share:
            break
        step, epochs = predict_step(costs, network, count, batch), training.epochs_at(batch)
        efficiency = batch / step.seconds / one / count
        seconds = predict_seconds(costs, network, training, count, batch)
        projections.append(Projection(count, batch, efficiency, epochs, seconds))
    return projections
