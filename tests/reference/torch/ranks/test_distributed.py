"""Ranks, reductions and group batch normalisation, on gloo ranks."""

import os
import re
import time
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import distributed as dist

from cepheid.measure.engine.own_process import find_free_port
from cepheid.reference.machine.ranks import TIMEOUT_VARIABLE, RankEndedError
from cepheid.reference.torch.batch_norm import GroupBatchNorm2d
from cepheid.reference.torch.ranks import distributed
from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from cepheid.rules.errors import UserError
from tests.distributed import on_ranks

BATCH, CHANNELS = 12, 3


def images() -> Any:
    return torch.randn(BATCH, CHANNELS, 4, 4, generator=torch.Generator().manual_seed(1)) * 3 + 2


def _normalise() -> tuple[list[float], list[float], list[float], list[float]]:
    with start_ranks() as ranks:
        share = ranks.split_batch(BATCH)
        mine = images()[ranks.rank * share : (ranks.rank + 1) * share].requires_grad_()
        norm = GroupBatchNorm2d(CHANNELS, 1e-3, 0.99)
        out = norm(mine)
        # A loss that is not linear in the output, summed over ranks, so that gradients flow
        # through the shared statistics too.
        out.pow(3).sum().backward()
        assert mine.grad is not None
        gradients = [p.grad for p in (norm.weight, norm.bias) if p.grad is not None]
        return (
            out.detach().flatten().tolist(),
            mine.grad.flatten().tolist(),
            ranks.sum(torch.stack(gradients)).flatten().tolist(),
            [*norm.running_mean.tolist(), *norm.running_variance.tolist()],
        )


def test_group_batch_norm_equals_one_rank_with_the_whole_batch() -> None:
    alone = _normalise()
    together = on_ranks(3, _normalise)
    outputs = [value for result in together for value in result[0]]
    gradients = [value for result in together for value in result[1]]
    assert outputs == pytest.approx(alone[0], abs=1e-5)
    assert gradients == pytest.approx(alone[1], abs=1e-4)
    for result in together:
        assert result[2] == pytest.approx(alone[2], rel=1e-4)
        assert result[3] == pytest.approx(alone[3], rel=1e-5)


def test_group_batch_norm_has_keras_conventions() -> None:
    norm = GroupBatchNorm2d(CHANNELS, epsilon=1e-3, momentum=0.99)
    batch = images()
    out = norm(batch)
    mean, variance = batch.mean((0, 2, 3)), batch.var((0, 2, 3), correction=0)
    expected = (batch - mean[:, None, None]) / (variance[:, None, None] + 1e-3).sqrt()
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(norm.running_mean, 0.01 * mean)
    torch.testing.assert_close(norm.running_variance, 0.99 + 0.01 * variance)
    norm.eval()
    torch.testing.assert_close(
        norm(batch),
        (batch - norm.running_mean[:, None, None])
        / (norm.running_variance[:, None, None] + 1e-3).sqrt(),
    )


def _average_gradients() -> tuple[list[float], list[int]]:
    """Return the averaged gradients, and what the first rank says to all."""
    with start_ranks() as ranks:
        layer = torch.nn.Linear(2, 1)
        for parameter in layer.parameters():
            parameter.grad = torch.full_like(parameter, float(ranks.rank))
        ranks.average_gradients(layer.parameters())
        gradients = [p.grad for p in layer.parameters() if p.grad is not None]
        values = [float(value) for gradient in gradients for value in gradient.flatten()]
        return values, ranks.broadcast([1, 2] if ranks.is_first else [])


def test_gradients_are_averaged_and_all_ranks_hear_the_first() -> None:
    assert on_ranks(2, _average_gradients) == [([0.5, 0.5, 0.5], [1, 2])] * 2


def test_values_on_processors_are_summed_on_the_device_of_the_rank_and_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def all_reduce(values: Any) -> Any:
        assert values.device.type == "meta"
        return torch.full((5, 6), 2.0)

    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    ranks = TorchRanks(0, 2, torch.device("meta"))  # as NCCL asks for, without a GPU
    assert ranks.sum(torch.ones(5, 6)).tolist() == [[2.0] * 6] * 5


class Later:
    """What an asynchronous collective returns on a GPU: only the host's wait is long."""

    def __init__(self, values: Any, work: Any) -> None:
        self.values, self.work = values, work

    def cpu(self) -> Any:
        self.work.wait()
        return self.values


def _wait_for_a_late_rank() -> str:
    """Let the second rank come too late; return what the first one says of its wait for a sum."""
    os.environ[TIMEOUT_VARIABLE] = "3"

    def all_reduce(values: Any) -> Any:
        return Later(values, dist.all_reduce(values, async_op=True))

    try:
        with patch.object(distributed, "all_reduce", all_reduce), start_ranks() as ranks:
            ranks.sum(torch.ones(3))
            time.sleep(0 if ranks.is_first else 6)
            ranks.sum(torch.ones(3))
    except (RankEndedError, SystemExit) as error:
        return str(error)
    return "both came"


def test_a_late_rank_is_named_where_the_host_waits_for_an_asynchronous_sum() -> None:
    first, _ = on_ranks(2, _wait_for_a_late_rank)
    assert re.match(r"rank 1 \(\S+\) did not answer for \d s", first)


def test_one_process_needs_no_group_and_several_a_master_and_even_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with start_ranks() as ranks:
        assert (ranks.rank, ranks.world_size) == (0, 1)
        assert ranks.broadcast("x") == "x"
        ranks.barrier()
    assert not torch.distributed.is_initialized()
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(UserError, match="MASTER_ADDR"), start_ranks():
        pass
    ranks = TorchRanks(0, 3, torch.device("cpu"))
    assert ranks.split_batch(9) == 3
    with pytest.raises(UserError, match="multiple of 3"):
        ranks.split_batch(8)


def _say_where(told: list[dict[str, str]]) -> tuple[int, str]:
    """Return the ranks on this rank's node, or the exit code, and the message."""
    os.environ |= told[int(os.environ["RANK"])]
    try:
        with start_ranks() as ranks:
            return ranks.ranks_per_node, ""
    except UserError as error:
        return 2, str(error)
    except SystemExit as error:
        return int(error.code or 0), ""


def test_places_that_contradict_each_other_are_one_error_and_hosts_tell_the_others() -> None:
    told = [{"LOCAL_WORLD_SIZE": "1"}, {"LOCAL_WORLD_SIZE": "2"}]
    first, second = on_ranks(2, _say_where, told)
    assert first[0] == second[0] == 2
    assert "different numbers of ranks (1, 2)" in first[1]
    assert second[1] == ""
    assert on_ranks(2, _say_where, [{}, {}]) == [(2, "")] * 2


# What the tests themselves use --------------------------------------------------------------------


def _fail_on_the_second() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("the second")
    time.sleep(100)  # as a rank that waits for the others


def test_a_rank_that_fails_is_reported_while_another_waits() -> None:
    with pytest.raises(AssertionError, match=r"rank 1:\n(.|\n)*ValueError: the second"):
        on_ranks(2, _fail_on_the_second)


def test_ranks_meet_at_a_port_that_systems_give_to_no_client() -> None:
    ports = {find_free_port() for _ in range(50)}
    assert len(ports) > 10
    assert max(ports) < 32_768
