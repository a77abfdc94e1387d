"""Published times to train: fit the costs of a step to some of them, and predict the others.

The unknowns are the seconds of a step, those of a sample, and, where the sizes can tell them, the
exponent of the samples and the part of a sample that devices share. All are at least 0, and such
that the squares of the relative errors are smallest.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from cepheid.measure.studies.projection.cost_model import (
    Costs,
    Network,
    Step,
    Training,
    count_evaluations,
    count_steps,
    find_link,
    find_share,
    predict_evaluation,
    predict_step,
)
from cepheid.rules.definition import locate_benchmarks
from cepheid.rules.errors import UserError, did_you_mean

FILE = "projection.yaml"
OTHERS = Path(__file__).parent  # benchmarks of MLPerf of which there is no reference here
LINEAR = (1.0,)
EXPONENTS = tuple(step / 20 for step in range(20, 9, -1))
DIVIDED = tuple(step / 20 for step in range(21))
ITERATIONS, PRECISION = 40, 1e-9  # of a fit
FEWEST_SIZES = 4
"""Sizes from which a third unknown is fitted: as many as unknowns, and one to judge it."""
ALIKE = 1.5
"""Samples a device that differ by less cannot tell what a step costs from what a sample does."""
INSIDE, BEYOND = "inside", "beyond"


@dataclass(frozen=True)
class KnownTime:
    """A time to train that somebody measured: seconds and epochs to the target.

    ``replica`` devices share the work of a sample. ``evaluations`` is their number, where it does
    not follow from the epochs, and ``devices_per_node`` that of this system, where it differs.
    """

    devices: int
    batch_size: int
    seconds: float
    epochs: float
    replica: int = 1
    evaluations: float | None = None
    devices_per_node: int | None = None

    @property
    def share(self) -> float:
        """The samples of a replica."""
        return find_share(self.devices, self.batch_size, self.replica)


@dataclass(frozen=True)
class Family:
    """Published systems of one kind of device, with all costs but those that are fitted.

    ``device`` is its row in ``rules/devices.yaml`` and ``precision`` the kind of its peak.
    ``speed_ups`` are those of model parallelism that others report, by their source.
    """

    name: str
    title: str
    source: str
    device: str
    precision: str
    costs: Costs
    network: Network
    training: Training
    systems: Mapping[str, KnownTime] = field(default_factory=dict)
    speed_ups: Mapping[str, float] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """The numbers of devices, from the smallest."""
        return sorted({known.devices for known in self.systems.values()})

    def keep(self, *sizes: int) -> list[KnownTime]:
        """Return the systems with one of these numbers of devices."""
        return [known for known in self.systems.values() if known.devices in sizes]

    def predict(self, costs: Costs, known: KnownTime) -> float:
        """Predict the seconds of a known time with its own epochs."""
        steps, evaluations = self.count(known)
        return steps * self.find_step(costs, known).seconds + evaluations * predict_evaluation(
            costs, self.training, known.devices, known.batch_size, known.replica
        )

    def find_step(self, costs: Costs, known: KnownTime) -> Step:
        """Return the step of a known time, in the network of its nodes."""
        per_node = known.devices_per_node or self.network.devices_per_node
        nodes = replace(self.network, devices_per_node=per_node)
        return predict_step(costs, nodes, known.devices, known.batch_size, known.replica)

    def count(self, known: KnownTime) -> tuple[float, float]:
        """Return the steps and the evaluations of a known time."""
        evaluations = known.evaluations
        if evaluations is None:
            evaluations = count_evaluations(self.training, known.epochs)
        return count_steps(self.training, known.batch_size, known.epochs), evaluations


@dataclass(frozen=True)
class Prediction:
    """A published time beside those that were predicted without its size, in seconds.

    ``left_out`` is from all other sizes, ``from_smaller`` from all smaller ones, where there are
    two. ``reach`` says whether the other sizes have as few and as many samples a device, or whether
    the prediction goes beyond them.
    """

    system: str
    known: KnownTime
    left_out: float
    from_smaller: float | None
    reach: str

    @property
    def error(self) -> float:
        """The predicted time over the published one, minus 1."""
        return self.left_out / self.known.seconds - 1

    @property
    def smaller_error(self) -> float | None:
        """The error of what smaller systems predict."""
        return None if self.from_smaller is None else self.from_smaller / self.known.seconds - 1


def fit_costs(
    family: Family, known: Sequence[KnownTime], exponents: Sequence[float] = LINEAR
) -> Costs:
    """Return the costs of the family that meet the known times best.

    The part of a sample that devices share is fitted only if some devices share samples and others
    do not, and if there are sizes enough; else it is that of the family.
    """
    replicas = {each.replica for each in known}
    sizes = {each.devices for each in known}
    divided: Sequence[float] = (family.costs.divided,)
    if len(replicas) > 1 and len(sizes) >= FEWEST_SIZES:
        divided = DIVIDED
    guesses = [
        _fit_seconds(family, replace(family.costs, exponent=exponent, divided=part), known)
        for exponent in exponents
        for part in divided
    ]
    return min(guesses, key=lambda costs: sum_squares(family, costs, known))


def sum_squares(family: Family, costs: Costs, known: Sequence[KnownTime]) -> float:
    """Return the sum of the squares of the relative errors."""
    return math.fsum((family.predict(costs, each) / each.seconds - 1) ** 2 for each in known)


def _fit_seconds(family: Family, costs: Costs, known: Sequence[KnownTime]) -> Costs:
    """Return the costs with the seconds of a step and of a sample that meet the times best."""
    shares = [each.share for each in known]
    has_step = max(shares) >= ALIKE * min(shares)
    fitted = replace(costs, fixed_seconds=0.0, sample_seconds=1e-9)
    for _ in range(ITERATIONS):  # what the backward pass hides depends on the result
        before = fitted.sample_seconds
        rows = [_make_equation(family, fitted, each) for each in known]
        fixed, sample = solve(rows) if has_step else (0.0, solve_for_one(rows))
        fitted = replace(costs, fixed_seconds=fixed, sample_seconds=sample)
        if abs(sample - before) <= PRECISION * abs(sample):
            break
    return fitted


def _make_equation(family: Family, costs: Costs, known: KnownTime) -> tuple[float, float, float]:
    """Return how much of a known time a second a step and a second a sample explain, and the rest.

    The rest is what remains after the communication that these costs do not hide. All three are
    divided by the known time, so that relative errors count.
    """
    one = replace(costs, sample_seconds=1.0)
    steps, evaluations = family.count(known)
    of_samples = steps * one.samples_seconds(known.share, known.replica)
    of_samples += evaluations * predict_evaluation(
        one, family.training, known.devices, known.batch_size, known.replica
    )
    exposed = steps * family.find_step(costs, known).exposed
    return steps / known.seconds, of_samples / known.seconds, 1 - exposed / known.seconds


def solve(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return the x and y of at least 0 for which a x + b y comes nearest to c in all rows."""
    aa, ab, bb, ac, bc = (
        math.fsum(row[first] * row[second] for row in rows)
        for first, second in ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2))
    )
    determinant = aa * bb - ab * ab
    if determinant <= 1e-12 * aa * bb:
        return 0.0, max(0.0, bc / bb)
    x, y = (ac * bb - bc * ab) / determinant, (aa * bc - ab * ac) / determinant
    if x < 0:
        return 0.0, max(0.0, bc / bb)
    return (x, y) if y >= 0 else (max(0.0, ac / aa), 0.0)


def solve_for_one(rows: Sequence[tuple[float, float, float]]) -> float:
    """Return the y of at least 0 for which b y comes nearest to c in all rows."""
    products, squares = (math.fsum(row[1] * row[at] for row in rows) for at in (2, 1))
    return max(0.0, products / squares)


def choose_exponents(family: Family, known: Sequence[KnownTime]) -> Sequence[float]:
    """Return the exponents to try: 1, or all, if the known sizes alone show that it pays.

    Each size is predicted from the others with and without an exponent. It is used if the mean of
    the squared errors becomes smaller.
    """
    sizes = sorted({each.devices for each in known})
    if len(sizes) < FEWEST_SIZES:
        return LINEAR
    gains = []
    for size in sizes:
        others = [each for each in known if each.devices != size]
        of_size = [each for each in known if each.devices == size]
        without, with_exponent = (
            statistics.mean(
                math.log(family.predict(costs, each) / each.seconds) ** 2 for each in of_size
            )
            for costs in (fit_costs(family, others, exponents) for exponents in (LINEAR, EXPONENTS))
        )
        gains.append(without - with_exponent)
    return EXPONENTS if statistics.mean(gains) > 0 else LINEAR


def fit_family(family: Family, known: Sequence[KnownTime]) -> Costs:
    """Return the costs that meet the known times best, with an exponent if they show one."""
    return fit_costs(family, known, choose_exponents(family, known))


def fit_to_all(family: Family) -> Costs:
    """Return the costs that meet all published times of a family best."""
    return fit_family(family, list(family.systems.values()))


def leave_sizes_out(family: Family) -> list[Prediction]:
    """Predict each system without those of its size, in the order of the file."""
    found = {}
    for size in family.sizes:
        others = family.keep(*(each for each in family.sizes if each != size))
        smaller = [each for each in family.sizes if each < size]
        costs = fit_family(family, others)
        small = fit_family(family, family.keep(*smaller)) if len(smaller) > 1 else None
        shares = [each.share for each in others]
        for name, known in family.systems.items():
            if known.devices == size:
                is_inside = min(shares) <= known.share <= max(shares)
                found[name] = Prediction(
                    name,
                    known,
                    family.predict(costs, known),
                    family.predict(small, known) if small else None,
                    INSIDE if is_inside else BEYOND,
                )
    return [found[name] for name in family.systems]


# Files -------------------------------------------------------------------------------------------


def list_known() -> dict[str, Path]:
    """Return the files of published times by benchmark: of the suite, and of MLPerf's others."""
    ours = {path.parent.name: path for path in sorted(locate_benchmarks().glob(f"*/{FILE}"))}
    return ours | {path.stem.removesuffix("_times"): path for path in OTHERS.glob("*_times.yaml")}


def load_families(benchmark: str) -> tuple[Family, ...]:
    """Return the published systems of a benchmark. Raises UserError where it has none."""
    known = list_known()
    if benchmark not in known:
        raise UserError(
            f"no published times are known for {benchmark}{did_you_mean(benchmark, known)}; "
            f"benchmarks that have some: {', '.join(sorted(known))}"
        )
    facts = yaml.safe_load(known[benchmark].read_text(encoding="utf-8"))
    return tuple(_read_family(name, of, facts) for name, of in facts["families"].items())


def _read_family(name: str, of: Mapping[str, Any], facts: Mapping[str, Any]) -> Family:
    about = of["network"]
    samples = of.get("train_samples", facts["train_samples"])
    systems = {
        system: KnownTime(
            each["devices"],
            each["batch_size"],
            60 * each["minutes"],
            each["epochs"] if "epochs" in each else each["samples"] / samples,
            each.get("replica", 1),
            each.get("evaluations"),
            each.get("devices_per_node"),
        )
        for system, each in of["systems"].items()
    }
    costs = Costs(
        0.0, 0.0, facts["parameters"] * of["bytes_per_parameter"], overlap=of["overlap"],
        divided=facts.get("divided", 0.0),
    )  # fmt: skip
    network = Network(
        find_link(about["within"]), find_link(about["between"]), about["devices_per_node"],
        about["shape"],
    )  # fmt: skip
    epochs: dict[int, list[float]] = {}
    for known in systems.values():
        epochs.setdefault(known.batch_size, []).append(known.epochs)
    training = Training(
        samples, facts["evaluation_samples"], facts["evaluate_every_epochs"],
        {batch: statistics.mean(of_batch) for batch, of_batch in epochs.items()},
    )  # fmt: skip
    about_device = of["device"], of["precision"]
    return Family(
        name, of["title"], of["source"], *about_device, costs, network, training, systems,
        of.get("speed_ups", {}),
    )  # fmt: skip
