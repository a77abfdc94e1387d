"""Find which requirements of a round of MLPerf apply to a log, and which records lack fields."""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import compress
from typing import Any

from cepheid.compliance.checks.registry import Place
from cepheid.compliance.finding import format_value
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules import rounds
from cepheid.rules.rounds import Round
from cepheid.rules.rounds.requirements import Metadata, Requirement, Requirements


def find_requirements(
    run: RunLog, place: Place, *parts: str
) -> Sequence[tuple[Requirement, Requirements]]:
    """Return the requirements of the round that apply to a log, each with its conditions.

    Only requirements that have one of the fields named in ``parts`` are returned.
    """
    return _keep_parts(place.round, _find_applicable(run, place.round), parts)


@lru_cache(maxsize=1)  # every rule of M looks up the same log
def _find_applicable(run: RunLog, round_name: str) -> bytes:
    """Return 1 for each group of requirements of a round that applies to the log, else 0."""
    judged_in = rounds.load(round_name)
    held = {
        (key, value)
        for key, value in _list_conditions(round_name)
        if _has_value(run, key, value, judged_in)
    }
    return bytes(
        group.when.items() <= held and held.isdisjoint(group.unless.items())
        for group in judged_in.requirements
    )


@cache
def _list_conditions(round_name: str) -> frozenset[tuple[str, Any]]:
    """Return each key with a value that decides whether a group of requirements applies."""
    groups = rounds.load(round_name).requirements
    return frozenset(
        condition for group in groups for condition in (*group.when.items(), *group.unless.items())
    )


@lru_cache(maxsize=1000)  # most logs are of few kinds
def _keep_parts(
    round_name: str, applies: bytes, parts: tuple[str, ...]
) -> Sequence[tuple[Requirement, Requirements]]:
    groups = compress(rounds.load(round_name).requirements, applies)
    return [
        (requirement, group)
        for group in groups
        for requirement in group.of_keys
        if any(getattr(requirement, part) for part in parts)
    ]


def _has_value(run: RunLog, key: str, value: object, judged_in: Round) -> bool:
    """Return True if a record of the key has that value; a benchmark may have another name."""
    if key == "submission_benchmark":
        known = judged_in.benchmark(run.text(key))
        return known is not None and known.name == value
    return value in [event.value for event in run.all(key)]


def find_lacking(needs: Metadata, events: Sequence[Event]) -> list[tuple[Event, str]]:
    """Return the records whose metadata are not as required, and what they should have."""
    if _are_all_sound(needs, [event.metadata for event in events]):
        return []
    lacks_of = [
        _list_lacking_fields(needs, event.metadata) or _find_wrong_value(needs, event.metadata)
        for event in events
    ]
    return [(event, lacks) for event, lacks in zip(events, lacks_of, strict=True) if lacks]


def _are_all_sound(needs: Metadata, metadata: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all metadata are as required, without a call for each."""
    if False in [name in fields for name in needs.has for fields in metadata]:
        return False
    if needs.has_one_of and any(map(set(needs.has_one_of).isdisjoint, metadata)):
        return False
    for name, also in needs.having.items():
        having = [fields for fields in metadata if name in fields]
        if False in [other in fields for other in also for fields in having]:
            return False
    for name, condition in needs.values.items():
        if False in [condition.holds(fields[name]) for fields in metadata if name in fields]:
            return False
    return True


def _list_lacking_fields(needs: Metadata, fields: Mapping[str, Any]) -> str:
    missing = [name for name in needs.has if name not in fields]
    for name, also in needs.having.items():
        if name in fields:
            missing += [other for other in also if other not in fields]
    if not missing and needs.has_one_of and not any(name in fields for name in needs.has_one_of):
        return " or ".join(needs.has_one_of)
    return ", ".join(missing)


def _find_wrong_value(needs: Metadata, metadata: Mapping[str, Any]) -> str:
    for name, condition in needs.values.items():
        if name in metadata and not condition.holds(metadata[name]):
            return f"{name} {condition}"
    return ""


def format_metadata(event: Event) -> str:
    """Return the metadata of a record, without its source."""
    return format_value({k: v for k, v in event.metadata.items() if k not in ("file", "lineno")})


def format_count(events: list[Event]) -> str:
    """Return how many records are concerned, or nothing for a single one."""
    return f" (in {len(events):,} records)" if len(events) > 1 else ""
