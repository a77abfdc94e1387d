"""Predict published times to train from two of them (``benchmarks/<name>/projection.yaml``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from cepheid.measure.studies.projection.fit import KnownTime, fit_costs, predict_known
from cepheid.measure.studies.projection.links import find_link
from cepheid.measure.studies.projection.model import Costs, Network, Training
from cepheid.rules.definition import locate_benchmarks
from cepheid.rules.errors import UserError

FILE = "projection.yaml"


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
