"""Data parallelism, sharded updates and batch norm over spans: as on one rank."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from torch import nn

from reference.optim.lars import Lars
from reference.torch.batch_norm import SpanBatchNorm2d
from reference.torch.distributed import Span, TorchRanks, start_ranks
from reference.torch.parallel import make_data_parallel, make_sharded_optimizer
from rules.errors import UserError
from tests.distributed import on_ranks

BATCH, CHANNELS = 8, 3


def images() -> Any:
    return torch.randn(BATCH, CHANNELS, 4, 4, generator=torch.Generator().manual_seed(1)) * 3 + 2


def _train(all_reduce: str, weight_update: str, span: int, per_node: int) -> list[float]:
    """Weights and averaged statistics after three steps of a small network."""
    torch.set_num_threads(1)
    with start_ranks() as ranks:
        ranks = TorchRanks(
            ranks.rank, ranks.world_size, ranks.device, min(per_node, ranks.world_size)
        )
        share = ranks.split_batch(BATCH)
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(CHANNELS, 5, 3),
            SpanBatchNorm2d(5, ranks.make_span(span, share), 1e-5, 0.1),
            nn.Flatten(),
            nn.Linear(20, 2),
        )
        parallel = make_data_parallel(model, ranks, all_reduce)
        groups = [{"params": list(model.parameters()), "weight_decay": 0.01}]
        optimizer = make_sharded_optimizer(
            Lars, groups, ranks, weight_update, lr=0.5, trust_coefficient=0.1, form="unscaled"
        )
        mine = images()[ranks.rank * share : (ranks.rank + 1) * share]
        for step in range(3):
            optimizer.param_groups[0]["lr"] = 0.5 / (step + 1)
            parallel(mine).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        statistics = [b for name, b in model.named_buffers() if name.split(".")[1][:7] == "running"]
        ranks.average(statistics)
        values = [p.detach().flatten() for p in model.parameters()]
        return [float(v) for v in torch.cat([*values, *map(torch.flatten, statistics)])]


@pytest.mark.parametrize(
    ("world_size", "all_reduce", "weight_update", "span"),
    [(2, "flat", "sharded", 2), (4, "two_level", "sharded", 4)],
)
def test_several_ranks_do_what_one_does(
    world_size: int, all_reduce: str, weight_update: str, span: int
) -> None:
    alone = _train(all_reduce, weight_update, span, 1)
    together = on_ranks(world_size, _train, all_reduce, weight_update, span, 2)
    for result in together:
        assert result == pytest.approx(alone, rel=1e-4, abs=1e-5)
    assert _train("flat", "replicated", 0, 1) != pytest.approx(alone, rel=1e-3)


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
    assert torch.equal(norm.running_var, torchs.running_var)
    assert torch.equal(norm.eval()(images()), torchs.eval()(images()))


@pytest.mark.parametrize(("samples", "local_groups"), [(0, 1), (8, 1), (4, 2), (1, 8)])
def test_spans_of_one_rank(samples: int, local_groups: int) -> None:
    assert TorchRanks(0, 1, torch.device("cpu")).make_span(samples, 8) == Span(local_groups)


@pytest.mark.parametrize(("world_size", "samples"), [(1, 3), (1, 16), (4, 12), (3, 16)])
def test_spans_that_cut_through_a_share_are_refused(world_size: int, samples: int) -> None:
    with pytest.raises(UserError, match="model_bn_span"):
        TorchRanks(0, world_size, torch.device("cpu")).make_span(samples, 8)


def test_nodes_of_different_size_are_refused() -> None:
    from reference.torch.parallel import _make_node_groups

    with pytest.raises(UserError, match="evenly"):
        _make_node_groups(TorchRanks(0, 3, torch.device("cpu"), ranks_per_node=2))
