"""Numbers of a measurement of scaling, from turns that were made up."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cepheid.measure.studies.scaling.points import INPUTS, STRONG, WEAK, LinkTimes, Point, spread
from cepheid.measure.studies.scaling.ranks import keep_to_processors
from cepheid.measure.studies.scaling.records import read_scaling
from cepheid.measure.studies.scaling.tasks import Job
from cepheid.rules.errors import UserError
from cepheid.rules.host import usable_processors
from tests.distributed import on_ranks

LINK = LinkTimes(4096, 2e-4, 2**23, 2**23 / 1e9 + 2e-4, 3)


def point(ranks: int) -> Point:
    """Return a point with 100 ms a step alone and 125 ms together, and 80 MB of gradients."""
    seconds = {
        "alone, real": (0.1, 0.2, 0.1),
        "together, real": (0.125, 0.25, 0.125),
        "alone, synthetic": (0.1, 0.2, 0.1),
        "together, synthetic": (0.1, 0.2, 0.1),
    }
    if ranks > 1:
        seconds["independent, synthetic"] = (0.105, 0.21, 0.105)
    phases = {"data": 5.0, "forward": 30.0, "backward": 60.0, "communication": 20.0}
    return Point(
        ranks=ranks,
        batch_size=32 * ranks,
        alone_batch_size=32,
        seconds=seconds,
        phases_ms={**phases, "update": 9.0, "other": 1.0},
        alone_phases_ms={**phases, "communication": 0.0, "update": 4.0, "other": 1.0},
        gradient_bytes=80_000_000,
        link=LINK if ranks > 1 else None,
        implementation={"framework": "none"},
        load_before=0.0,
    )


def test_efficiency_is_compared_turn_by_turn() -> None:
    found = point(4).efficiency("real")
    assert found.median == pytest.approx(0.8)  # although a turn took twice as long
    assert found.first_quartile == pytest.approx(0.8)
    assert point(4).efficiency("synthetic").median == pytest.approx(1.0)
    ceiling = point(4).ceiling()
    assert ceiling is not None
    assert ceiling.median == pytest.approx(1 / 1.05)
    assert point(1).ceiling() is None


def test_efficiency_of_strong_scaling_is_that_of_the_same_batch() -> None:
    shared = replace(point(4), batch_size=32)
    assert shared.efficiency("synthetic").median == pytest.approx(1 / 4)


def test_slower_real_data_show_that_input_binds() -> None:
    ratio = point(2).real_over_synthetic()
    assert ratio is not None
    assert ratio.median == pytest.approx(0.8)
    assert point(2).is_input_bound


def test_shares_use_the_words_of_the_tables() -> None:
    shares = point(2).shares
    assert shares["input"] == pytest.approx(5 / 125)
    assert shares["compute"] == pytest.approx(90 / 125)
    assert shares["communication"] == pytest.approx(20 / 125)
    assert sum(shares.values()) == pytest.approx(1)
    shared = replace(point(2), phases_ms={"pipeline": 60.0, "gather": 20.0, "other": 20.0}).shares
    assert [shared[key] for key in ("compute", "communication", "other")] == pytest.approx(
        [0.6, 0.2, 0.2]
    )


def test_a_point_survives_json() -> None:
    for each in (point(1), point(2)):
        assert Point.from_json(each.as_json()) == each


def test_spread_has_the_middle_half() -> None:
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]).first_quartile == 2.0


def test_a_rank_alone_shares_its_images_with_no_other() -> None:
    settings = ("spatial_partitions=2", "threads=1")
    job = Job("resnet50", "mini", 2, WEAK, INPUTS, 8, settings, Path("data"), 3, 1.0)
    alone, together = job.configure_alone(), job.configure()
    assert (alone.global_batch_size, together.global_batch_size) == (8, 16)
    assert alone.execution.own["spatial_partitions"] == "1"
    chosen = alone.execution.with_setting("precision", "bf16")
    assert job.configure_alone(chosen).execution == chosen
    both = job.configure(chosen).execution
    assert (both.precision, both.own["spatial_partitions"]) == ("bf16", "2")
    assert replace(job, mode=STRONG).configure().global_batch_size == 8


def _keep_to_one() -> set[int]:
    keep_to_processors(1)
    return os.sched_getaffinity(0)


@pytest.mark.skipif(usable_processors() < 2, reason="needs two processors")
def test_ranks_share_no_processor() -> None:
    first, second = on_ranks(2, _keep_to_one)
    assert len(first) == len(second) == 1
    assert not first & second


@pytest.mark.parametrize("setting", ["pipeline=2:gpipe:2", "tensor_ranks=2"])
def test_a_rank_alone_has_the_whole_model(setting: str) -> None:
    job = Job("transformer", "mini", 2, WEAK, INPUTS, 8, (setting,), Path("data"), 3, 1.0)
    key, _, count = setting.partition("=")
    assert job.configure_alone().execution.own[key] == "1"
    chosen = job.configure_alone().execution.with_setting("compile", "on")
    together = job.configure(chosen.with_setting("micro_batch", "4")).execution
    assert (together.own[key], together.compile, together.micro_batch) == (count, "off", "auto")


@pytest.mark.parametrize("text", ["{}", "[]", "nonsense", '{"points": [1]}'])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "scaling.json").write_text(text)
    with pytest.raises(UserError, match=r"not a scaling\.json"):
        read_scaling(tmp_path)
