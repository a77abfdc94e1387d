"""T25 and T27: the weights with which a run starts or generates, and the data it read."""

from collections.abc import Iterator

from cepheid.compliance.checks.registry import Needs, Place, find_division, rule
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules import rounds
from cepheid.rules.definition import Definition


@rule("T27", Needs.DEFINITION)
def check_data_read(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that a run read the data whose digest it logs (T27)."""
    logged, read = run.first("data_digest"), run.first("data_read")
    if read is not None:
        if logged is not None and read.value != logged.value:
            yield breach(
                run,
                read,
                "T27.other_data",
                logged=format_value(logged.value),
                line=logged.line,
                read=format_value(read.value),
            )
        return
    stop = run.first("run_stop")
    if stop is None or not run.converged or not run.is_complete or run.grows:
        return
    if run.text("code_digest") not in rounds.load(place.round).data_not_proven:
        yield breach(run, stop, "T27.missing")
    elif run.index in (0, None):  # once for each result
        yield breach(run, stop, "T27.not_proven")


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
        run, event, "T25.other_weights", expected=format_value(expected), name=definition.name
    )


def _check_start(run: RunLog, definition: Definition) -> Iterator[Finding]:
    """Check the weights from which a training starts; most definitions have none."""
    event, stop = run.first("weights_digest"), run.first("init_stop")
    choices = {name: rule.default for name, rule in definition.hyperparameters.items()}
    choices |= {event.key: event.value for event in run.events if event.key in choices}
    given = definition.find_given_weights(choices)
    if given is None and event is not None:
        yield breach(run, event, "T25.not_given", name=definition.name, scale=definition.scale)
    elif given is not None and event is None and stop is not None:
        yield breach(run, stop, "T25.missing", file=given["file"], digest=given["digest"])
    elif given is not None and event is not None and not _is_digest(event.value, given["digest"]):
        yield breach(run, event, "T25.other_start", file=given["file"], digest=given["digest"])


def _is_digest(value: object, first_digits: str) -> bool:
    """Return whether ``value`` is a SHA-256 that begins with ``first_digits``."""
    return isinstance(value, str) and len(value) == DIGEST and value.startswith(first_digits)
