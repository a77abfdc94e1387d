"""Benchmarks whose update is shared out: two nodes of two ranks each do what one rank does."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from tests.distributed import on_ranks

Result = tuple[dict[str, float], list[float]]


def result_on_this_rank(trained: Callable[[TorchRanks], Any]) -> Result:
    """The quality that a task reaches on this process' rank, and a sample of its weights."""
    torch.set_num_threads(1)
    with start_ranks() as ranks:
        ranks = dataclasses.replace(ranks, ranks_per_node=min(2, ranks.world_size))
        task = trained(ranks)
        task.evaluation_batch = 4
        quality = task.evaluate()
        weights = torch.cat([p.detach().flatten() for p in task.model.parameters()])
        return quality, weights[:: max(1, len(weights) // 1000)].tolist()


def assert_four_ranks_do_what_one_does(
    on_this_rank: Callable[[Path, list[str]], Result], data_root: Path, overrides: list[str]
) -> None:
    """``on_this_rank`` is a function of a module, for processes to find."""
    (alone,) = on_ranks(1, on_this_rank, data_root, overrides)
    first, *others = on_ranks(4, on_this_rank, data_root, overrides)
    assert all(other == first for other in others)
    assert first[0] == pytest.approx(alone[0], rel=1e-4)
    assert first[1] == pytest.approx(alone[1], rel=1e-4, abs=1e-5)
