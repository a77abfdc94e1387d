"""The mark of what only a person can say, in a file that a tool began."""

from collections.abc import Iterator, Mapping

FILL_IN = "FILL IN: "
"""Begins a text that says what belongs in its place. Rules S2 and S3 look for it."""


def unfilled(content: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The fields that still have the mark, each with what it asks for."""
    for key, value in content.items():
        if isinstance(value, str) and value.startswith(FILL_IN):
            yield key, value.removeprefix(FILL_IN)
