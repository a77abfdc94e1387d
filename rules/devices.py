"""Peaks of devices: what a system could compute at most, and what share of it a run reached.

The share is the model FLOPs utilisation (MFU) of Chowdhery et al. 2022 (PaLM, appendix B): the
floating-point operations that the model needs, not those that an implementation executes. A peak
is that of the datasheet where it is known, else a measured one. Nothing is guessed: without either
there is no share.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

from cepheid.rules.events import is_integer, is_number

Basis = Literal["datasheet", "measured"]
BASES: tuple[Basis, ...] = ("datasheet", "measured")
TABLE = Path(__file__).resolve().parent / "devices.yaml"
_NAMES = {
    "fp32": "fp32", "float32": "fp32", "tf32": "tf32", "fp64": "fp64", "float64": "fp64",
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "fp8": "fp8",
}  # fmt: skip
TERA = 1e12
TFLOPS_MIN, TFLOPS_MAX = 1e-9, 1e6  # of a device that is described, as in the schema


@dataclass(frozen=True)
class Device:
    """A row of ``devices.yaml``: the peaks that the maker of a device states."""

    device: str
    names: re.Pattern[str]
    peak_tflops: Mapping[str, float]
    source: str
    memory_gb_per_second: float | None = None


@dataclass(frozen=True)
class Peak:
    """The peak of a whole system. ``precision`` is the one that the peak belongs to."""

    precision: str
    tflops: float
    basis: Basis


@dataclass(frozen=True)
class PeakShare:
    """What share of a peak a result reached; more than 1 is not possible."""

    share: float
    peak: Peak

    def __str__(self) -> str:
        """Return ``12.3% (bf16, datasheet)``."""
        return f"{100 * self.share:.3g}% ({self.peak.precision}, {self.peak.basis})"


@cache
def load_devices() -> tuple[Device, ...]:
    """Return the table of devices."""
    rows = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return tuple(
        Device(**{**row, "names": re.compile(row["names"], re.IGNORECASE)}) for row in rows
    )


def find_device(name: object) -> Device | None:
    """Return what is known of a device by its whole name, or None."""
    if not isinstance(name, str):
        return None
    plain = re.sub(r"\((R|TM)\)|[™®]", "", name[:200]).strip()
    return next((known for known in load_devices() if known.names.fullmatch(plain)), None)


def find_peak(system: Mapping[str, object], precision: str) -> Peak | None:
    """Return the peak of the system that is described, for a precision as logs write it.

    That is the peak of an accelerator, or of a node without accelerators, times their number.
    Where a device has units for tf32, a run in fp32 may use them, and its log does not tell: it is
    compared with tf32, even if that was only measured. None where no peak is known.
    """
    name = _NAMES.get(precision.strip().casefold().removeprefix("torch."))
    per_node, nodes = system.get("accelerators_per_node"), system.get("nodes")
    if name is None or not (is_integer(per_node) and is_integer(nodes) and nodes > 0):
        return None
    devices = nodes * max(per_node, 1)
    for of in ("tf32", "fp32") if name == "fp32" else (name,):
        for basis in BASES:
            if tflops := find_tflops(system, of, basis):
                return Peak(of, devices * tflops, basis)
    return None


def find_tflops(system: Mapping[str, object], precision: str, basis: Basis) -> float | None:
    """Return the peak of one device: what the description says, else what the table says."""
    described = system.get("peak_tflops")
    of = described.get(precision) if isinstance(described, Mapping) else None
    value: object = of.get(basis) if isinstance(of, Mapping) else None
    if value is None and basis == "datasheet" and (known := find_device(system.get("accelerator"))):
        value = known.peak_tflops.get(precision)
    return value if is_number(value) and TFLOPS_MIN <= value <= TFLOPS_MAX else None


def compute_share(flops_per_sample: int, samples_per_second: float, peak: Peak) -> PeakShare:
    """Return the share of a peak that this many samples a second are."""
    return PeakShare(flops_per_sample * samples_per_second / (peak.tflops * TERA), peak)
