"""The cost model: formulas against hand numbers, limits, and what it says of published times."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cepheid.measure.engine.recorded_points import PointFolder
from cepheid.measure.studies.projection import cost_model, project
from cepheid.measure.studies.projection.cost_model import (
    Costs,
    Link,
    Network,
    Training,
    find_link,
    find_row,
    predict_seconds,
    predict_step,
    read_links,
    ring_seconds,
    tree_seconds,
)
from cepheid.measure.studies.scaling.points import Point
from cepheid.measure.studies.scaling.scaling import write_scaling
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.tools.measure.__main__ import main
from tests.measure.test_scaling import LINK, point

SLOW = Link("slow", 1e-5, 1e9)
FAST = Link("fast", 1e-6, 1e11)
IDEAL = Link("ideal", 0.0, math.inf)
TRAINING = Training(8000, 1000, 2.0, {64: 10.0, 256: 12.0})
COSTS = Costs(fixed_seconds=0.001, sample_seconds=0.002, gradient_bytes=4e6, update_seconds=0.0005)
POWERS = st.integers(0, 11).map(lambda power: 2**power)


def test_rings_and_trees_by_hand() -> None:
    # 4 members, 8 MB at 1 GB/s: 6 messages of 2 MB and 10 us each.
    assert ring_seconds(SLOW, 4, 8e6) == pytest.approx(6 * (1e-5 + 2e-3))
    assert ring_seconds(SLOW, 1, 8e6) == 0
    # As many bytes, in 2 log2(4) messages after one another.
    assert tree_seconds(SLOW, 4, 8e6) == pytest.approx(4e-5 + 12e-3)
    assert tree_seconds(SLOW, 1, 8e6) == 0


def test_two_levels_by_hand() -> None:
    # 2 nodes of 4: a ring of 8 MB within, and of the 2 MB that each device has between nodes.
    nodes = Network(FAST, SLOW, 4, "nodes")
    within, between = 6 * (1e-6 + 2e6 / 1e11), 2 * (1e-5 + 1e6 / 1e9)
    assert nodes.all_reduce_seconds(8, 8e6) == pytest.approx(within + between)
    assert nodes.all_reduce_seconds(4, 8e6) == pytest.approx(within)
    ring = replace(nodes, shape="ring")
    assert ring.all_reduce_seconds(8, 8e6) == pytest.approx(14 * (1e-5 + 1e-3))
    assert ring.all_reduce_seconds(4, 8e6) == pytest.approx(within)


def test_a_torus_by_hand() -> None:
    torus = Network(SLOW, SLOW, 1, "torus")
    assert [find_row(devices) for devices in (1, 2, 8, 12, 64, 2048)] == [1, 1, 2, 3, 8, 32]
    # 2 x 4: 8 MB over 2, then 4 MB over 4.
    by_hand = 2 * (1e-5 + 4e-3) + 6 * (1e-5 + 1e-3)
    assert torus.all_reduce_seconds(8, 8e6) == pytest.approx(by_hand)


def test_a_step_and_a_training_by_hand() -> None:
    network = Network(SLOW, SLOW, 8, "nodes")
    step = predict_step(COSTS, network, 2, 64)
    assert step.compute == pytest.approx(0.001 + 32 * 0.002)
    assert step.exposed == pytest.approx(2 * (1e-5 + 2e-3))
    assert step.seconds == pytest.approx(0.065 + 0.00402 + 0.0005)
    # 10 epochs of 125 steps, 5 evaluations of 500 samples that take a third of a training sample.
    expected = 1250 * step.seconds + 5 * 500 * 0.002 / 3
    assert predict_seconds(COSTS, network, TRAINING, 2, 64) == pytest.approx(expected)


def test_what_hides_and_what_binds() -> None:
    network = Network(SLOW, SLOW, 8, "nodes")
    hidden = predict_step(replace(COSTS, overlap=1.0), network, 2, 64)
    assert hidden.exposed == 0
    sharded = replace(COSTS, is_update_sharded=True)
    assert predict_step(sharded, network, 4, 64).update == pytest.approx(0.0005 / 4)
    starved = replace(COSTS, input_samples_per_second=100.0)
    step = predict_step(starved, network, 1, 64)
    assert step.seconds - step.update == pytest.approx(0.64)
    counted = replace(COSTS, collectives=10, overlap=1.0)
    assert predict_step(counted, network, 2, 64).exposed == pytest.approx(10 * 2e-5)


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


def test_epochs_between_known_batch_sizes() -> None:
    assert TRAINING.epochs_at(64) == 10
    assert TRAINING.epochs_at(8) == 10
    assert TRAINING.epochs_at(128) == pytest.approx(11)  # halfway on a logarithmic axis
    with pytest.raises(ValueError, match="known up to 256"):
        TRAINING.epochs_at(257)


def test_replicas_by_hand() -> None:
    costs = Costs(0.001, 0.002, 0.0, divided=0.6, exponent=0.5)
    ideal = Network(IDEAL, IDEAL, 8)
    # 64 samples on 32 devices, of which 4 make a replica: 8 samples each, of which 0.6 is divided.
    by_hand = 0.001 + 0.002 * 8**0.5 * (0.4 + 0.6 / 4)
    assert predict_step(costs, ideal, 32, 64, 4).seconds == pytest.approx(by_hand)
    # Devices that have less than a sample share one.
    half = 0.001 + 0.002 * 0.5**0.5
    assert predict_step(costs, ideal, 128, 64).seconds == pytest.approx(half)


def test_links_have_sources_and_unknown_ones_are_named() -> None:
    assert all(facts["source"] for facts in read_links().values())
    assert find_link("infiniband_ndr").bytes_per_second == 50e9
    with pytest.raises(UserError, match='did you mean "nvlink5"'):
        find_link("nvlink6")


def test_one_device_takes_what_was_measured() -> None:
    costs = project.read_costs(point(1))
    network = Network(SLOW, SLOW, 8)
    assert predict_step(costs, network, 1, 32).seconds == pytest.approx(0.1 * 1.0)
    assert costs.update_seconds == pytest.approx(0.1 * 4 / 100)


def test_a_measured_link_takes_the_measured_times() -> None:
    for ranks in (2, 4):
        link = project.read_link(LINK, ranks)
        for size, seconds in ((4096, LINK.small_seconds), (2**23, LINK.large_seconds)):
            assert ring_seconds(link, ranks, size) == pytest.approx(seconds)


def test_measured_ranks_are_predicted() -> None:
    check = project.check_point(point(2))
    assert check is not None
    assert project.check_point(point(1)) is None
    link = project.read_link(LINK, 2)
    summing = ring_seconds(link, 2, 80e6) + 2 * ring_seconds(link, 2, 0)
    assert check.predicted_seconds == pytest.approx(0.1 + summing)
    assert check.shared_seconds == pytest.approx(0.105 + summing)


def test_a_bound_input_stays_bound() -> None:
    def slow_input(of: Point) -> Point:
        return replace(of, seconds={**of.seconds, "alone, real": (0.2, 0.2, 0.2)})

    costs = project.read_costs(slow_input(point(1)))
    assert costs.input_samples_per_second == pytest.approx(32 / 0.2)


def test_devices_share_the_largest_known_batch() -> None:
    rows = cost_model.project(COSTS, Network(FAST, FAST, 8), TRAINING, [1, 4, 8, 256, 512], 64)
    assert [(row.devices, row.batch_size) for row in rows] == [
        (1, 64),
        (4, 256),
        (8, 256),
        (256, 256),
    ]
    assert rows[0].efficiency == pytest.approx(1)
    assert [row.epochs for row in rows] == [10, 12, 12, 12]


def test_epochs_come_from_the_reference_convergence_points() -> None:
    epochs = project.read_epochs(definition.load("resnet50", "mini"))
    assert epochs[64] == pytest.approx(15.2, abs=1)
    assert project.read_epochs(definition.load("resnet50", "full")) == {}


# The command -------------------------------------------------------------------------------------


def write_folder(path: Path) -> Path:
    """Write points of one and of two ranks, and return their folder."""
    kept = PointFolder(path, Point)
    for ranks in (1, 2):
        kept.keep(point(ranks))
    write_scaling(kept, {"benchmark": "resnet50", "scale": "mini", "mode": "weak"})
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path)


def test_ranks_that_share_a_model_are_not_projected(folder: Path) -> None:
    facts = {"benchmark": "resnet50", "scale": "mini", "mode": "weak"}
    kept = PointFolder(folder, Point)
    write_scaling(kept, {**facts, "overrides": ["spatial_partitions=1", "pipeline_stages=2"]})
    with pytest.raises(UserError, match=r"\(pipeline=2:1f1b:4\).*fix: measure without"):
        main(["project", "resnet50", "--from", str(folder)])


def test_from_a_measurement(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figure = folder / "p.json", folder / "p.png"
    call = ["resnet50", "--from", str(folder), "--within", "nvlink4"]
    call += ["--between", "infiniband_hdr", "--output", str(out), "--figure", str(figure)]
    assert main(["project", *call]) == 0
    said = capsys.readouterr().out
    assert "Measured here, beside the model" in said
    assert "minutes to the target" in said
    assert "256 devices and more would have less than a sample each" in said
    assert figure.read_bytes().startswith(b"\x89PNG")
    facts = json.loads(out.read_text())
    rows = facts["projections"]
    assert [row["devices"] for row in rows] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert facts["costs"]["input_samples_per_second"] is None
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds, reverse=True)
