"""T25: with which weights a run generates, or from which its training starts."""

from collections.abc import Iterator

from cepheid.compliance.checks.definitions import find_division
from cepheid.compliance.checks.registry import Needs, Place, make_finding, rule
from cepheid.compliance.finding import Finding, format_value
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.definition import Definition

DIGEST = 64  # hexadecimal digits


@rule("T25", Needs.TIMELINE)
def check_weights(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that a closed run uses the weights of the definition, and no others (T25)."""
    if find_division(run, place) == "closed":
        yield from (
            _check_start(run, definition)
            if definition.kind == "train"
            else (_check_generation(run, definition))
        )


def _check_generation(run: RunLog, definition: Definition) -> Iterator[Finding]:
    event, expected = run.first("weights_digest"), definition.model.get("weights_digest")
    if event is None or event.value == expected:
        return
    if expected is None:
        yield make_finding(
            run.path,
            event.line,
            "T25.no_weights",
            f"{definition.name} has no published weights at {definition.scale} scale yet",
            expected="a run of the open division",
            got="closed",
            hint="run with --division open, or at a scale that has weights",
        )
        return
    yield make_finding(
        run.path,
        event.line,
        "T25.other_weights",
        "the weights are not those of the definition",
        expected=format_value(expected),
        got=format_value(event.value),
        hint=f"generate with the file in benchmarks/{definition.name}/weights, converted to your "
        "framework where it needs to be; open allows other weights",
    )


def _check_start(run: RunLog, definition: Definition) -> Iterator[Finding]:
    """Check the weights from which a training starts; most definitions have none."""
    event, stop = run.first("weights_digest"), run.first("init_stop")
    choices = {name: rule.default for name, rule in definition.hyperparameters.items()}
    choices |= {event.key: event.value for event in run.events if event.key in choices}
    given = definition.find_given_weights(choices)
    if given is None and event is not None:
        yield make_finding(
            run.path,
            event.line,
            "T25.not_given",
            f"{definition.name} gives no weights at {definition.scale} scale",
            expected="a training from random weights",
            got=f"weights {format_value(event.value)}",
            hint="start from random weights; open allows any start",
        )
    elif given is not None and event is None and stop is not None:
        yield make_finding(
            run.path,
            stop.line,
            "T25.missing",
            "the log does not say from which weights the training starts",
            expected=f"weights_digest: the SHA-256 of {given['file']}, {given['digest']}…",
            got="none",
            hint="start from that file and log its digest before init_stop",
        )
    elif given is not None and event is not None and not _is_digest(event.value, given["digest"]):
        yield make_finding(
            run.path,
            event.line,
            "T25.other_start",
            "the training does not start from the weights of the definition",
            expected=f"the SHA-256 of {given['file']}, {given['digest']}…",
            got=format_value(event.value),
            hint="start from that file, converted to your framework where it needs to be; open "
            "allows any start",
        )


def _is_digest(value: object, first_digits: str) -> bool:
    """Return whether ``value`` is a SHA-256 that begins with ``first_digits``."""
    return isinstance(value, str) and len(value) == DIGEST and value.startswith(first_digits)
