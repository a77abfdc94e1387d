"""Sums over rows and columns: as a flat sum, in order, with as many bytes as predicted."""

import gc
import threading
import weakref
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.futures import Future

from cepheid.measure.engine.byte_counts import count_bytes, predict_bytes
from cepheid.reference.machine.ranks import RankEndedError
from cepheid.reference.run.execution import AllReduce
from cepheid.reference.torch.parallel.mesh import Chain, RankMesh, make_data_parallel
from cepheid.reference.torch.parallel.plan import find_shape
from cepheid.reference.torch.ranks.collectives import detect_lost_rank
from cepheid.reference.torch.ranks.distributed import start_ranks
from cepheid.rules.errors import UserError
from tests.distributed import on_ranks

CPU = torch.device("cpu")
NUMBERS = 120_000  # a multiple of the ranks
SLOW_FOUR = pytest.param(4, (2, 2), marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("count", "per_node", "all_reduce", "shape"),
    [
        (6, 3, "flat", (1, 6)),
        (6, 3, "two_level", (2, 3)),
        (12, 1, "mesh", (3, 4)),
        (7, 1, "mesh", (1, 7)),
        (6, 1, "mesh:6", (6, 1)),
        (1, 1, "mesh", (1, 1)),
        *((3, 2, way, None) for way in ("two_level", "mesh:2", "mesh:4")),
    ],
)
def test_rows_and_columns_or_a_mesh_that_does_not_fit(
    count: int, per_node: int, all_reduce: str, shape: tuple[int, int] | None
) -> None:
    refused = nullcontext() if shape else pytest.raises(UserError, match="do not fill")
    with refused:
        assert find_shape(AllReduce.parse(all_reduce), count, per_node) == shape


def test_a_chain_keeps_the_order_of_the_calls_and_hands_on_errors() -> None:
    """Even if the first collective ends in another order, which may differ from rank to rank."""
    ends: dict[int, Future[Any]] = {}
    second = []

    def start_first(values: Any) -> "Future[Any]":
        return ends.setdefault(int(values), Future())

    def start_second(values: Any) -> "Future[Any]":
        second.append(int(values))
        done: Future[Any] = Future()
        done.set_result(10 * values)
        return done

    chain = Chain(CPU, start_first, start_second)
    results = [chain(torch.tensor(number)) for number in range(3)]
    for number in (2, 0):
        thread = threading.Thread(target=ends[number].set_result, args=(torch.tensor(number),))
        thread.start()
        thread.join()
    assert second == [0]
    assert not results[2].done()
    ends[1].set_result(torch.tensor(1))
    assert second == [0, 1, 2]
    assert [int(result.wait()) for result in results] == [0, 10, 20]

    def fail(values: Any) -> "Future[Any]":
        raise RuntimeError("Connection closed by peer")

    def start(values: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        done.set_result(values)
        return done

    with pytest.raises(RankEndedError), detect_lost_rank():
        Chain(CPU, start, fail)(torch.ones(1)).wait()


def _outlive_groups() -> tuple[bool, str]:
    """Whether a mesh leaves its groups to be destroyed, and what it says afterwards.

    It has groups of its own: a model that DDP wraps keeps that of all ranks alive.
    """
    with start_ranks() as ranks:
        mesh = RankMesh(ranks, (ranks.world_size, 1))
        mesh.all_reduce(torch.ones(4)).wait()
        groups = [weakref.ref(group) for group in torch.distributed.distributed_c10d._world.pg_map]
        assert len(groups) == 3  # of all ranks, and one in each direction
    gc.collect()
    with pytest.raises(RuntimeError) as raised:
        mesh.all_reduce(torch.ones(4)).wait()
    return all(group() is None for group in groups), str(raised.value)


def test_a_mesh_does_not_keep_its_groups_alive() -> None:
    """Its last steps run in threads of the groups; one that destroys its own group aborts."""
    for are_gone, problem in on_ranks(2, _outlive_groups):
        assert are_gone
        assert "is destroyed" in problem


def _sum(shape: tuple[int, int]) -> tuple[list[list[int]], bool, bool]:
    """Bytes by link of an all-reduce; whether it is right; whether scatter and gather are."""
    with start_ranks() as ranks:
        mesh = RankMesh(ranks, shape)
        mine = torch.arange(NUMBERS, dtype=torch.float32) * (ranks.rank + 1)
        total = torch.arange(NUMBERS, dtype=torch.float32) * sum(range(1, ranks.world_size + 1))
        mesh.all_reduce(mine.clone()).wait()  # connects
        results = []
        table = count_bytes(ranks, lambda: results.append(mesh.all_reduce(mine.clone()).wait()))
        part = mesh.reduce_scatter(mine).wait()
        share = len(total) // ranks.world_size
        is_part = torch.equal(part, total[mesh.place * share :][:share])
        is_same = torch.equal(mesh.all_gather(part).wait(), total)
        return table, torch.equal(results[0], total), is_part and is_same


@pytest.mark.parametrize(("count", "shape"), [(2, (1, 2)), (2, (2, 1)), SLOW_FOUR])
def test_sums_send_the_bytes_of_the_formula(count: int, shape: tuple[int, int]) -> None:
    for table, is_sum, is_scattered in on_ranks(count, _sum, shape):
        assert is_sum
        assert is_scattered
        within, between = predict_bytes(4 * NUMBERS, shape)
        for rank, sent in enumerate(table):
            row, column = divmod(rank, shape[1])
            in_row = sum(n for other, n in enumerate(sent) if other // shape[1] == row)
            in_column = sum(n for other, n in enumerate(sent) if other % shape[1] == column)
            assert in_row == pytest.approx(within, rel=0.02, abs=5000)
            assert in_column == pytest.approx(between, rel=0.02, abs=5000)
            assert sum(sent) - in_row - in_column < 5000  # no other link carries gradients


def _train(shape: tuple[int, int]) -> list[float]:
    """Weights after two steps of a network with several buckets."""
    with start_ranks() as ranks:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 3))
        parallel = make_data_parallel(model, ranks, shape, bucket_mib=1e-4)
        batch = torch.randn(8, 9, generator=torch.Generator().manual_seed(1))
        share = ranks.split_batch(len(batch))
        for _ in range(2):
            parallel(batch[ranks.rank * share :][:share]).pow(2).mean().backward()
            torch.optim.SGD(model.parameters(), lr=1.0).step()
            model.zero_grad()
        return [float(v) for p in model.parameters() for v in p.detach().flatten()]


@pytest.mark.parametrize(("count", "shape"), [(2, (2, 1)), SLOW_FOUR])
def test_gradients_over_a_mesh_are_those_of_one_rank(count: int, shape: tuple[int, int]) -> None:
    alone = _train((1, 1))
    for weights in on_ranks(count, _train, shape):
        assert weights == pytest.approx(alone, rel=1e-4, abs=1e-6)
