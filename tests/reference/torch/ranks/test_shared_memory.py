"""Exchanges of ranks on one machine, and the batch norms that use them."""

import os
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cepheid.reference.machine.ranks import RankEndedError
from cepheid.reference.torch.batch_norm import SpanBatchNorm2d
from cepheid.reference.torch.ranks import shared_memory
from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from cepheid.reference.torch.ranks.shared_memory import Board, add, count_bytes, gather
from tests.distributed import on_ranks, send_messages

needs_folder = pytest.mark.skipif(
    not shared_memory.FOLDER.is_dir() or os.uname().machine not in shared_memory.PROCESSORS,
    reason="needs memory that processes can share",
)
SHAPES = [(2, 3), (2, 3), (5,), (), (2, 3), (4096,)]


def _exchange(rank: int) -> list[Any]:
    """Return what is gathered and added in many turns, some of which this rank begins late."""
    results: list[Any] = []
    for turn, shape in enumerate(SHAPES * 4):
        dtype = torch.float64 if turn % 4 == 0 else torch.float32
        values = torch.full(shape, float(turn), dtype=dtype) + rank
        if turn % 7 == rank:
            time.sleep(0.002)
        results += [gather(values).tolist(), add(values).tolist(), str(add(values).dtype)]
    return [*results, *_average(rank)]


class _Bucket:
    """A bucket of gradients as DDP hands it over, of several pieces, the last of which is short."""

    def __init__(self, rank: int) -> None:
        count = 2 * shared_memory.MOST_BYTES // 4 + 5
        self.gradients = torch.arange(count, dtype=torch.float32) * 6 * (rank + 1)

    def buffer(self) -> Any:
        return self.gradients


def _average(rank: int) -> list[float]:
    """Return every 997th gradient, averaged, and the last one."""
    bucket = _Bucket(rank)
    size = torch.distributed.get_world_size()
    mean = shared_memory.average_bucket(size, bucket).value()
    assert torch.equal(mean, torch.arange(len(mean)) * 3.0 * (size + 1))
    return [*mean[::997].tolist(), float(mean[-1])]


def _exchange_both_ways(folder: str) -> tuple[Any, Any, int]:
    shared_memory.FOLDER = Path(folder)
    with start_ranks() as ranks:
        fast = _exchange(ranks.rank)
        with send_messages():
            slow = _exchange(ranks.rank)
        links = [
            os.fstat(board._file.fileno()).st_nlink
            for board in shared_memory._boards.values()
            if board
        ]
    return fast, slow, len(links) - sum(links)


@needs_folder
@pytest.mark.parametrize("world_size", [2, 3])
def test_shared_memory_gives_what_messages_give(world_size: int) -> None:
    for fast, slow, nameless in on_ranks(
        world_size, _exchange_both_ways, str(shared_memory.FOLDER)
    ):
        assert fast == slow
        assert nameless == 1, "a file stays behind, or none was made"


def test_without_a_folder_ranks_send_messages(tmp_path: Path) -> None:
    for fast, slow, nameless in on_ranks(2, _exchange_both_ways, str(tmp_path / "absent")):
        assert fast == slow
        assert nameless == 0


def _wait_beside(path: str, seconds: float) -> None:
    board = Board(os.open(path, os.O_RDWR), 1, 2)
    Path(path).with_suffix(".ready").touch()
    time.sleep(seconds)
    del board


@needs_folder
@pytest.mark.parametrize(("seconds", "reason"), [(0.0, "has ended"), (60.0, "timed out")])
def test_a_lost_rank_is_an_error(
    seconds: float, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEPHEID_RANK_TIMEOUT", "0.3")
    path = tmp_path / "board"
    path.write_bytes(bytes(count_bytes(2)))
    process = get_context("fork").Process(target=_wait_beside, args=(str(path), seconds))
    process.start()
    try:
        while not path.with_suffix(".ready").exists():
            time.sleep(0.01)
        with pytest.raises(RankEndedError, match=reason):
            Board(os.open(path, os.O_RDWR), 0, 2).exchange(torch.zeros(3))
    finally:
        process.kill()
        process.join()


class _Messages(TorchDispatchMode):
    """The collectives that torch starts; what ends a run on CUDA is an error."""

    count = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += str(operation.name()).startswith("c10d::")
        if operation is torch.ops.aten.native_batch_norm_backward.default:
            *_, saved_mean, saved_inverse, _, _, wanted = args
            assert wanted[0] or None not in (saved_mean, saved_inverse), "CUDA requires the moments"
        return operation(*args, **(kwargs or {}))


def _normalise(samples: int) -> tuple[Any, ...]:
    """Return output, gradients, whether they lie channels last, and the messages each way."""
    batch = torch.randn(8, 6, 5, 5, generator=torch.Generator().manual_seed(1)) * 3 + 2
    with start_ranks() as ranks:
        share = ranks.split_batch(len(batch))
        norm = SpanBatchNorm2d(6, ranks.make_span(samples, share), 1e-5, 0.1)
        mine = batch[ranks.rank * share :][:share].to(memory_format=torch.channels_last)
        mine.requires_grad_()
        norm(mine).pow(3).sum().backward()  # the ranks find their memory
        counts = []
        for context in (send_messages, _Messages):
            mine.grad = norm.weight.grad = None
            with context(), _Messages() as forwards:
                out = norm(mine)
            with context(), _Messages() as backwards:
                out.pow(3).sum().backward()
            counts.append((forwards.count, backwards.count))
        assert mine.grad is not None
        assert norm.running_var is not None
        is_last = [
            each.is_contiguous(memory_format=torch.channels_last) for each in (out, mine.grad)
        ]
        weights = _sum(ranks, norm.weight.grad)
        return out.tolist(), mine.grad.tolist(), weights, norm.running_var.tolist(), is_last, counts


def _sum(ranks: TorchRanks, values: Any) -> list[float]:
    total: list[float] = ranks.sum(values).tolist()
    return total


@needs_folder
def test_norms_over_ranks_keep_the_layout_and_exchange_once_each_way() -> None:
    (alone,) = on_ranks(1, _normalise, 0)
    together = on_ranks(2, _normalise, 0)
    for place in (0, 1):
        whole = [image for result in together for image in result[place]]
        torch.testing.assert_close(torch.tensor(whole), torch.tensor(alone[place]))
    for _, _, weights, variance, is_last, counts in together:
        assert weights == pytest.approx(alone[2], rel=1e-4)
        assert variance == pytest.approx(alone[3], rel=1e-5)
        assert is_last == [True, True]
        assert counts == [(1, 1), (0, 0)], "one message each way, none in shared memory"
