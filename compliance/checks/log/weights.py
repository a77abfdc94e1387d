"""T25: with which weights a run generates, or from which its training starts."""

from collections.abc import Iterator

from cepheid.compliance.checks.definitions import find_division
from cepheid.compliance.checks.registry import Needs, Place, rule
from cepheid.compliance.finding import Finding, breach, format_value
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
        yield breach(run, event, "T25.no_weights", name=definition.name, scale=definition.scale)
        return
    yield breach(
        run,
        event,
        "T25.other_weights",
        expected=format_value(expected),
        value=format_value(event.value),
        name=definition.name,
    )


def _check_start(run: RunLog, definition: Definition) -> Iterator[Finding]:
    """Check the weights from which a training starts; most definitions have none."""
    event, stop = run.first("weights_digest"), run.first("init_stop")
    choices = {name: rule.default for name, rule in definition.hyperparameters.items()}
    choices |= {event.key: event.value for event in run.events if event.key in choices}
    given = definition.find_given_weights(choices)
    if given is None and event is not None:
        yield breach(
            run,
            event,
            "T25.not_given",
            name=definition.name,
            scale=definition.scale,
            value=format_value(event.value),
        )
    elif given is not None and event is None and stop is not None:
        yield breach(run, stop, "T25.missing", file=given["file"], digest=given["digest"])
    elif given is not None and event is not None and not _is_digest(event.value, given["digest"]):
        yield breach(
            run,
            event,
            "T25.other_start",
            file=given["file"],
            digest=given["digest"],
            value=format_value(event.value),
        )


def _is_digest(value: object, first_digits: str) -> bool:
    """Return whether ``value`` is a SHA-256 that begins with ``first_digits``."""
    return isinstance(value, str) and len(value) == DIGEST and value.startswith(first_digits)
