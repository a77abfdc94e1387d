"""T9: the metrics of an evaluation agree with each other, and with the number of samples."""

from collections.abc import Iterator

from cepheid.compliance.checks.registry import make_finding
from cepheid.compliance.finding import Finding, format_value
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.definition import Definition


def check_relations(run: RunLog, event: Event, definition: Definition) -> Iterator[Finding]:
    """Check one evaluation that has all metrics, each of them finite."""
    metrics = event.metadata["metrics"]
    samples = definition.evaluation_samples
    for name, nearest in definition.relations.find_wrong_counts(metrics, samples):
        yield make_finding(
            run.path,
            event.line,
            "T9.impossible_count",
            f"{name} is no share of {samples:,} samples",
            expected=f"a number of samples divided by {samples:,}, for example {nearest:g}",
            got=format_value(metrics[name]),
            hint="count each sample of the evaluation set once, and log the share unrounded",
        )
    for name, expected, because in definition.relations.find_contradictions(metrics):
        yield make_finding(
            run.path,
            event.line,
            "T9.contradiction",
            f"{name} contradicts other metrics of this evaluation: {because}",
            expected=expected,
            got=format_value(metrics[name]),
            hint="log the metrics of one evaluation as it computed them",
        )
