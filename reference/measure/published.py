"""Times that a paper reports for a benchmark: ``benchmarks/<name>/published.yaml``.

They are set beside measurements, with their source and caveats. No rule compares with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from rules.definition import locate_benchmarks


@dataclass(frozen=True)
class Machine:
    """One that the paper measured: seconds by batch size or number of images."""

    name: str
    largest_power_watts: float
    seconds: Mapping[int, float]


@dataclass(frozen=True)
class Published:
    """The numbers behind one figure. ``in_figure`` are the sizes that it shows; ``scale`` is that
    of our benchmark whose network is the published one; ``measure`` is one of ``sweep.MEASURES``.
    """

    source: str
    figure: int
    measure: str
    network: str
    scale: str
    in_figure: tuple[int, ...]
    machines: tuple[Machine, ...]
    caveats: tuple[str, ...]


def load(benchmark: str) -> Published | None:
    """What is published for a benchmark; None where nothing is."""
    path = locate_benchmarks() / benchmark / "published.yaml"
    if not path.is_file():
        return None
    facts: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    machines = tuple(Machine(name, **about) for name, about in facts["machines"].items())
    return Published(
        source=facts["source"],
        figure=facts["figure"],
        measure=facts["measure"],
        network=facts["network"],
        scale=facts["scale"],
        in_figure=tuple(facts["in_figure"]),
        machines=machines,
        caveats=tuple(facts["caveats"]),
    )
