"""`cepheid measure scaling`: made-up turns, and commands on tiny definitions."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cepheid.measure.engine import own_process
from cepheid.measure.engine.noise import INPUTS
from cepheid.measure.engine.recorded_points import read_points
from cepheid.measure.studies.scaling import ranks, scaling
from cepheid.measure.studies.scaling.points import ALONE, STRONG, TOGETHER, WEAK, Job, Point
from cepheid.measure.studies.scaling.ranks import keep_to_processors
from cepheid.rules.errors import UserError
from cepheid.rules.host import usable_processors
from cepheid.tools.measure.__main__ import main
from tests import assert_refused, tiny
from tests.distributed import on_ranks
from tests.processes import warm_context

pytest.importorskip("torch", reason="measuring needs the extra torch")
pytest.importorskip("matplotlib", reason="the figure needs the extra site")


def point(ranks: int) -> Point:
    """Return a point with 100 ms a step alone and 125 ms together, and 80 MB of gradients."""
    alike = ("alone, real", "alone, synthetic", "together, synthetic")
    seconds = {**dict.fromkeys(alike, (0.1, 0.2, 0.1)), "together, real": (0.125, 0.25, 0.125)}
    if ranks > 1:
        seconds["independent, synthetic"] = (0.105, 0.21, 0.105)
    phases = {"data": 5.0, "forward": 30.0, "backward": 60.0, "communication": 20.0}
    return Point(
        ranks=ranks,
        batch_size=32 * ranks,
        alone_batch_size=32,
        seconds=seconds,
        phases_ms={**phases, "update": 9.0, "other": 1.0},
        implementation={"framework": "none"},
        load_before=0.0,
    )


def test_efficiency_is_compared_turn_by_turn_and_slower_real_data_bind() -> None:
    found = point(4).efficiency("real")
    assert found.median == pytest.approx(0.8)  # although a turn took twice as long
    assert found.first_quartile == pytest.approx(0.8)
    assert point(4).efficiency("synthetic").median == pytest.approx(1.0)
    ceiling = point(4).ceiling()
    assert ceiling is not None
    assert ceiling.median == pytest.approx(1 / 1.05)
    assert point(1).ceiling() is None
    shared = replace(point(4), batch_size=32)
    assert shared.efficiency("synthetic").median == pytest.approx(1 / 4)
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
    found = [shared[key] for key in ("compute", "communication", "other")]
    assert found == pytest.approx([0.6, 0.2, 0.2])


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


# The command -------------------------------------------------------------------------------------


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "_count_places", lambda: (2, "processors"))


def test_a_launcher_has_the_say_on_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="the launcher has started 2 ranks"):
        main(["scaling", "galaxy_shape", "--ranks", "4"])


@pytest.mark.usefixtures("two_processors")
def test_one_and_two_ranks_of_a_tiny_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    warm_context()
    data = {"train_samples": 48, "evaluation_samples": 21}
    folder = tmp_path / "benchmarks"
    tiny.install(folder, monkeypatch, "resnet50", data=data, model={"width": 4})
    call = ["resnet50", "--ranks", "1,2", "--batch-size", "4", "--rounds", "3"]
    call += ["--turn-seconds", "0.01", "--set", "precision=fp32", "--set", "model_bn_span=4"]
    call += ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "out")]
    assert main(["scaling", *call]) == 0
    said = capsys.readouterr().out
    for text in ("weak scaling", "samples/s", "ceiling", "2 ranks: input"):
        assert text in said
    assert (tmp_path / "out" / "scaling.png").read_bytes().startswith(b"\x89PNG")
    facts, (one, two) = read_points(tmp_path / "out", "scaling.json", Point, "scaling")
    assert facts["configuration"]["mode"] == "weak"
    assert (one.ranks, one.batch_size, two.ranks, two.batch_size) == (1, 4, 2, 8)
    assert one.efficiency("real").median == 1
    assert two.implementation["ranks"] == 2
    assert two.implementation["threads_per_rank"] == 1
    assert len(two.rates(ALONE, "real")) == len(two.rates(TOGETHER, "synthetic")) == 3
    assert two.phases_ms["communication"] > 0
    assert sum(two.shares.values()) == pytest.approx(1)
    assert main(["scaling", *call]) == 0
    assert "nothing to measure" in capsys.readouterr().out
    assert_refused("mode was", main, ["scaling", *call, "--strong"])


@pytest.mark.usefixtures("two_processors")
def test_one_and_two_ranks_generate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warm_context()
    call = ["scaling", "galaxy_generation", "--batch-size", "6", "--rounds", "3"]
    call += ["--turn-seconds", "0.01", "--set", "compile=off", "--set", "precision=fp32"]
    assert_refused("generates from noise and reads no data", main, [*call, "--input", "real"])
    assert_refused(r"expected 1 to 5,000, the most images", main, [*call, "--batch-size", "5001"])
    assert main([*call, "--ranks", "1,2", "--output", str(tmp_path)]) == 0
    assert "weak scaling" in capsys.readouterr().out
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    _, (one, two) = read_points(tmp_path, "scaling.json", Point, "scaling")
    assert (one.batch_size, two.batch_size, two.alone_batch_size) == (6, 12, 6)
    assert two.phases_ms["sampling"] > 0 < two.phases_ms["decoding"]
    assert two.shares["compute"] > 0.5
    assert two.ceiling() is not None


@pytest.mark.usefixtures("two_processors")
def test_a_number_of_ranks_that_fails_is_named_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[int] = []

    def run(count: int, function: object, job: Job) -> Any:
        assert function is ranks.measure_ranks
        tried.append(count)
        if tried == [1, 2]:
            raise UserError("no memory")
        return point(count)

    monkeypatch.setattr(own_process, "run_on_ranks", run)
    call = ["galaxy_shape", "--input", "synthetic", "--output", str(tmp_path)]
    assert main(["scaling", *call]) == 1
    assert "2 ranks (2 of 2): not measured: no memory" in capsys.readouterr().out
    assert main(["scaling", *call]) == 0
    assert tried == [1, 2, 2]
    table = json.loads((tmp_path / "scaling.json").read_text())["table"]
    assert [row["ranks"] for row in table] == [1, 2]
