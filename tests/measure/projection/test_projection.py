"""The cost model: formulas against hand numbers, limits, and what it says of published times."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cepheid.measure.studies.projection import cost_model
from cepheid.measure.studies.projection.cost_model import Costs, Link, Network, predict_step
from tests import assert_raises, assert_refused

SLOW = Link("slow", 1e-5, 1e9)
FAST = Link("fast", 1e-6, 1e11)
IDEAL = Link("ideal", 0.0, math.inf)
TRAINING = cost_model.Training(8000, 1000, 2.0, {64: 10.0, 256: 12.0})
COSTS = Costs(fixed_seconds=0.001, sample_seconds=0.002, gradient_bytes=4e6)
POWERS = st.integers(0, 11).map(lambda power: 2**power)


def test_rings_trees_two_levels_and_a_torus_by_hand() -> None:
    # 4 members, 8 MB at 1 GB/s: 6 messages of 2 MB and 10 us each.
    assert cost_model.ring_seconds(SLOW, 4, 8e6) == pytest.approx(6 * (1e-5 + 2e-3))
    assert cost_model.ring_seconds(SLOW, 1, 8e6) == 0
    # As many bytes, in 2 log2(4) messages after one another.
    assert cost_model.tree_seconds(SLOW, 4, 8e6) == pytest.approx(4e-5 + 12e-3)
    assert cost_model.tree_seconds(SLOW, 1, 8e6) == 0
    # 2 nodes of 4: a ring of 8 MB within, and of the 2 MB that each device has between nodes.
    nodes = Network(FAST, SLOW, 4, "nodes")
    within, between = 6 * (1e-6 + 2e6 / 1e11), 2 * (1e-5 + 1e6 / 1e9)
    assert nodes.all_reduce_seconds(8, 8e6) == pytest.approx(within + between)
    assert nodes.all_reduce_seconds(4, 8e6) == pytest.approx(within)
    ring = replace(nodes, shape="ring")
    assert ring.all_reduce_seconds(8, 8e6) == pytest.approx(14 * (1e-5 + 1e-3))
    assert ring.all_reduce_seconds(4, 8e6) == pytest.approx(within)
    torus = Network(SLOW, SLOW, 1, "torus")
    rows = {devices: cost_model.find_row(devices) for devices in (1, 2, 8, 12, 64, 2048)}
    assert rows == {1: 1, 2: 1, 8: 2, 12: 3, 64: 8, 2048: 32}
    # 2 x 4: 8 MB over 2, then 4 MB over 4.
    by_hand = 2 * (1e-5 + 4e-3) + 6 * (1e-5 + 1e-3)
    assert torus.all_reduce_seconds(8, 8e6) == pytest.approx(by_hand)


def test_a_step_a_training_and_replicas_by_hand() -> None:
    network = Network(SLOW, SLOW, 8, "nodes")
    step = predict_step(COSTS, network, 2, 64)
    assert step.compute == pytest.approx(0.001 + 32 * 0.002)
    assert step.exposed == pytest.approx(2 * (1e-5 + 2e-3))
    assert predict_step(replace(COSTS, overlap=1.0), network, 2, 64).exposed == 0
    assert step.seconds == pytest.approx(0.065 + 0.00402)
    # 10 epochs of 125 steps, 5 evaluations of 500 samples that take a third of a training sample.
    expected = 1250 * step.seconds + 5 * 500 * 0.002 / 3
    assert cost_model.predict_seconds(COSTS, network, TRAINING, 2, 64) == pytest.approx(expected)
    costs = Costs(0.001, 0.002, 0.0, divided=0.6, exponent=0.5)
    ideal = Network(IDEAL, IDEAL, 8)
    # 64 samples on 32 devices, of which 4 make a replica: 8 samples each, of which 0.6 is divided.
    by_hand = 0.001 + 0.002 * 8**0.5 * (0.4 + 0.6 / 4)
    assert predict_step(costs, ideal, 32, 64, 4).seconds == pytest.approx(by_hand)
    # Devices that have less than a sample share one.
    half = 0.001 + 0.002 * 0.5**0.5
    assert predict_step(costs, ideal, 128, 64).seconds == pytest.approx(half)


@given(POWERS, POWERS, st.sampled_from(["tree", "nodes", "ring", "torus"]))
def test_more_devices_never_take_longer_for_their_samples_and_never_gain_more_than_their_number(
    devices: int, per_node: int, shape: str
) -> None:
    network = Network(FAST, SLOW, per_node, shape)
    one = predict_step(COSTS, network, 1, 32).seconds
    more = predict_step(COSTS, network, devices, 32 * devices).seconds
    twice = predict_step(COSTS, network, 2 * devices, 64 * devices).seconds
    assert one <= more * (1 + 1e-12)
    if shape != "torus":  # in a torus of 2 x 4 a ring is as long as in one of 2 x 2 and more
        assert more <= twice * (1 + 1e-12)


@given(POWERS, st.floats(1e6, 1e11), st.floats(1e-7, 1e-4))
def test_slower_links_never_help(devices: int, rate: float, latency: float) -> None:
    link = Link("some", latency, rate)
    slower = Link("slower", 2 * latency, rate / 2)
    for shape in ("tree", "nodes", "ring", "torus"):
        seconds = [
            predict_step(COSTS, Network(each, each, 8, shape), devices, 4096).seconds
            for each in (IDEAL, link, slower)
        ]
        assert seconds == sorted(seconds)


@given(POWERS)
def test_perfect_links_scale_perfectly(devices: int) -> None:
    pure = Costs(0.0, 0.002, 4e6)
    network = Network(IDEAL, IDEAL, 8)
    one = predict_step(pure, network, 1, 4096).seconds
    if devices <= 4096:
        many = predict_step(pure, network, devices, 4096).seconds
        assert many == pytest.approx(one / devices)


def test_epochs_are_those_of_known_batch_sizes_and_links_have_sources() -> None:
    assert TRAINING.epochs_at(64) == 10
    assert TRAINING.epochs_at(8) == 10
    assert TRAINING.epochs_at(128) == pytest.approx(11)  # halfway on a logarithmic axis
    assert_raises(ValueError, "known up to 256", TRAINING.epochs_at, 257)
    rows = cost_model.project(COSTS, Network(FAST, FAST, 8), TRAINING, [1, 4, 8, 256, 512], 64)
    sizes = {row.devices: row.batch_size for row in rows}
    assert sizes == {1: 64, 4: 256, 8: 256, 256: 256}
    assert rows[0].efficiency == pytest.approx(1)
    assert [row.epochs for row in rows] == [10, 12, 12, 12]
    assert all(facts["source"] for facts in cost_model.read_links().values())
    assert cost_model.find_link("infiniband_ndr").bytes_per_second == 50e9
    assert_refused('did you mean "nvlink5"', cost_model.find_link, "nvlink6")
