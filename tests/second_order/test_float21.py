"""float21: bits as in figure 7, the bound on the error, and what it makes of special values."""

import math
import struct

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from cepheid.second_order import float21


def _bits(number: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", number))[0])


def _there_and_back(*numbers: float) -> list[float]:
    packed = float21.pack(torch.tensor(numbers))
    back: list[float] = float21.unpack(packed, len(numbers)).tolist()
    return back


def test_bits_are_those_of_figure_7() -> None:
    numbers = [1.0, -3.14159274, 6.0e-39, 2.5e38, -0.0, 0.1, 7.0]
    words = float21.pack(torch.tensor(numbers))
    assert words.dtype == torch.int64
    assert len(words) == 3
    for place in range(3):
        a, b, c = [*numbers, 0.0, 0.0][3 * place : 3 * place + 3]
        assert (
            words[place].item()
            == (_bits(a) >> 11) | (_bits(b) >> 11) << 21 | (_bits(c) >> 11) << 42
        )
    for number, back in zip(numbers, float21.unpack(words, 7).tolist(), strict=True):
        assert _bits(back) == _bits(number) >> 11 << 11 | 1 << 10


def test_three_numbers_take_64_bits() -> None:
    packed = float21.pack(torch.ones(3000))
    assert packed.numel() * packed.element_size() * 8 == 1000 * 64


NORMAL = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)


@given(st.lists(NORMAL.filter(lambda number: number != 0), min_size=1, max_size=10))
def test_error_is_bounded(numbers: list[float]) -> None:
    for number, back in zip(numbers, _there_and_back(*numbers), strict=True):
        assert abs(back - number) <= float21.RELATIVE_ERROR * abs(number)
        assert math.copysign(1, back) == math.copysign(1, number)


def test_the_bound_is_reached() -> None:
    (back,) = _there_and_back(1.0)
    assert back == 1 + float21.RELATIVE_ERROR


def test_zero_becomes_subnormal() -> None:
    assert _there_and_back(0.0) == [2.0**-139]
    assert _there_and_back(-0.0) == [-(2.0**-139)]
    smallest = 2.0**-149
    assert abs(_there_and_back(smallest)[0] - smallest) <= 2.0**-139


def test_what_is_not_finite_becomes_nan() -> None:
    signalling = torch.tensor([0x7F800001], dtype=torch.int32).view(torch.float32).item()
    for number in (math.inf, -math.inf, math.nan, signalling):
        assert math.isnan(_there_and_back(number)[0])


def test_nothing_packs_to_nothing() -> None:
    assert float21.pack(torch.empty(0)).numel() == 0
    assert float21.unpack(torch.empty(0, dtype=torch.int64), 0).numel() == 0
