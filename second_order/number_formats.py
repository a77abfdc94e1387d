"""How numbers travel between ranks: as float32, float21, float16 or bfloat16, and as triangles.

float21 puts three numbers into a word of 64 bits (Ueno et al. 2020, doi:10.1145/3394486.3403265,
section 3.3.3, figures 6 and 7): a float32 without its last 11 bits, which keeps sign, all 8
exponent bits and 12 of the mantissa. Unpacking sets the highest of the missing bits, the middle of
what was cut off. That changes some values:

- a normal number comes back within 2⁻¹³ of itself, relatively, and keeps its sign;
- ±0 comes back as ±2⁻¹³⁹, as do numbers below 2⁻¹³⁸ (a subnormal one is within 2⁻¹³⁹ of itself);
- ±infinity comes back as NaN, and NaN stays NaN: what was not finite never comes back finite.

Half precision travels as bytes, which every library can send. It rounds to the nearest number.
float16 ends at 65,504 and has few digits below 6e-5; below 3e-8 it is 0. The others reach as far
as float32.

Of a symmetric matrix the upper triangle travels, half the numbers. It is folded into a rectangle,
as LAPACK's "rectangular full packed" format does (Gustavson et al. 2010,
doi:10.1145/1731022.1731028), so that it takes a few block copies and no table of indices.
"""

from typing import Literal

import torch
from torch import Tensor

Format = Literal["float32", "float21", "float16", "bfloat16"]

_HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
NUMBERS_PER_WORD = 3
_KEPT_BITS = 21
_CUT_BITS = 11
_HALF_BIT = 1 << (_CUT_BITS - 1)
_MASK = (1 << _KEPT_BITS) - 1


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
    return count_float21_words(numbers) if form == "float21" else numbers


def pack(numbers: Tensor, form: Format) -> Tensor:
    """Pack float32 (n,) to the format's words, (``count_words``,)."""
    if form in _HALVES:
        return numbers.to(_HALVES[form]).view(torch.uint8)
    return pack_float21(numbers) if form == "float21" else numbers


def unpack(words: Tensor, numbers: int, form: Format) -> Tensor:
    """Unpack words (``count_words``,) to float32 (n,), with n = ``numbers``.

    Subnormal numbers of float21 become 0: it makes one of each 0, and they are slow to compute
    with.
    """
    if form in _HALVES:
        return words.view(_HALVES[form]).float()
    return flush_subnormals(unpack_float21(words, numbers)) if form == "float21" else words


def flush_subnormals(values: Tensor) -> Tensor:
    """Set numbers below the smallest normal one of float32 to 0; the shape stays, any shape."""
    return torch.where(values.abs() < torch.finfo(torch.float32).tiny, 0.0, values)


def count_float21_words(numbers: int) -> int:
    """Return how many words of 64 bits hold that many numbers."""
    return -(-numbers // NUMBERS_PER_WORD)


def pack_float21(numbers: Tensor) -> Tensor:
    """Pack float32 (n,) to int64 (⌈n / 3⌉,); the first of three lies in the lowest bits."""
    assert numbers.dtype == torch.float32
    words = count_float21_words(numbers.numel())
    padding = words * NUMBERS_PER_WORD - numbers.numel()
    bits = torch.nn.functional.pad(numbers.detach(), (0, padding)).view(torch.int32)
    kept = ((bits >> _CUT_BITS) & _MASK).view(words, NUMBERS_PER_WORD).long()
    return kept[:, 0] | kept[:, 1] << _KEPT_BITS | kept[:, 2] << (2 * _KEPT_BITS)


def unpack_float21(words: Tensor, numbers: int) -> Tensor:
    """Unpack int64 (⌈n / 3⌉,) to float32 (n,), with n = ``numbers``."""
    kept = torch.stack([words >> (place * _KEPT_BITS) & _MASK for place in range(3)], dim=1)
    bits = (kept << _CUT_BITS | _HALF_BIT).to(torch.int32)  # wraps round into the sign bit
    return bits.view(torch.float32).flatten()[:numbers]


def count_triangle(size: int) -> int:
    """Return the number of elements in the upper triangle of a square matrix."""
    return size * (size + 1) // 2


def pack_triangle(matrix: Tensor) -> Tensor:
    """Pack the upper triangle with its diagonal: (n, n) to (n (n + 1) / 2,)."""
    half = matrix.shape[0] // 2
    rest = matrix.shape[0] - half
    folded = matrix.new_zeros(half + 1, rest)
    folded[:rest] = matrix[half:, half:].triu()
    folded[1:, :half] += matrix[:half, :half].T.tril()
    top = matrix[:half, half:]
    flat = matrix.new_empty(count_triangle(matrix.shape[0]))
    flat[: top.numel()].view_as(top).copy_(top)
    flat[top.numel() :].view_as(folded).copy_(folded)
    return flat


def unpack_triangle(flat: Tensor, size: int) -> Tensor:
    """Unpack (n (n + 1) / 2,) to the symmetric matrix (n, n), with n = ``size``."""
    half = size // 2
    rest = size - half
    top = flat[: half * rest].view(half, rest)
    folded = flat[half * rest :].view(half + 1, rest)
    matrix = flat.new_empty(size, size)
    matrix[:half, half:] = top
    matrix[half:, :half] = top.T
    upper, lower = folded[:rest].triu(), folded[1:, :half].tril()
    matrix[half:, half:] = upper + upper.triu(1).T
    matrix[:half, :half] = lower + lower.tril(-1).T
    return matrix
