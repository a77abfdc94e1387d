"""Fit the costs of a step to two known times to train."""

from dataclasses import dataclass, replace

from cepheid.measure.studies.projection.model import (
    FORWARD_SHARE,
    Costs,
    Network,
    Training,
    count_evaluations,
    count_steps,
    predict_seconds,
    predict_step,
)

ITERATIONS = 200
PRECISION = 1e-9


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
    rest -= evaluations * training.evaluation_seconds
    return steps, steps * share + evaluated, rest


def predict_known(costs: Costs, network: Network, training: Training, known: KnownTime) -> float:
    """Predict the seconds of a known time with its own epochs."""
    same = replace(training, epochs={known.batch_size: known.epochs})
    return predict_seconds(costs, network, same, known.devices, known.batch_size)
