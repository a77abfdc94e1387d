"""Which sentences are trained together: all of them once, like lengths, for any number of ranks."""

from itertools import pairwise

import numpy as np
import pytest

from cepheid.reference.data.order import SampleStream
from cepheid.reference.data.sentences.batches import (
    GLOBAL,
    LOCAL,
    RANDOM,
    ROUND_ROBIN,
    BatchOrder,
    Bucketing,
    Padding,
    measure_padding,
)
from tests import assert_raises

SEED, EPOCHS = 4, 3
BUCKETINGS = (
    Bucketing(),
    Bucketing(GLOBAL, 5),
    Bucketing(GLOBAL, 1000),
    Bucketing(LOCAL, 4, hosts=3),
    Bucketing(ROUND_ROBIN, 4, hosts=3),
)
SIZES = ((240, 12), (250, 12), (100, 32), (30, 40))  # whole batches, batches in two epochs, …


def draw_lengths(size: int) -> np.ndarray:
    random = np.random.default_rng(1)
    source = random.integers(2, 40, size)
    return np.stack([source, source + random.integers(0, 5, size)], axis=1)


def make_order(
    bucketing: Bucketing, size: int = 240, batch: int = 12, seed: int = SEED
) -> BatchOrder:
    return BatchOrder(draw_lengths(size), seed, batch, bucketing)


@pytest.mark.parametrize("bucketing", BUCKETINGS, ids=str)
@pytest.mark.parametrize(("size", "batch"), SIZES)
def test_every_epoch_has_every_sample_once(bucketing: Bucketing, size: int, batch: int) -> None:
    order = make_order(bucketing, size, batch)
    taken = [order.take(samples) for samples in range(0, EPOCHS * size, batch)]
    assert {len(rows) for rows in taken} == {batch}
    stream = np.concatenate(taken)
    for epoch in range(EPOCHS):
        assert sorted(stream[epoch * size : (epoch + 1) * size]) == list(range(size))


@pytest.mark.parametrize("bucketing", BUCKETINGS, ids=str)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_ranks_share_the_same_batch(bucketing: Bucketing, world_size: int) -> None:
    one, *orders = [make_order(bucketing) for _ in range(world_size + 1)]
    for samples in range(0, 480, 12):
        ranks = [order.share(samples, rank, world_size) for rank, order in enumerate(orders)]
        assert {len(rows) for rows in ranks} == {12 // world_size}
        assert sorted(np.concatenate(ranks)) == sorted(one.take(samples))
        assert all(np.all(np.diff(one.lengths[rows, 1]) >= 0) for rows in ranks)


@pytest.mark.parametrize("bucketing", BUCKETINGS, ids=str)
def test_a_batch_is_a_function_of_seed_and_samples(bucketing: Bucketing) -> None:
    """Whatever was asked for before: a run that continues sees what it would have seen."""
    whole = make_order(bucketing)
    taken = [whole.take(samples) for samples in range(0, 720, 12)]
    for samples in (0, 132, 468, 708):
        assert np.array_equal(make_order(bucketing).take(samples), taken[samples // 12])
    assert not np.array_equal(make_order(bucketing, seed=SEED + 1).take(0), taken[0])
    assert not np.array_equal(taken[0], taken[20]), "the second epoch is the first one again"


def test_random_batches_are_those_of_the_stream() -> None:
    """Results of benchmarks that were measured with them stay as they are."""
    order, stream = make_order(Bucketing()), SampleStream(SEED, 240)
    lengths = order.lengths
    for samples in (0, 12, 17, 230):
        rows, _ = stream.take(samples, 12)
        assert np.array_equal(order.take(samples), rows)
        by_length = rows[np.lexsort((rows, lengths[rows, 0], lengths[rows, 1]))]
        for rank in range(3):
            assert np.array_equal(order.share(samples, rank, 3), by_length[rank::3])


def test_a_window_is_sorted_its_batches_are_not_and_begin_at_whole_ones() -> None:
    order = make_order(Bucketing(GLOBAL, 10))
    longest = [order.lengths[order.take(samples)].max() for samples in range(0, 240, 12)]
    assert longest != sorted(longest)
    for first in (0, 10):
        by_length = sorted(range(first, first + 10), key=lambda number: longest[number])
        ends = [
            (order.lengths[order.take(n * 12)].max(axis=1).min(), longest[n]) for n in by_length
        ]
        assert all(here[1] <= after[0] for here, after in pairwise(ends))
    cut = "17 samples are not a number of batches of 12"
    assert_raises(ValueError, cut, make_order(Bucketing(GLOBAL, 5)).take, 17)


def test_hosts_take_turns_or_keep_to_their_parts() -> None:
    """Of turns, batches 0, 3, 6 and 9 are the first host's window: sorted among each other."""
    turns, drawn = make_order(Bucketing(ROUND_ROBIN, 4, hosts=3)), make_order(Bucketing())
    local = make_order(Bucketing(LOCAL, 4, hosts=3))
    for host in range(3):
        part, in_turn = slice(4 * host, 4 * host + 4), range(host, 12, 3)
        for order, numbers, rows in ((turns, in_turn, slice(12)), (local, range(4), part)):
            mine, raw = (
                np.concatenate([each.take(number * 12)[rows] for number in numbers])
                for each in (order, drawn)
            )
            assert sorted(mine) == sorted(raw)
        for number in range(4):
            assert set(local.take(number * 12)[part]) == set(local.share(number * 12, host, 3))


def test_padding_is_counted_by_hand() -> None:
    order = BatchOrder(np.array([[1, 2], [3, 1], [2, 2], [5, 4]]), SEED, 4, Bucketing())
    alone = measure_padding(order, 1, batches=1)
    assert (alone.tokens, alone.places, alone.waited) == (20, 4 * (5 + 4), 4 * (5 + 4))
    # Sorted by target, then source: 1, 0 | 2, 3 dealt as (1, 2) and (0, 3).
    two = measure_padding(order, 2, batches=1)
    assert (two.tokens, two.places, two.waited) == (20, 2 * (3 + 2) + 2 * (5 + 4), 4 * (5 + 4))
    assert two.share == 1 - 20 / 28
    assert two.share_with_waiting == 1 - 20 / 36


def test_what_each_input_saves() -> None:
    """Windows save padding; only windows for all ranks save waiting as well."""

    def measure(bucketing: Bucketing) -> Padding:
        return measure_padding(make_order(bucketing, 3000, 24), world_size=3, batches=125)

    random, together = measure(Bucketing()), measure(Bucketing(GLOBAL, 16))
    local = measure(Bucketing(LOCAL, 16, hosts=3))
    turns = measure(Bucketing(ROUND_ROBIN, 16, hosts=3))
    assert random.tokens == together.tokens == local.tokens == turns.tokens
    assert together.share_with_waiting < 0.3 * random.share_with_waiting
    assert local.share < 0.5 * random.share
    assert local.share_with_waiting > 0.7 * random.share_with_waiting
    assert turns.share_with_waiting == pytest.approx(together.share_with_waiting, abs=0.02)


@pytest.mark.parametrize(
    "asked", [("sorted", 1, 1), (GLOBAL, 0, 1), (LOCAL, 1, 0), (GLOBAL, 1, 2), (RANDOM, 1, 2)]
)
def test_settings_that_make_no_sense(asked: tuple[str, int, int]) -> None:
    assert_raises(ValueError, r"expected input|has one host", Bucketing, *asked)
