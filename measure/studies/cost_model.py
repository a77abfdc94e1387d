"""Predict the time to train on N devices from the costs of a step. Pure and framework-free.

A step of n devices with b samples each takes, in seconds,

    max(fixed + sample b + exposed communication, b / input rate) + update

The gradients of M bytes are summed by a ring, which sends 2 (n - 1) messages of M / n bytes, each
in α + size / β (Thakur et al. 2005, doi:10.1177/1094342005051521), or in two dimensions: along a
ring of n_1 members, then along rings or a tree that sum the M / n_1 bytes of each (Ying et al.
2018, arXiv:1811.06992, section 3). A part of the backward pass may hide it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cepheid.rules.definition import locate_benchmarks
from cepheid.rules.errors import UserError, did_you_mean

LINKS = Path(__file__).with_name("links.yaml")  # the links that are known by name
FILE = "projection.yaml"
SHAPES = ("tree", "nodes", "ring", "torus")
ITERATIONS, PRECISION = 200, 1e-9  # of a fit
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
    links: Mapping[str, Mapping[str, Any]] = yaml.safe_load(LINKS.read_text(encoding="utf-8"))
    return links


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

    ``fixed_seconds`` is independent of the samples. ``update_seconds`` is that of all weights; if
    it ``is_update_sharded``, each device does its part. ``overlap`` is the share of the backward
    pass that can hide communication. ``collectives`` is the number of further all-reduces of a few
    bytes. ``input_samples_per_second`` is what one device can be fed.
    """

    fixed_seconds: float
    sample_seconds: float
    gradient_bytes: float
    update_seconds: float = 0.0
    is_update_sharded: bool = False
    overlap: float = 0.0
    collectives: int = 0
    input_samples_per_second: float = math.inf


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
    """The seconds of a step by their causes; ``waiting`` is for input."""

    compute: float
    communication: float
    exposed: float
    update: float
    waiting: float

    @property
    def seconds(self) -> float:
        """The seconds of the step."""
        return self.compute + self.exposed + self.update + self.waiting


def predict_step(costs: Costs, network: Network, devices: int, batch_size: int) -> Step:
    """Predict the seconds of a step; the device with the most samples decides."""
    share = math.ceil(batch_size / devices)
    of_samples = costs.sample_seconds * share
    compute = costs.fixed_seconds + of_samples
    few_bytes = costs.collectives * network.all_reduce_seconds(devices, 0)
    communication = network.all_reduce_seconds(devices, costs.gradient_bytes) + few_bytes
    hidden = costs.overlap * BACKWARD_SHARE * of_samples
    exposed = max(few_bytes, communication - hidden)
    update = costs.update_seconds / (devices if costs.is_update_sharded else 1)
    waiting = max(0.0, share / costs.input_samples_per_second - compute - exposed)
    return Step(compute, communication, exposed, update, waiting)


def predict_seconds(
    costs: Costs, network: Network, training: Training, devices: int, batch_size: int
) -> float:
    """Predict the seconds to the target. Raises ValueError where the epochs are not known."""
    epochs = training.epochs_at(batch_size)
    steps = count_steps(training, batch_size, epochs)
    evaluations = count_evaluations(training, epochs)
    samples = training.evaluation_samples / devices
    evaluation = FORWARD_SHARE * costs.sample_seconds * samples
    step = predict_step(costs, network, devices, batch_size)
    return steps * step.seconds + evaluations * evaluation


def count_steps(training: Training, batch_size: int, epochs: float) -> float:
    """Return the steps of a training."""
    return epochs * training.train_samples / batch_size


def count_evaluations(training: Training, epochs: float) -> float:
    """Return the evaluations of a training."""
    return math.ceil(epochs / training.evaluate_every_epochs)


@dataclass(frozen=True)
class KnownTime:
    """A time to train that somebody measured: seconds and epochs to the target."""

    devices: int
    batch_size: int
    seconds: float
    epochs: float


def fit_costs(
    costs: Costs, network: Network, training: Training, first: KnownTime, second: KnownTime
) -> Costs:
    """Return ``costs`` with the fixed and the per-sample seconds at which both times are met.

    The epochs of the known times count, not those of ``training``. Raises ValueError if the two
    cannot tell fixed from per-sample costs, or if only negative costs would meet them.
    """
    if first.batch_size * second.devices == second.batch_size * first.devices:
        raise ValueError("the two have the same samples per device: no fit can tell their costs")
    fitted = replace(costs, fixed_seconds=0.0, sample_seconds=0.0)
    for _ in range(ITERATIONS):  # what the backward pass hides depends on the result
        before = fitted
        rows = [_make_equation(before, network, training, known) for known in (first, second)]
        (steps_1, samples_1, rest_1), (steps_2, samples_2, rest_2) = rows
        determinant = steps_1 * samples_2 - steps_2 * samples_1
        fixed = (rest_1 * samples_2 - rest_2 * samples_1) / determinant
        sample = (steps_1 * rest_2 - steps_2 * rest_1) / determinant
        fitted = replace(costs, fixed_seconds=fixed, sample_seconds=sample)
        if abs(sample - before.sample_seconds) < PRECISION * abs(sample):
            break
    else:
        raise ValueError("the costs do not settle: choose other points or a smaller overlap")
    if fitted.sample_seconds <= 0 or fitted.fixed_seconds < 0:
        raise ValueError(
            f"the two would need {1000 * fitted.fixed_seconds:.3g} ms for a step and "
            f"{1000 * fitted.sample_seconds:.3g} ms for a sample: are they of the same device?"
        )
    return fitted


def _make_equation(
    costs: Costs, network: Network, training: Training, known: KnownTime
) -> tuple[float, float, float]:
    """Return factors of fixed and per-sample seconds, and the seconds that both must explain."""
    steps = count_steps(training, known.batch_size, known.epochs)
    evaluations = count_evaluations(training, known.epochs)
    step = predict_step(costs, network, known.devices, known.batch_size)
    share = -(-known.batch_size // known.devices)
    evaluated = evaluations * FORWARD_SHARE * training.evaluation_samples / known.devices
    rest = known.seconds - steps * (step.exposed + step.update)
    return steps, steps * share + evaluated, rest


def predict_known(costs: Costs, network: Network, training: Training, known: KnownTime) -> float:
    """Predict the seconds of a known time with its own epochs."""
    same = replace(training, epochs={known.batch_size: known.epochs})
    return predict_seconds(costs, network, same, known.devices, known.batch_size)


@dataclass(frozen=True)
class Projection:
    """What is predicted for a number of devices; ``seconds`` is to the target, or of an epoch."""

    devices: int
    batch_size: int
    step: Step
    samples_per_second: float
    efficiency: float
    epochs: float
    seconds: float


def project(
    costs: Costs,
    network: Network,
    training: Training,
    devices: Sequence[int],
    batch_per_device: int,
) -> list[Projection]:
    """Project to each number of devices, as far as every one gets a sample.

    Each has ``batch_per_device`` samples, until the largest batch size at which ``training`` knows
    the epochs; more devices share that.
    """
    largest = max(training.epochs)
    one = batch_per_device / predict_step(costs, network, 1, batch_per_device).seconds
    projections = []
    for count in devices:
        batch = min(count * batch_per_device, largest)
        if count > batch:
            break
        step, epochs = predict_step(costs, network, count, batch), training.epochs_at(batch)
        rate = batch / step.seconds
        seconds = predict_seconds(costs, network, training, count, batch)
        efficiency = rate / one / count
        projections.append(Projection(count, batch, step, rate, efficiency, epochs, seconds))
    return projections


@dataclass(frozen=True)
class Family:
    """Systems of one kind of device; ``fit`` names the two to which the costs are fitted."""

    name: str
    title: str
    source: str
    costs: Costs
    network: Network
    training: Training
    fit: tuple[str, str]
    systems: Mapping[str, KnownTime]


@dataclass(frozen=True)
class Prediction:
    """A published time and the predicted one, in seconds."""

    system: str
    known: KnownTime
    predicted_seconds: float
    is_fitted: bool

    @property
    def error(self) -> float:
        """The predicted time over the published one, minus 1."""
        return self.predicted_seconds / self.known.seconds - 1


def load_families(benchmark: str) -> tuple[Family, ...]:
    """Return the published systems of a benchmark. Raises UserError where it has none."""
    path = locate_benchmarks() / benchmark / FILE
    if not path.is_file():
        others = sorted(file.parent.name for file in locate_benchmarks().glob(f"*/{FILE}"))
        raise UserError(
            f"--published: no published times are known for {benchmark} ({path} is missing); "
            f"benchmarks that have some: {', '.join(others)}"
        )
    facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    return tuple(_read_family(name, of, facts) for name, of in facts["families"].items())


def _read_family(name: str, of: Mapping[str, Any], facts: Mapping[str, Any]) -> Family:
    about = of["network"]
    within, between = find_link(about["within"]), find_link(about["between"])
    systems = {
        system: KnownTime(each["devices"], each["batch_size"], 60 * each["minutes"], each["epochs"])
        for system, each in of["systems"].items()
    }
    first, second = of["fit"]
    return Family(
        name,
        of["title"],
        of["source"],
        Costs(0.0, 0.0, facts["parameters"] * of["bytes_per_parameter"], overlap=of["overlap"]),
        Network(within, between, about["devices_per_node"], about["shape"]),
        Training(
            facts["train_samples"],
            facts["evaluation_samples"],
            facts["evaluate_every_epochs"],
            {known.batch_size: known.epochs for known in systems.values()},
        ),
        (first, second),
        systems,
    )


def list_fits(family: Family) -> tuple[tuple[str, str], ...]:
    """Return the pairs to fit: the one of the file, then its first system and the largest of all.

    From the first pair the model extrapolates, with the second one it interpolates.
    """
    largest = max(family.systems, key=lambda name: family.systems[name].devices)
    return tuple(dict.fromkeys((family.fit, (family.fit[0], largest))))


def predict_family(family: Family, pair: tuple[str, str]) -> list[Prediction]:
    """Predict the time of every system of a family from two of them, in the order of the file."""
    network, training = family.network, family.training
    costs = fit_costs(family.costs, network, training, *(family.systems[name] for name in pair))
    return [
        Prediction(name, known, predict_known(costs, network, training, known), name in pair)
        for name, known in family.systems.items()
    ]
