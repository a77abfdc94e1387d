"""Three floating-point numbers of 21 bits in one word of 64.

Ueno et al. 2020 (doi:10.1145/3394486.3403265), section 3.3.3, figures 6 and 7: a float32 without
its last 11 bits, which keeps sign, all 8 exponent bits and 12 of the mantissa. Unpacking sets the
highest of the missing bits, the middle of what was cut off. That changes some values:

- a normal number comes back within 2⁻¹³ of itself, relatively, and keeps its sign;
- ±0 comes back as ±2⁻¹³⁹, as do numbers below 2⁻¹³⁸ (a subnormal one is within 2⁻¹³⁹ of itself);
- ±infinity comes back as NaN, and NaN stays NaN: what was not finite never comes back finite.
"""

import torch
from torch import Tensor

RELATIVE_ERROR = 2.0**-13
NUMBERS_PER_WORD = 3
_KEPT_BITS = 21
_CUT_BITS = 11
_HALF_BIT = 1 << (_CUT_BITS - 1)
_MASK = (1 << _KEPT_BITS) - 1


def count_words(numbers: int) -> int:
    """Return how many words of 64 bits hold that many numbers."""
    return -(-numbers // NUMBERS_PER_WORD)


def pack(numbers: Tensor) -> Tensor:
    """Pack float32 (n,) to int64 (⌈n / 3⌉,).

    The first of three numbers lies in the lowest bits.
    """
    assert numbers.dtype == torch.float32
    words = count_words(numbers.numel())
    padding = words * NUMBERS_PER_WORD - numbers.numel()
    bits = torch.nn.functional.pad(numbers.detach(), (0, padding)).view(torch.int32)
    kept = ((bits >> _CUT_BITS) & _MASK).view(words, NUMBERS_PER_WORD).long()
    return kept[:, 0] | kept[:, 1] << _KEPT_BITS | kept[:, 2] << (2 * _KEPT_BITS)


def unpack(words: Tensor, numbers: int) -> Tensor:
    """Unpack int64 (⌈n / 3⌉,) to float32 (n,), with n = ``numbers``."""
    kept = torch.stack([words >> (place * _KEPT_BITS) & _MASK for place in range(3)], dim=1)
    bits = (kept << _CUT_BITS | _HALF_BIT).to(torch.int32)  # wraps round into the sign bit
    return bits.view(torch.float32).flatten()[:numbers]
