"""Compare one record with the table of events (T2)."""

from collections.abc import Iterator

from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.records import EVENT_TYPES, Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.events import (
    CHOICES,
    METADATA_TYPES,
    EventRule,
    has_type,
    is_blank,
)


def check_record(run: RunLog, event: Event, event_rule: EventRule) -> Iterator[Finding]:
    """Check the event type, the type of the value and the metadata of one record."""
    if event.event_type in EVENT_TYPES and event.event_type != event_rule.event_type:
        yield breach(
            run,
            event,
            "T2.event_type",
            key=event.key,
            expected=event_rule.event_type,
            logged=event.event_type,
        )
    allowed = CHOICES.get(event.key)
    fits = has_type(event.value, event_rule.value) and (allowed is None or event.value in allowed)
    fits = fits and not (event_rule.value == "string" and is_blank(event.value))
    if not fits and event.key != "cache_clear":  # T6 judges that value
        yield breach(
            run,
            event,
            "T2.value",
            key=event.key,
            expected=_describe_choices(allowed) if allowed else event_rule.value,
            value=format_value(event.value),
            meaning=event_rule.meaning,
        )
    wrong = [name for name in event_rule.metadata if not _has_right_metadata(event, name)]
    if wrong:
        yield breach(
            run,
            event,
            "T2.metadata",
            key=event.key,
            names=", ".join(wrong),
            types=", ".join(f"{name} ({_describe_metadata(name)})" for name in wrong),
            values=", ".join(
                format_value(event.metadata[name]) if name in event.metadata else "nothing"
                for name in wrong
            ),
            required=", ".join(event_rule.metadata),
        )


def _has_right_metadata(event: Event, name: str) -> bool:
    value, allowed = event.metadata.get(name), CHOICES.get(name)
    return has_type(value, METADATA_TYPES[name]) and (allowed is None or value in allowed)


def _describe_metadata(name: str) -> str:
    return _describe_choices(CHOICES[name]) if name in CHOICES else METADATA_TYPES[name]


def _describe_choices(allowed: tuple[str, ...]) -> str:
    return " or ".join(f'"{word}"' for word in allowed)
