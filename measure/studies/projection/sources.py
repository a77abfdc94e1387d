"""What is projected from: measurements of scaling, and published times to train.

Both show how well the model meets what is known.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from cepheid.measure.studies.projection.model import (
    Costs,
    KnownTime,
    Link,
    Network,
    Step,
    Training,
    find_link,
    fit_costs,
    predict_known,
    predict_seconds,
    predict_step,
)
from cepheid.measure.studies.scaling.points import (
    ALONE,
    BOUND,
    INDEPENDENT,
    PARTITIONS,
    SHARING,
    TOGETHER,
    LinkTimes,
    Point,
    name_arm,
)
from cepheid.reference.run.old_keys import replace_old_keys
from cepheid.rules import rcp
from cepheid.rules.definition import Definition, locate_benchmarks
from cepheid.rules.errors import UserError

FILE = "projection.yaml"


@dataclass(frozen=True)
class Check:
    """A measured step beside the predicted one, in seconds.

    ``shared_seconds`` is predicted from ranks that train independently at the same time, so that
    what the ranks take from each other is no part of its error; None where it was not measured.
    """

    ranks: int
    measured_seconds: float
    predicted_seconds: float
    shared_seconds: float | None


def refuse_sharing(overrides: Sequence[str]) -> None:
    """Raise UserError where ranks shared images or a model: the costs of that are not known."""
    for override in replace_old_keys(overrides)[0]:
        setting, _, value = override.partition("=")
        if setting in (PARTITIONS, *SHARING) and value != "1":
            raise UserError(
                f"the ranks of this measurement shared their work ({override}), and the model "
                f"knows only ranks with a batch of their own; fix: measure without {setting}"
            )


def read_costs(point: Point, arm: str = ALONE) -> Costs:
    """Return the costs of a step as a rank has them by itself, without communication.

    The step of the arm is divided as the profile of the first rank alone says.
    """
    kind = point.inputs[-1]
    seconds = statistics.median(point.seconds[name_arm(arm, kind)])
    total = sum(point.alone_phases_ms.values())
    update, other = (
        seconds * point.alone_phases_ms.get(phase, 0.0) / total for phase in ("update", "other")
    )
    other = max(0.0, other)
    real = statistics.median(point.rates(ALONE, point.inputs[0]))
    is_fed = real >= BOUND * statistics.median(point.rates(ALONE, kind))
    return Costs(
        fixed_seconds=other,
        sample_seconds=(seconds - update - other) / point.alone_batch_size,
        gradient_bytes=point.gradient_bytes,
        update_seconds=update,
        collectives=max(0, point.link.collectives - 1) if point.link else 0,
        input_samples_per_second=math.inf if is_fed else real,
    )


def read_link(times: LinkTimes, ranks: int) -> Link:
    """Return the link whose ring all-reduce takes the two measured times."""
    messages = 2 * (ranks - 1)
    seconds = times.large_seconds - times.small_seconds
    rate = messages * (times.large_bytes - times.small_bytes) / ranks / seconds
    latency = times.small_seconds / messages - times.small_bytes / ranks / rate
    return Link("measured", max(0.0, latency), rate)


def check_point(point: Point) -> Check | None:
    """Predict the step of all ranks from that of one; None for a single rank."""
    if point.link is None:
        return None
    kind = point.inputs[-1]
    link = read_link(point.link, point.ranks)
    network = Network(link, link, point.ranks, "ring")

    def predict(arm: str) -> float:
        costs = read_costs(point, arm)
        return predict_step(costs, network, point.ranks, point.batch_size).seconds

    return Check(
        point.ranks,
        statistics.median(point.seconds[name_arm(TOGETHER, kind)]),
        predict(ALONE),
        predict(INDEPENDENT) if point.ceiling() else None,
    )


def read_epochs(definition: Definition) -> Mapping[int, float]:
    """Return the epochs to the target by batch size that the reference needed, or nothing."""
    known = rcp.load(definition.name, definition.scale)
    if known is None or not known.belongs_to(definition):
        return {}
    return {
        point.batch_size: statistics.mean(point.samples) / definition.train_samples
        for point in known.points
        if point.is_usable
    }


def make_training(definition: Definition, epochs: Mapping[int, float]) -> Training:
    """Return what a training of a benchmark needs besides steps."""
    return Training(
        definition.train_samples,
        definition.evaluation_samples,
        definition.timing.eval_every_samples / definition.train_samples,
        epochs,
    )


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
        step = predict_step(costs, network, count, batch)
        rate = batch / step.seconds
        projections.append(
            Projection(
                count,
                batch,
                step,
                rate,
                rate / one / count,
                training.epochs_at(batch),
                predict_seconds(costs, network, training, count, batch),
            )
        )
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


def fit_family(family: Family, pair: tuple[str, str]) -> Costs:
    """Return the costs of a step that meet the times of two systems."""
    first, second = (family.systems[name] for name in pair)
    return fit_costs(family.costs, family.network, family.training, first, second)


def predict_family(family: Family, pair: tuple[str, str]) -> list[Prediction]:
    """Predict the time of every system of a family from two of them, in the order of the file."""
    costs = fit_family(family, pair)
    return [
        Prediction(
            name,
            known,
            predict_known(costs, family.network, family.training, known),
            name in pair,
        )
        for name, known in family.systems.items()
    ]
