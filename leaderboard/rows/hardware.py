"""What a system description says of the machine, in the words of our rounds and of MLPerf's."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cepheid.compliance.finding import escape
from cepheid.rules.events import is_integer

COUNT_MAX = 1_000_000  # nodes, or accelerators of a node


@dataclass(frozen=True)
class Hardware:
    """The machine of a result. ``accelerators`` counts those of all nodes, None where unknown."""

    accelerators: int | None
    accelerator: str
    processor: str
    nodes: int
    framework: str

    @property
    def device(self) -> str:
        """The accelerator, or the processor where there is none."""
        return (self.accelerators and self.accelerator) or self.processor or "unknown"

    def __str__(self) -> str:
        """Return the accelerators, or the processor where there are none: ``8 x NVIDIA H200``."""
        if self.accelerators and self.accelerator:
            return f"{self.accelerators} x {self.accelerator}"
        return self.processor or "unknown"


def read_hardware(system: Mapping[str, object]) -> Hardware:
    """Read the machine from a system's description."""
    nodes = _read_count(system, "nodes") or _read_count(system, "number_of_nodes")
    per_node = _read_count(system, "accelerators_per_node")
    return Hardware(
        accelerators=None if per_node is None else per_node * (nodes or 1),
        accelerator=_read_text(system, "accelerator", "accelerator_model_name"),
        processor=_read_text(system, "processor", "host_processor_model_name"),
        nodes=nodes or 0,
        framework=_read_text(system, "framework"),
    )


def _read_text(system: Mapping[str, object], *keys: str) -> str:
    """Return the first of several fields that is a text and not empty."""
    values = (system.get(key) for key in keys)
    texts = (escape(value[:200]) for value in values if isinstance(value, str))
    return next(filter(None, texts), "")


def _read_count(system: Mapping[str, object], key: str) -> int | None:
    """Return a number of something; descriptions of MLPerf write numbers as text.

    No machine has more than ``COUNT_MAX``; the schema says so too, which rounds of MLPerf lack.
    """
    value: object = system.get(key)
    if isinstance(value, str) and re.fullmatch(r" *[0-9]{1,9} *", value):
        value = int(value)
    return value if is_integer(value) and 0 <= value <= COUNT_MAX else None
