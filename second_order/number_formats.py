"""The formats in which numbers travel between ranks: float32, float21, float16, bfloat16.

Half precision travels as bytes, which every library can send. It rounds to the nearest number.
float16 ends at 65,504 and has few digits below 6e-5; below 3e-8 it is 0. The others reach as far
as float32.
"""

from typing import Literal

import torch
from torch import Tensor

from cepheid.second_order import float21

Format = Literal["float32", "float21", "float16", "bfloat16"]

_HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
# Of a normal number that does not overflow.
RELATIVE_ERROR = {
    "float32": 0.0,
    "float21": float21.RELATIVE_ERROR,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}


def find_range(form: Format) -> tuple[float, float] | None:
    """Return the largest number and the one up to which all become 0; None is that of float32."""
    if form != "float16":
        return None
    limits = torch.finfo(torch.float16)
    return limits.max, limits.smallest_normal * limits.eps / 2


def count_words(numbers: int, form: Format) -> int:
    """Return the length of what ``pack`` makes of so many numbers."""
    if form in _HALVES:
        return 2 * numbers
    return float21.count_words(numbers) if form == "float21" else numbers


def pack(numbers: Tensor, form: Format) -> Tensor:
    """Pack float32 (n,) to the format's words, (``count_words``,)."""
    if form in _HALVES:
        return numbers.to(_HALVES[form]).view(torch.uint8)
    return float21.pack(numbers) if form == "float21" else numbers


def unpack(words: Tensor, numbers: int, form: Format) -> Tensor:
    """Unpack words (``count_words``,) to float32 (n,), with n = ``numbers``.

    Subnormal numbers of float21 become 0: it makes one of each 0, and they are slow to compute
    with.
    """
    if form in _HALVES:
        return words.view(_HALVES[form]).float()
    return flush_subnormals(float21.unpack(words, numbers)) if form == "float21" else words


def flush_subnormals(values: Tensor) -> Tensor:
    """Set numbers below the smallest normal one of float32 to 0; the shape stays, any shape."""
    return torch.where(values.abs() < torch.finfo(torch.float32).tiny, 0.0, values)
