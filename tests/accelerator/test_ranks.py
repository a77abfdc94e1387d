"""Collectives of the device: in a group of one, which one accelerator has, and of several."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from cepheid.reference.torch.parallel import mesh
from cepheid.reference.torch.parallel.mesh import Chain
from cepheid.reference.torch.ranks.collectives import Span
from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from cepheid.reference.torch.ranks.group_moments import normalize_over_ranks
from tests.accelerator import ACCELERATORS, PLACE, PLACES, Place, make_group_of_one, needs_two
from tests.distributed import on_ranks
from tests.tasks import assert_ranks_agree
from tests.test_benchmark_contract import configuration


@pytest.mark.parametrize("place", PLACES)
def test_batch_norm_over_ranks_has_the_gradients_of_batch_norm(place: Place) -> None:
    images = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    weight, bias, slope = torch.rand(3) + 1, torch.rand(3), torch.randn(4, 3, 5, 5)
    plain = [each.clone().requires_grad_() for each in (images, weight, bias)]
    expected = functional.batch_norm(plain[0], None, None, plain[1], plain[2], True, eps=1e-5)
    (expected * slope).sum().backward()
    own = [each.to(place).requires_grad_() for each in (images, weight, bias)]
    with make_group_of_one(place) as group:
        normalized, mean, _ = normalize_over_ranks(own[0], own[1], own[2], 1e-5, Span(1, group, 1))
        (normalized * slope.to(place)).sum().backward()
    torch.testing.assert_close(normalized.detach().cpu(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mean.cpu(), images.mean((0, 2, 3)), rtol=1e-4, atol=1e-4)
    for one, other in zip(own, plain, strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["reduce_scatter", "all_reduce", "all_gather"])
def test_collectives_of_a_mesh_end_in_futures(name: str, place: Place) -> None:
    """What waits for one may read its value on the device at once."""
    start = getattr(mesh, f"_start_{name}")
    with make_group_of_one(place) as group:
        chain = Chain(place, *mesh._over({"all": group}, "all", start) * 2)
        summed = [chain(torch.full((1000,), float(number), device=place)) for number in range(4)]
        totals = [future.wait().sum().item() for future in summed]
    assert totals == [0.0, 1000.0, 2000.0, 3000.0]


@pytest.mark.parametrize("place", PLACES)
def test_messages_of_python_travel(place: Place) -> None:
    with make_group_of_one(place):
        ranks = TorchRanks(0, 1, place)
        answers: list[Any] = [None]
        torch.distributed.all_gather_object(answers, {"device": str(ranks.device)})
        torch.distributed.barrier()
    assert answers == [{"device": str(place)}]


def _gather_uneven() -> list[float]:
    """Each rank has another number of values; all get the sum of all."""
    with start_ranks() as ranks:
        mine = torch.zeros(6, device=ranks.device)
        mine[ranks.rank : 2 * ranks.rank + 1] = 1.0 + ranks.rank
        total: list[float] = ranks.sum(mine).tolist()
    return total


ALL = [pytest.mark.accelerator, needs_two]


@pytest.mark.parametrize(
    ("kind", "world_size"),
    [("cpu", 2), pytest.param(PLACE.type, len(ACCELERATORS), marks=ALL, id="accelerators")],
)
def test_shares_of_unequal_size_are_summed(
    kind: str, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By gloo on processors, by the backend of the device on all accelerators."""
    monkeypatch.setenv("CEPHEID_DEVICE", kind)
    totals = on_ranks(world_size, _gather_uneven)
    expected = [0.0] * 6
    for rank in range(world_size):
        for place in range(rank, min(6, 2 * rank + 1)):
            expected[place] += 1.0 + rank
    assert totals == [expected] * world_size


@pytest.mark.accelerator
@needs_two
@pytest.mark.parametrize(
    "setting", ["weight_update=sharded", "weight_update=overlapped", "all_reduce=mesh"]
)
@pytest.mark.parametrize("name", ["galaxy_shape", "resnet50"])
def test_two_ranks_train_as_one(
    name: str, setting: str, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEPHEID_DEVICE", PLACE.type)
    assert_ranks_agree(2, configuration, name, data_root, shared=(setting,), tolerance=1e-3)
