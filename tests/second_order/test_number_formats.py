"""The formats of numbers that travel, beside float21, which has tests of its own."""

import pytest

pytest.importorskip("torch")

import torch

from cepheid.second_order import number_formats
from cepheid.second_order.number_formats import Format


@pytest.mark.parametrize("form", ["float16", "bfloat16"])
def test_half_precision_takes_two_bytes_and_rounds_to_the_nearest(form: Format) -> None:
    numbers = torch.randn(1001)
    packed = number_formats.pack(numbers, form)
    assert packed.dtype == torch.uint8
    assert len(packed) == number_formats.count_words(1001, form) == 2002
    back = number_formats.unpack(packed, 1001, form)
    assert back.dtype == torch.float32
    assert torch.equal(back, numbers.to(getattr(torch, form)).float())
    error = number_formats.RELATIVE_ERROR[form]
    normal = numbers.abs() > 1e-3
    assert ((back - numbers) / numbers)[normal].abs().max() <= error
    # A part of a longer message.
    parts = torch.cat([packed, packed]).split(2002)
    assert torch.equal(number_formats.unpack(parts[1], 1001, form), back)


def test_float32_travels_as_it_is() -> None:
    numbers = torch.tensor([1e-45, 3.0])
    assert number_formats.unpack(number_formats.pack(numbers, "float32"), 2, "float32") is numbers
    assert number_formats.count_words(2, "float32") == 2


def test_the_range_of_float16() -> None:
    limits = number_formats.find_range("float16")
    assert limits is not None
    highest, lowest = limits
    numbers = torch.tensor([highest, highest + 32, lowest, lowest * 1.01])
    back = number_formats.unpack(number_formats.pack(numbers, "float16"), 4, "float16").tolist()
    assert back == [65504, float("inf"), 0, 2.0**-24]
    assert number_formats.find_range("bfloat16") is None


def test_zero_stays_zero_in_every_format() -> None:
    for form in ("float32", "float21", "float16", "bfloat16"):
        packed = number_formats.pack(torch.zeros(4), form)
        assert not number_formats.unpack(packed, 4, form).any()
