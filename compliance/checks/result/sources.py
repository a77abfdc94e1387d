"""T10 and T25: results that one definition judges were made from the same data and weights.

Where a definition has the digest of its data and of its given weights, each log is compared with
that. Where it has none, because nobody here had the files, results are compared with each other.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cepheid.compliance.checks.registry import find_given_weights, has_digest_of
from cepheid.compliance.finding import Finding, breach, escape, format_value
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.definition import Definition
from cepheid.rules.digests import UNCONFIRMED


@dataclass(frozen=True)
class Source:
    """What a run says that it was made from: ``of`` names what must be the same everywhere."""

    of: tuple[str, ...]
    path: Path
    line: int
    digest: str


def list_sources(run: RunLog, definition: Definition) -> Iterator[Source]:
    """Yield the data and the weights of a run whose digests its definition leaves open."""
    if not has_digest_of(run, definition):
        return  # T5 reports another version of the definition
    where = (definition.name, definition.scale, definition.digest)
    given = find_given_weights(run, definition)
    is_open = run.text("submission_division") == "open"  # which may start from any weights
    is_unconfirmed = given is not None and given["digest"] == UNCONFIRMED and not is_open
    for key, name in (
        ("data_digest", "" if definition.data_digest is None else None),
        ("weights_digest", given["file"] if given and is_unconfirmed else None),
    ):
        event = run.first(key)
        if name is not None and event is not None and isinstance(event.value, str):
            yield Source((*where, key, name), run.path, event.line, event.value)


def find_differing(of_results: Sequence[Sequence[Source]]) -> list[list[Finding]]:
    """Return for each result the warnings about what it and another one were made from.

    A result is warned once about its data and once about its weights, and so is the other one.
    """
    known: defaultdict[tuple[str, ...], dict[str, Source]] = defaultdict(dict)
    for sources in of_results:
        for source in sources:
            known[source.of].setdefault(source.digest, source)
    return [list(_warn(sources, known)) for sources in of_results]


def _warn(
    sources: Sequence[Source], known: Mapping[tuple[str, ...], Mapping[str, Source]]
) -> Iterator[Finding]:
    for source in {source.of: source for source in reversed(sources)}.values():
        others = (
            other
            for other in known[source.of].values()
            if other.digest != source.digest and other.path.parent != source.path.parent
        )  # T18 compares the runs of one result
        for other in islice(others, 1):
            name, scale, _, key, file = source.of
            code = "T10.data_differ" if key == "data_digest" else "T25.weights_differ"
            yield breach(
                source, source.line, code, other=escape(str(other.path)), name=name, scale=scale,
                file=file, expected=format_value(other.digest), value=format_value(source.digest),
            )  # fmt: skip
