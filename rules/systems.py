"""Systems: what they are called (rule S1), and what their devices could compute at most.

A folder with the name of a submitter lies beside folders and files that tools read. A submitter
called ``systems`` would make a folder of submissions look like the folder of one submitter.

What share of its peak a run reached is the model FLOPs utilisation (MFU) of Chowdhery et al. 2022
(PaLM, appendix B): the floating-point operations that the model needs, not those that an
implementation executes. A peak is that of the datasheet where it is known, else a measured one.
Nothing is guessed: without either there is no share.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import yaml

from cepheid.rules.errors import UserError
from cepheid.rules.events import is_integer, is_number

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""The characters of the name of a submitter or a system."""

RESERVED = frozenset(
    {
        "submissions", "systems", "results", "benchmarks", "checkpoints", "leaderboard", "docs",
        "manifest", "waivers", "license", "licence", "readme",
    }
)  # fmt: skip
"""Names of folders and files beside which a submitter or a system lies, without regard to case."""

DEVICE_NAME = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
"""Names of files that Windows does not have."""

_FILE_NAME = re.compile(
    r".*\.(txt|json|csv|md|yaml|yml|html|png|partial)|(result|interrupted|power|report)_[0-9].*",
    re.IGNORECASE | re.DOTALL,
)


TEAM = re.compile(r"(.+)_([2-9]|[1-9][0-9])")
"""The folder of a further team of a submitter: ``acme_2`` beside ``acme``."""


def find_organisation(folder: Path) -> str:
    """Return the submitter whose results a folder holds: its name, or that of the first team's.

    ``submissions/acme_2`` is the folder of a second team only where ``submissions/acme`` exists.
    """
    team = TEAM.fullmatch(folder.name)
    return team[1] if team and (folder.parent / team[1]).is_dir() else folder.name


def rank_team(folder: Path) -> int:
    """Return the number of a team among those of its submitter, 1 for the first one."""
    return int(folder.name.rpartition("_")[2]) if find_organisation(folder) != folder.name else 1


def explain_name(name: str) -> str:
    """Return why a submitter or a system cannot have a name, or an empty text if it can."""
    if not NAME.fullmatch(name):
        return (
            "a name consists of letters, digits, '.', '_' and '-', at most 64, a letter or digit"
            " first"
        )
    if name.casefold() in RESERVED:
        return "this name is reserved, because tools read folders of this name"
    if DEVICE_NAME.fullmatch(name) or name.endswith("."):
        return "Windows cannot have a folder of this name"
    if _FILE_NAME.fullmatch(name):
        return "this is the name of a file that tools read"
    return ""


def refuse_name(name: str, of: str) -> None:
    """Raise UserError if a submitter or a system cannot have a name; ``of`` says whose it is."""
    why = explain_name(name)
    if why:
        raise UserError(
            f"{name[:100]!r} cannot be the name of {of}: {why}; choose another name (rule S1)"
        )


Basis = Literal["datasheet", "measured", "bound"]
BASES: tuple[Basis, ...] = ("datasheet", "measured")
TABLE = Path(__file__).resolve().parent / "devices.yaml"
_NAMES = {
    "fp32": "fp32", "float32": "fp32", "tf32": "tf32", "fp64": "fp64", "float64": "fp64",
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "fp8": "fp8",
}  # fmt: skip
PRECISIONS = tuple(_NAMES)
ORDER = ("fp64", "fp32", "tf32", "bf16", "fp8")
"""Precisions whose peaks on one device rise in this order, or are equal."""
CORE_TFLOPS_MAX = {"fp64": 1.0, "fp32": 2.0, "": 16.0}
ACCELERATOR_TFLOPS_MAX = {"fp64": 1_000.0, "fp32": 10_000.0, "": 100_000.0}
"""More than any of them computes, several times over; "" is any other precision."""
_LOOK_ALIKE = str.maketrans(
    "АВЕЅІЈКМНОРСТХавеѕіјорсхуԁԛΑΒΕΖΗΙΚΜΝΟΡΤΥΧο", "ABESIJKMHOPCTXabesijopcxydqABEZHIKMNOPTYXo"
)
_OF_ANY_DEVICE = re.compile(
    "[0-9]{1,4}x|x[0-9]{1,4}|gpus?|accelerators?|corp|corporation|inc|tensor|cores?|hbm[0-9]e?",
    re.IGNORECASE,
)
"""Words that tell no device from another one."""
TERA = 1e12
TFLOPS_MIN, TFLOPS_MAX = 1e-9, 1e6  # of a device that is described, as in the schema


@dataclass(frozen=True)
class Device:
    """A row of ``devices.yaml``: the peaks that the maker of a device states.

    What follows ``memory_gb_per_second`` is for readers: nothing is compared with it.
    """

    device: str
    names: re.Pattern[str]
    peak_tflops: Mapping[str, float]
    source: str
    memory_gb_per_second: float | None = None
    memory_gb: float | None = None
    fp64_tflops: float | None = None
    int8_tops: float | None = None
    link_gb_per_second: float | None = None
    watts: float | None = None


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
    for row in rows:
        row["names"] = re.compile(row["names"].replace("-", " "), re.IGNORECASE)
    return tuple(Device(**row) for row in rows)


def find_device(name: object) -> Device | None:
    """Return what is known of a device by the words of its whole name, or None.

    Case, brackets, dashes and letters of other alphabets that look alike make no difference.
    """
    if not isinstance(name, str):
        return None
    seen = "".join(letter for letter in name[:200] if unicodedata.category(letter) != "Cf")
    plain = unicodedata.normalize(
        "NFKC", re.sub(r"\((R|TM)\)|[™®]", " ", seen, flags=re.IGNORECASE)
    )
    words = re.split(r"[^\w.]+|_+", plain.translate(_LOOK_ALIKE))
    telling = [word for word in words if word and not _OF_ANY_DEVICE.fullmatch(word)]
    forms = (" ".join(filter(None, words)), " ".join(telling), " ".join(map(_read_digits, telling)))
    return next((known for known in load_devices() if any(map(known.names.fullmatch, forms))), None)


def _read_digits(word: str) -> str:
    """Return a word with digits for letters that look like them, or letters for digits."""
    has_digit = any(map(str.isdigit, word))
    return word.translate(str.maketrans("Ool", "001") if has_digit else str.maketrans("l", "I"))


def name_precision(logged: str) -> str | None:
    """Return the precision that a log means, as peaks are named by it; None for an unknown one."""
    return _NAMES.get(logged.strip().casefold().removeprefix("torch.").removeprefix("mixed_"))


def find_bound(system: Mapping[str, object], precision: str) -> Peak | None:
    """Return what no system with so many cores and accelerators computes, whatever they are."""
    counts = [system.get(f"{what}_per_node") for what in ("processor_cores", "accelerators")]
    nodes = system.get("nodes")
    if not is_integer(nodes) or nodes < 1 or not all(is_integer(count) for count in counts):
        return None
    name = name_precision(precision) or ""
    cores, accelerators = (int(str(count)) for count in counts)
    of_core = CORE_TFLOPS_MAX.get(name, CORE_TFLOPS_MAX[""])
    of_accelerator = ACCELERATOR_TFLOPS_MAX.get(name, ACCELERATOR_TFLOPS_MAX[""])
    tflops = nodes * (cores * of_core + accelerators * of_accelerator)
    return Peak(name or "any precision", tflops, "bound") if tflops > 0 else None


def find_peak(system: Mapping[str, object], precision: str) -> Peak | None:
    """Return the peak of the system that is described, for a precision as logs write it.

    That is the peak of an accelerator, or of a node without accelerators, times their number.
    Where a device has units for tf32, a run in fp32 may use them, and its log does not tell: it is
    compared with tf32, even if that was only measured. None where no peak is known.
    """
    name = name_precision(precision)
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
