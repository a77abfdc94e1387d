"""Grids of ranks that share images: how an axis is split, and what is refused."""

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from hypothesis import given
from hypothesis import strategies as st

from cepheid.reference.run.execution import Grid
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.reference.torch.spatial.grid import split
from cepheid.rules.errors import UserError


def test_the_last_parts_are_smaller() -> None:
    assert [len(part) for part in split(38, 4)] == [10, 10, 10, 8]
    assert [len(part) for part in split(5, 4)] == [1, 1, 1, 2]
    assert split(3, 4) == (range(3),) * 4


@given(st.integers(1, 300), st.integers(1, 8))
def test_parts_cover_an_axis_once_and_none_is_empty(size: int, parts: int) -> None:
    pieces = split(size, parts)
    assert len(pieces) == parts
    assert all(pieces)
    if size >= parts:
        assert [index for piece in pieces for index in piece] == list(range(size))
        assert max(map(len, pieces)) == -(-size // parts)


@pytest.mark.parametrize(("text", "grid"), [("1", Grid()), ("4", Grid(4)), ("2x2", Grid(2, 2))])
def test_settings_name_grids(text: str, grid: Grid) -> None:
    assert Grid.parse(text) == grid
    assert grid.parts == max(1, grid.rows * grid.columns)


def test_ranks_that_do_not_form_replicas_are_refused() -> None:
    with pytest.raises(UserError, match="3 ranks cannot form replicas of 2 ranks"):
        TorchRanks(0, 3, torch.device("cpu")).partition(2)


def test_a_batch_is_shared_by_replicas() -> None:
    ranks = TorchRanks(3, 4, torch.device("cpu")).partition(2)
    assert (ranks.replica, ranks.replicas, ranks.split_batch(6)) == (1, 2, 3)
    with pytest.raises(UserError, match="2 replicas of 2 ranks: choose a multiple of 2"):
        ranks.split_batch(7)
