"""The links that are known by name (links.yaml), with their sources."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cepheid.measure.studies.projection.model import Link
from cepheid.rules.errors import UserError, did_you_mean

LINKS = Path(__file__).with_name("links.yaml")


@cache
def read_links() -> Mapping[str, Mapping[str, Any]]:
    """Return all links by name: latency, rate and source."""
    links: Mapping[str, Mapping[str, Any]] = yaml.safe_load(LINKS.read_text(encoding="utf-8"))
    return links


def find_link(name: str) -> Link:
    """Return a link by its name. Raises UserError for a name that nobody knows."""
    links = read_links()
    if name not in links:
        raise UserError(
            f'"{name}" is no known link{did_you_mean(name, links)}; known: {", ".join(links)}'
        )
    facts = links[name]
    return Link(name, facts["latency_us"] / 1e6, 1e9 * facts["gigabytes_per_second"])
