"""The stream of training samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="seeding seeds torch too")

from cepheid.reference.data.order import SampleStream


def test_every_epoch_visits_every_sample_once_in_another_order() -> None:
    stream = SampleStream(seed=5, size=20)
    epochs = [stream.take(20 * epoch, 20)[0] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert not np.array_equal(epochs[0], epochs[1])


@given(first=st.integers(0, 200), cuts=st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_the_stream_does_not_depend_on_how_it_is_cut(first: int, cuts: list[int]) -> None:
    stream = SampleStream(seed=5, size=17)
    whole = stream.take(first, sum(cuts))
    position, parts = first, []
    for cut in cuts:
        parts.append(stream.take(position, cut))
        position += cut
    for column in (0, 1):
        assert np.array_equal(whole[column], np.concatenate([part[column] for part in parts]))


def test_seeds_differ_and_repeat() -> None:
    first, again, other = (SampleStream(seed, 50).take(0, 50) for seed in (1, 1, 2))
    assert np.array_equal(first[0], again[0])
    assert not np.array_equal(first[0], other[0])
    assert set(SampleStream(1, 500).take(0, 500)[1]) == set(range(8))
