"""Batch norm over spans of the global batch: as on one rank."""

from typing import Any

import pytest
import torch
from torch import nn

from cepheid.reference.torch.batch_norm import SpanBatchNorm2d
from cepheid.reference.torch.ranks.collectives import Span
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules.errors import UserError

BATCH, CHANNELS = 8, 3


def images() -> Any:
    return torch.randn(BATCH, CHANNELS, 4, 4, generator=torch.Generator().manual_seed(1)) * 3 + 2


def test_norms_over_parts_of_a_batch() -> None:
    norm = SpanBatchNorm2d(CHANNELS, Span(local_groups=2), 1e-5, 0.1)
    halves = [nn.BatchNorm2d(CHANNELS) for _ in range(2)]
    batch = images()
    expected = torch.cat([half(part) for half, part in zip(halves, batch.chunk(2), strict=True)])
    torch.testing.assert_close(norm(batch), expected)
    for name in ("running_mean", "running_var"):
        mean = (getattr(halves[0], name) + getattr(halves[1], name)) / 2
        torch.testing.assert_close(getattr(norm, name), mean)


def test_norms_tell_what_they_normalised_by() -> None:
    norm, batch = SpanBatchNorm2d(CHANNELS, Span(local_groups=2), 1e-5, 0.1), images()
    norm(batch)
    assert norm.batch_moments is not None
    for half, mean, variance in zip(batch.chunk(2), *norm.batch_moments, strict=True):
        expected = torch.var_mean(half, dim=(0, 2, 3), correction=0)
        torch.testing.assert_close((variance, mean), expected)
    norm.over = Span()
    norm(batch)
    assert norm.batch_moments is None


def test_one_group_is_torchs_batch_norm() -> None:
    norm, torchs = SpanBatchNorm2d(CHANNELS, Span(), 1e-5, 0.1), nn.BatchNorm2d(CHANNELS)
    for batch in (images(), images() + 1):
        assert torch.equal(norm(batch), torchs(batch))
    torch.testing.assert_close(norm.running_var, torchs.running_var, rtol=0, atol=0)
    assert torch.equal(norm.eval()(images()), torchs.eval()(images()))


@pytest.mark.parametrize(
    ("samples", "local_groups"), [(0, 1), (8, 1), (4, 2), (1, 8), (16, 1), (400, 1)]
)
def test_spans_of_one_rank(samples: int, local_groups: int) -> None:
    assert TorchRanks(0, 1, torch.device("cpu")).make_span(samples, 8) == Span(local_groups)


@pytest.mark.parametrize(("world_size", "samples"), [(1, 3), (4, 12), (3, 16), (4, 24)])
def test_spans_that_cut_through_a_share_are_refused(world_size: int, samples: int) -> None:
    with pytest.raises(UserError, match="model_bn_span"):
        TorchRanks(0, world_size, torch.device("cpu")).make_span(samples, 8)
