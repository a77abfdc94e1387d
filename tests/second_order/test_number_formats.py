"""How numbers travel: float21, half precision, triangles; between ranks simulated on one too."""

import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cepheid.second_order import KFAC, Options, number_formats
from cepheid.second_order.number_formats import Format, pack_float21, unpack_float21
from cepheid.second_order.simulated import round_to
from tests.second_order import assert_misused

# Relatively, of a normal number that does not overflow.
ERRORS = {"float32": 0.0, "float21": 2.0**-13, "float16": 2.0**-11, "bfloat16": 2.0**-8}
ERROR = ERRORS["float21"]


@pytest.mark.parametrize("form", ["float16", "bfloat16"])
def test_half_precision_takes_two_bytes_and_rounds_to_the_nearest(form: Format) -> None:
    numbers = torch.randn(1001)
    packed = number_formats.pack(numbers, form)
    assert packed.dtype == torch.uint8
    assert len(packed) == number_formats.count_words(1001, form) == 2002
    back = number_formats.unpack(packed, 1001, form)
    assert back.dtype == torch.float32
    assert torch.equal(back, numbers.to(getattr(torch, form)).float())
    normal = numbers.abs() > 1e-3
    assert ((back - numbers) / numbers)[normal].abs().max() <= ERRORS[form]
    # A part of a longer message.
    parts = torch.cat([packed, packed]).split(2002)
    assert torch.equal(number_formats.unpack(parts[1], 1001, form), back)


def test_float32_travels_as_it_is() -> None:
    numbers = torch.tensor([1e-45, 3.0])
    assert number_formats.unpack(number_formats.pack(numbers, "float32"), 2, "float32") is numbers
    assert number_formats.count_words(2, "float32") == 2


def test_the_range_of_float16_and_zero_in_every_format() -> None:
    limits = number_formats.find_range("float16")
    assert limits is not None
    highest, lowest = limits
    numbers = torch.tensor([highest, highest + 32, lowest, lowest * 1.01])
    back = number_formats.unpack(number_formats.pack(numbers, "float16"), 4, "float16").tolist()
    assert back == [65504, float("inf"), 0, 2.0**-24]
    assert number_formats.find_range("bfloat16") is None
    for form in ("float32", "float21", "float16", "bfloat16"):
        packed = number_formats.pack(torch.zeros(4), form)
        assert not number_formats.unpack(packed, 4, form).any()


def _bits(number: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", number))[0])


def _there_and_back(*numbers: float) -> list[float]:
    packed = pack_float21(torch.tensor(numbers))
    back: list[float] = unpack_float21(packed, len(numbers)).tolist()
    return back


def test_bits_are_those_of_figure_7() -> None:
    numbers = [1.0, -3.14159274, 6.0e-39, 2.5e38, -0.0, 0.1, 7.0]
    words = pack_float21(torch.tensor(numbers))
    assert words.dtype == torch.int64
    assert len(words) == 3
    for place in range(3):
        a, b, c = [*numbers, 0.0, 0.0][3 * place : 3 * place + 3]
        packed = (_bits(a) >> 11) | (_bits(b) >> 11) << 21 | (_bits(c) >> 11) << 42
        assert words[place].item() == packed
    for number, back in zip(numbers, unpack_float21(words, 7).tolist(), strict=True):
        assert _bits(back) == _bits(number) >> 11 << 11 | 1 << 10


NORMAL = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)


@given(st.lists(NORMAL.filter(lambda number: number != 0), min_size=1, max_size=10))
def test_error_is_bounded(numbers: list[float]) -> None:
    for number, back in zip(numbers, _there_and_back(*numbers), strict=True):
        assert abs(back - number) <= ERROR * abs(number)
        assert math.copysign(1, back) == math.copysign(1, number)


def test_float21_of_zero_of_what_is_not_finite_and_of_nothing() -> None:
    assert _there_and_back(0.0) == [2.0**-139]
    assert _there_and_back(-0.0) == [-(2.0**-139)]
    smallest = 2.0**-149
    assert abs(_there_and_back(smallest)[0] - smallest) <= 2.0**-139
    signalling = torch.tensor([0x7F800001], dtype=torch.int32).view(torch.float32).item()
    for number in (math.inf, -math.inf, math.nan, signalling):
        assert math.isnan(_there_and_back(number)[0])
    assert pack_float21(torch.empty(0)).numel() == 0
    assert unpack_float21(torch.empty(0, dtype=torch.int64), 0).numel() == 0


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9])
def test_a_triangle_holds_a_symmetric_matrix(size: int) -> None:
    matrix = torch.randn(size, size)
    matrix = matrix + matrix.T
    packed = number_formats.pack_triangle(matrix)
    assert packed.shape == (number_formats.count_triangle(size),)
    assert sorted(packed.tolist()) == sorted(matrix[tuple(torch.triu_indices(size, size))].tolist())
    assert torch.equal(number_formats.unpack_triangle(packed, size), matrix)


# Ranks that are simulated on one ------------------------------------------------------------------


INPUTS = torch.arange(24.0).view(8, 3).sub(11.3).div(7)


def compute_factor(**options: object) -> torch.Tensor:
    """Return the factor of the inputs of a linear layer after a step."""
    torch.manual_seed(0)
    network = nn.Linear(3, 2, bias=False)
    kfac = KFAC(network, Options(**options))  # type: ignore[arg-type]
    network(INPUTS).square().sum(1).mean().backward()
    kfac.step()
    return kfac.layers[0].averages[0]


def list_shares(ranks: int) -> list[torch.Tensor]:
    return [round_to(rows.T @ rows / 8, "bfloat16") for rows in INPUTS.tensor_split(ranks)]


def test_each_share_is_rounded_before_it_is_added_unless_it_is_float32() -> None:
    found = compute_factor(simulated_ranks=4, factor_format="bfloat16")
    assert torch.equal(found, torch.stack(list_shares(4)).sum(0))
    assert not torch.equal(found, round_to(compute_factor(), "bfloat16"))
    assert torch.allclose(compute_factor(simulated_ranks=4), compute_factor(), rtol=1e-6)
    refused = "8 samples cannot be shared among 9 simulated ranks"
    assert_misused(refused, compute_factor, simulated_ranks=9)


def test_sums_are_rounded_on_their_way_round_a_ring_and_within_nodes_first() -> None:
    shares = list_shares(4)
    ring = shares[0]
    for share in shares[1:]:
        ring = round_to(ring + share, "bfloat16")
    nodes = [round_to(shares[place] + shares[place + 1], "bfloat16") for place in (0, 2)]
    as_sent = {"simulated_ranks": 4, "factor_format": "bfloat16", "sums": "as_sent"}
    found = compute_factor(**as_sent)
    assert torch.equal(found, ring)
    found = compute_factor(**as_sent, ranks_per_node=2)
    assert torch.equal(found, round_to(nodes[0] + nodes[1], "bfloat16"))


def test_positions_of_one_dimension_are_shared_out_too() -> None:
    found = []
    for ranks in (0, 4):
        torch.manual_seed(0)
        network = nn.Embedding(5, 3)
        kfac = KFAC(network, Options(simulated_ranks=ranks))
        kfac.weigh({"": torch.full((8,), 0.5)})
        network(torch.arange(8) % 5).square().sum(1).mean().backward()
        kfac.step()
        found.append(kfac.layers[0].averages)
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-8)
