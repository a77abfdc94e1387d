"""What known accelerators refuse and a CPU computes: operations that would end a run there.

Which operations have no kernel for a device, torch says itself: the list of its operations lies in
its package ``torchgen``. What it cannot say stands below, with the source of each.
"""

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

LISTED = MappingProxyType({"CUDA": "CUDA", "MPS": "MPS"})
"""Devices by their names in torch's list, which has all operations of these two alone."""
_ENTRY = re.compile(r"^- func: ([\w.]+)\(", re.MULTILINE)
_KEYS = re.compile(r"^    ([A-Z]\w*(?:, \w+)*): \w+", re.MULTILINE)
_DELEGATE = re.compile(r"^  structured_delegate: ([\w.]+)", re.MULTILINE)


@dataclass(frozen=True)
class Refusal:
    """Arguments with which a device refuses an operation that it has a kernel of."""

    device: str
    what: str
    applies: Callable[[Sequence[Any]], bool]
    source: str

    def __str__(self) -> str:
        return f"{self.device} refuses {self.what}"


def _are_integers(args: Sequence[Any]) -> bool:
    tensors = [each for each in args if isinstance(each, Tensor)]
    return not any(each.is_floating_point() or each.is_complex() for each in tensors)


_INTEGERS = Refusal(
    "CUDA", "products of matrices of integers", _are_integers,
    "aten/src/ATen/native/cuda/Blas.cpp: \"addmm_cuda\" not implemented for 'Long'",
)  # fmt: skip
REFUSALS: Mapping[str, Sequence[Refusal]] = {
    "native_batch_norm_backward": [
        Refusal(
            "CUDA", "native_batch_norm_backward without saved statistics or gradient of the input",
            lambda args: args[5] is None and not args[9][0],
            "aten/src/ATen/native/cuda/Normalization.cu: save_mean should always be defined",
        )
    ],
    **{name: [_INTEGERS] for name in ("mm", "bmm", "addmm", "baddbmm")},
}  # fmt: skip
"""By the names of operations."""


def list_refusals(operation: Any, name: str, args: Sequence[Any]) -> Iterator[str]:
    """Yield what known devices say to an operation that is called ``name`` with these arguments."""
    for refusal in REFUSALS.get(name, ()):
        if refusal.applies(args):
            yield str(refusal)
    for device in find_missing(operation._schema.name, operation._overloadname):
        yield f"{device} has no kernel of {name}"


@cache
def find_missing(name: str, overload: str) -> Sequence[str]:
    """Return the known devices for which torch has no kernel of an operation."""
    short = name.removeprefix("aten::")
    entry = short if overload == "default" else f"{short}.{overload}"
    keys = _read_kernels().get(entry, frozenset())
    if "CPU" not in keys or any(key.startswith("Composite") for key in keys):
        return ()  # made of other operations, or a kernel that needs no entry
    return [device for device, key in LISTED.items() if key not in keys]


@cache
def _read_kernels() -> Mapping[str, frozenset[str]]:
    """Return what torch's operations have kernels for; nothing where it does not say."""
    found = importlib.util.find_spec("torchgen")
    folder = Path(found.origin or "").parent if found else Path()
    path = folder / "packaged" / "ATen" / "native" / "native_functions.yaml"
    if not path.is_file():
        return {}
    _, *parts = _ENTRY.split(path.read_text(encoding="utf-8"))
    entries = dict(zip(parts[::2], parts[1::2], strict=True))

    def read(name: str) -> frozenset[str]:
        entry = entries.get(name, "")
        if delegate := _DELEGATE.search(entry):
            return read(delegate[1])
        return frozenset(key for keys in _KEYS.findall(entry) for key in keys.split(", "))

    return {name: read(name) for name in entries}
