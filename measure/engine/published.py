"""Times that a paper reports for a benchmark: ``benchmarks/<name>/published.yaml``.

They stand beside measurements, with their source and caveats. No rule compares with them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from cepheid.rules.definition import locate_benchmarks


@dataclass(frozen=True)
class Machine:
    """A machine of the paper, with its seconds by batch size or number of images."""

    name: str
    largest_power_watts: float
    seconds: Mapping[int, float]


@dataclass(frozen=True)
class Published:
    """The numbers behind one figure.

    ``in_figure`` are the sizes that the figure shows; ``scale`` is the scale of our benchmark that
    has the published network; ``measure`` is one of ``sweep.MEASURES``. ``ratio`` names the machine
    whose times the figure divides by those of another one, and that other one.
    """

    source: str
    figure: int
    measure: str
    network: str
    scale: str
    in_figure: tuple[int, ...]
    machines: tuple[Machine, ...]
    ratio: tuple[str, str]
    caveats: tuple[str, ...]


def load_published(benchmark: str) -> Published | None:
    """Return the published times of a benchmark, or None where there are none."""
    path = locate_benchmarks() / benchmark / "published.yaml"
    if not path.is_file():
        return None
    facts: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    machines = tuple(Machine(name, **about) for name, about in facts["machines"].items())
    dividend, divisor = facts["ratio"]
    return Published(
        source=facts["source"],
        figure=facts["figure"],
        measure=facts["measure"],
        network=facts["network"],
        scale=facts["scale"],
        in_figure=tuple(facts["in_figure"]),
        machines=machines,
        ratio=(dividend, divisor),
        caveats=tuple(facts["caveats"]),
    )
