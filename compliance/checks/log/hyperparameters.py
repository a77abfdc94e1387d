"""T12 and T13: the hyperparameters of the definition in both divisions."""

from collections.abc import Iterator

from cepheid.compliance.checks.log.events import find_phase_end, suggest_keys
from cepheid.compliance.checks.registry import (
    BATCH_SIZE,
    Needs,
    Place,
    find_division,
    read_batch_size,
    rule,
)
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.definition import Definition
from cepheid.rules.events import EVENTS, Phase, is_number
from cepheid.rules.hyperparameters import Allowed, Hyperparameter


@rule("T12", Needs.DEFINITION)
def check_closed_division(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that each hyperparameter has a value that the closed division allows (T12)."""
    if find_division(run, place) != "closed":
        return
    known = {*EVENTS[definition.kind], *definition.hyperparameters}
    misspelt = set(suggest_keys(run, known).values())
    logged = {name: run.value(name) for name in definition.hyperparameters}
    for name, allowed in definition.hyperparameters.items():
        events = run.all(name)
        if not events and run.is_complete and name not in misspelt:
            yield breach(
                run, find_phase_end(run, Phase.INIT), "T12.missing", name=name,
                allowed=_describe_allowed(allowed),
            )  # fmt: skip
        if events:
            value = events[0].value
            problem = allowed.find_problem(value)
            if problem is None and is_number(value):
                problem = allowed.find_conflict(value, logged)
            if problem:
                yield breach(
                    run, events[0], "T12.not_allowed", name=name, problem=problem,
                    allowed=_describe_allowed(allowed), value=format_value(value),
                )  # fmt: skip


@rule("T13", Needs.DEFINITION, kinds=("train",))
def check_open_division(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check the types of hyperparameters and the batch size in the open division (T13)."""
    if find_division(run, place) != "open":
        return
    if (
        BATCH_SIZE in definition.hyperparameters
        and run.is_complete
        and read_batch_size(run) is None
    ):
        batch = run.first(BATCH_SIZE)
        yield breach(
            run, batch or find_phase_end(run, Phase.INIT), "T13.batch_size",
            case="not_positive" if batch else "", value=format_value(batch.value) if batch else "",
        )  # fmt: skip
    for name, known in definition.hyperparameters.items():
        for event in run.all(name) if name != BATCH_SIZE else ():
            problem = known.find_type_problem(event.value)
            if problem:
                yield breach(
                    run, event, "T13.type", name=name, problem=problem,
                    default=format_value(known.default),
                )  # fmt: skip


def _describe_allowed(rule_for: Hyperparameter) -> str:
    """Describe what the closed division allows, for example ``from 4 up``."""
    if rule_for.is_constant:
        return format_value(rule_for.default)
    closed = rule_for.closed
    if closed.choices:
        return "one of " + ", ".join(map(format_value, closed.choices))
    related = [f"at least {factor:g} × {name}" for name, factor in closed.at_least.items()]
    related += [f"at most {factor:g} × {name}" for name, factor in closed.at_most.items()]
    return ", ".join([*filter(None, [_format_range(closed)]), *related]) or (
        f"any value of type {type(rule_for.default).__name__}"
    )


def _format_range(closed: Allowed) -> str:
    lowest, highest = closed.minimum, closed.maximum
    if lowest is not None and highest is not None:
        return f"from {lowest:g} to {highest:g}"
    if lowest is not None:
        return f"from {lowest:g} up"
    if highest is not None:
        return f"up to {highest:g}"
    return ""
