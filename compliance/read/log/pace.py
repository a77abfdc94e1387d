"""The pace of a run: its samples a second, and in which precision of which model."""

from dataclasses import dataclass

from cepheid.compliance.read.log.course import read_count
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.definition import Definition
from cepheid.rules.devices import Peak, PeakShare, compute_share
from cepheid.rules.generation import METRICS

PRECISION_MAX = 40  # characters
THROUGHPUT = METRICS[-1].name


@dataclass(frozen=True, slots=True)
class Pace:
    """What a log tells of the speed of its run, by the wall clock.

    ``samples_per_second`` are those of training, without evaluations, or the images a second of
    rule T26.
    """

    samples_per_second: float
    precision: str
    parameters: int | None

    def compute_share(self, definition: Definition, peak: Peak | None) -> PeakShare | None:
        """Return the share of a peak; None for another model than the definition's."""
        flops = definition.flops_per_sample
        is_counted = self.parameters == definition.model["parameters"]
        if flops is None or peak is None or not is_counted:
            return None
        return compute_share(flops, self.samples_per_second, peak)


def measure_pace(run: RunLog) -> Pace | None:
    """Return the pace of a run, or None where its log does not tell."""
    how = run.value("implementation")
    precision = how.get("precision") if isinstance(how, dict) else None
    is_training = run.first("generation_times") is None
    rate = run.samples_per_second if is_training else run.generation.get(THROUGHPUT)
    if not rate or not isinstance(precision, str):
        return None
    return Pace(rate, precision[:PRECISION_MAX], read_count(run.value("model_parameters")))
