"""The timed generation loop with a task that makes nothing and needs no framework."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.run.generate import GenerationProgress, run
from cepheid.reference.run.log import RunLogWriter
from cepheid.reference.run.progress import Progress, Stage
from cepheid.rules import definition
from cepheid.rules.definition import Generation
from tests.reference.run.scripted import ScriptedGenerator, execute

GOOD = {
    "generated_distance": 0.0,
    "distinct_share": 1.0,
    "new_share": 1.0,
    "copied_excess": -0.05,
    **dict.fromkeys(definition.load("galaxy_generation", "mini").reported, 0.0),
}


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> ScriptedGenerator:
    """A task whose seconds are those of the loop's clock."""
    made = ScriptedGenerator(GOOD)
    monkeypatch.setattr("cepheid.reference.run.generate.time.perf_counter", lambda: made.seconds)
    return made


@pytest.fixture
def config() -> RunConfig:
    chosen = definition.load("galaxy_generation", "mini")
    return configure(replace(chosen, generation=Generation((1, 10), (3, 2), 100)), seed=7)


def test_a_run_from_the_first_line_to_the_last_and_what_it_asks_of_its_task(
    config: RunConfig, task: ScriptedGenerator, tmp_path: Path
) -> None:
    outcome, events = execute(config, task, tmp_path / "result_0.txt")
    assert outcome.reached
    assert outcome.samples == 3 * 1 + 2 * 10
    keys = [event["key"] for event in events]
    of_a_count = ["generation_start", "generation_times", "generation_stop"]
    judged = ["eval_start", "eval_accuracy", "eval_stop", "run_stop"]
    judged += ["image_projections", "data_read"]
    assert keys[keys.index("run_start") :] == ["run_start", *of_a_count, *of_a_count, *judged]
    assert keys.index("weights_digest") < keys.index("init_stop")
    first, second = (event for event in events if event["key"] == "generation_times")
    assert first["value"] == {"sampling_seconds": [1.0] * 3, "decoding_seconds": [2.0] * 3}
    assert (first["metadata"]["images_count"], second["metadata"]["images_count"]) == (1, 10)
    assert len(second["value"]["sampling_seconds"]) == 2
    *_, accuracy, _, stop, _, _ = events
    for event in events[-6:-2]:
        assert event["metadata"]["samples_count"] == 23
    assert accuracy["value"] == GOOD["generated_distance"]
    assert accuracy["metadata"]["metrics"] == GOOD
    assert stop["metadata"]["status"] == "success"
    assert events[-2]["value"] == [len(task.judged)]
    assert [taken.seconds for taken in task.times] == [(3.0,) * 3, (3.0,) * 2]
    assert task.diary[:4] == ["drop_caches", "build", "warm_up 100", "synchronize"]
    sampled = [step for step in task.diary if step.startswith("sample")]
    assert sampled == ["sample 1 0", "sample 1 1", "sample 1 2", "sample 10 0", "sample 10 1"]
    where = task.diary.index("sample 10 0")
    assert task.diary[where - 1] == task.diary[where + 1] == "synchronize"
    assert task.diary[where + 2] == "synchronize", "after decoding"
    assert task.judged == "10 images of repetition 1"
    assert task.diary.index("open_data") > task.diary.index("sample 10 1")


def test_no_time_is_lost_between_repetitions(config: RunConfig, task: ScriptedGenerator) -> None:

    def lose_a_minute(progress: Progress) -> None:
        task.seconds += 60 * (progress.stage is Stage.GENERATING)

    run(config.definition, task, config, RunLogWriter(None), lose_a_minute)
    assert [taken.sampling_seconds for taken in task.times] == [(61.0,) * 3, (61.0,) * 2]
    assert [taken.decoding_seconds for taken in task.times] == [(2.0,) * 3, (2.0,) * 2]


@pytest.mark.parametrize("value", [0.5, math.nan])
def test_a_target_that_is_missed_aborts_and_says_why(
    config: RunConfig, task: ScriptedGenerator, tmp_path: Path, value: float
) -> None:
    task.quality = {**GOOD, "distinct_share": value}
    outcome, events = execute(config, task, tmp_path / "result_0.txt")
    assert not outcome.reached
    stop = next(event for event in events if event["key"] == "run_stop")
    assert stop["metadata"]["status"] == "aborted"
    assert "distinct_share" in stop["metadata"]["reason"]
    assert "NaN" not in (tmp_path / "result_0.txt").read_text()


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt("SIGTERM")])
def test_exactly_one_run_stop_on_errors(
    config: RunConfig, task: ScriptedGenerator, tmp_path: Path, error: BaseException
) -> None:
    task.error = error
    result, events = execute(config, task, tmp_path / "result_0.txt")
    assert result is error
    assert [event["key"] for event in events].count("run_stop") == 1
    assert str(error) in events[-1]["metadata"]["reason"]
    assert not (tmp_path / "result_0.txt").exists()


def test_progress_reports_the_stages(config: RunConfig) -> None:
    reports: list[Progress] = []
    run(config.definition, ScriptedGenerator(GOOD), config, RunLogWriter(None), reports.append)
    stages = " ".join(progress.stage.name for progress in reports)
    both = "GENERATING GENERATING GENERATING GENERATED GENERATING GENERATING GENERATED"
    assert stages == f"INITIALISING {both} EVALUATING EVALUATED"
    assert isinstance(reports[4], GenerationProgress)
    assert reports[4].times is not None
    assert reports[-1].quality == GOOD
