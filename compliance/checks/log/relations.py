"""T9: the metrics of an evaluation agree with each other, and with the number of samples."""

from collections.abc import Iterator

from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.definition import Definition


def check_relations(run: RunLog, event: Event, definition: Definition) -> Iterator[Finding]:
    """Check one evaluation that has all metrics, each of them finite."""
    metrics = event.metadata["metrics"]
    samples = definition.evaluation_samples
    for name, nearest in definition.relations.find_wrong_counts(metrics, samples):
        yield breach(
            run,
            event,
            "T9.impossible_count",
            name=name,
            samples=samples,
            nearest=nearest,
            value=format_value(metrics[name]),
        )
    for name, expected, because in definition.relations.find_contradictions(metrics):
        yield breach(
            run,
            event,
            "T9.contradiction",
            name=name,
            because=because,
            expected=expected,
            value=format_value(metrics[name]),
        )
