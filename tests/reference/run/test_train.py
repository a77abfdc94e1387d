"""The timed loop with a task that learns nothing and needs no framework."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.run.log import RunLogWriter
from cepheid.reference.run.progress import Outcome, Progress, Stage
from cepheid.reference.run.train import run
from cepheid.rules import definition
from cepheid.rules.definition import Timing
from cepheid.rules.errors import UserError
from tests.reference.run.scripted import ScriptedTask, execute


def quality(e_rmse: float, nll: float) -> dict[str, float]:
    return {"e_rmse": e_rmse, "nll": nll, "coverage_68": 0.68, "coverage_95": 0.95}


GOOD, POOR = quality(0.0, -9.0), quality(1.0, 9.0)


@pytest.fixture
def config() -> RunConfig:
    chosen = definition.load("galaxy_shape", "mini")
    timing = Timing(init_minutes_max=30, eval_every_samples=100, max_samples=300)
    return configure(replace(chosen, timing=timing), overrides=["global_batch_size=64"], seed=7)


Ended = tuple[ScriptedTask, Any, list[dict[str, Any]]]


@pytest.fixture
def good(config: RunConfig, tmp_path: Path) -> Ended:
    """A task that reached its targets at once, its outcome and the events of its log."""
    task = ScriptedTask([GOOD])
    return task, *execute(config, task, tmp_path / "result_0.txt")


def keys(events: list[dict[str, Any]]) -> list[str]:
    return [event["key"] for event in events]


def test_metrics_that_the_definition_does_not_name_are_refused_in_one_sentence(
    config: RunConfig, tmp_path: Path
) -> None:
    """As after a metric was renamed in benchmark.yaml, and not yet in task.py."""
    result, _ = execute(config, ScriptedTask([{"e_rmse": 0.0}]), tmp_path / "log.txt")
    assert isinstance(result, UserError)
    told = "returns e_rmse, but benchmarks/galaxy_shape/benchmark.yaml also expects nll"
    assert told in str(result)


def test_stops_at_the_first_evaluation_that_reaches_all_targets_of_which_one_is_not_enough(
    config: RunConfig, tmp_path: Path
) -> None:
    task = ScriptedTask([POOR, GOOD, POOR])
    outcome, events = execute(config, task, tmp_path / "result_0.txt")
    assert outcome == Outcome(True, 256, GOOD)
    assert keys(events).count("run_stop") == 1
    assert keys(events)[-2:] == ["run_stop", "data_read"]
    assert events[-2]["metadata"]["status"] == "success"
    assert events[-2]["metadata"]["samples_count"] == 256
    assert events[-1]["value"] == task.data_digest
    stops = [event["metadata"] for event in events if event["key"] == "block_stop"]
    assert [stop["samples_count"] for stop in stops] == [128, 256]
    half = quality(0.0, 9.0)
    outcome, events = execute(config, ScriptedTask([half] * 3), tmp_path / "result_1.txt")
    assert not outcome.reached
    assert events[-2]["metadata"]["status"] == "aborted"
    assert events[-2]["metadata"]["reason"] == "the targets were not reached"
    assert outcome.samples == 320  # the budget, completed to a whole batch


def test_a_log_has_the_order_the_lines_and_the_settings_of_the_run(
    good: Ended, config: RunConfig
) -> None:
    task, _, events = good
    assert task.diary == [
        "drop_caches", "build", "warm_up", "synchronize",
        "open_data", "train to 128", "evaluate", "synchronize",
    ]  # fmt: skip
    order = keys(events)
    assert order.index("cache_clear") < order.index("init_start") < order.index("seed")
    assert order.index("implementation") < order.index("init_stop") < order.index("run_start")
    places = [event["metadata"] for event in events]
    files = {place["file"] for place in places}
    assert files == {"reference/run/train.py", "reference/run/task.py"}
    assert len({place["lineno"] for place in places}) > 8
    logged = {event["key"]: event["value"] for event in events}
    assert {key: logged[key] for key in config.hyperparameters} == dict(config.hyperparameters)
    assert logged["seed"] == config.seed


@pytest.mark.parametrize(("name", "last"), [("build", "run_start"), ("drop_caches", "cache_clear")])
def test_error_before_run_start_leaves_a_log_that_cannot_count(
    name: str, last: str, config: RunConfig, tmp_path: Path
) -> None:
    task = ScriptedTask([GOOD])
    setattr(task, name, lambda: 1 // 0 > 1)
    result, events = execute(config, task, tmp_path / "result_0.txt")
    assert isinstance(result, ZeroDivisionError)
    assert not {last, "run_start", "run_stop"} & set(keys(events))
    assert events[-1]["key"] == "init_aborted"
    assert "ZeroDivisionError" in events[-1]["value"]


@pytest.mark.parametrize(("dropped", "logged"), [(None, True), (True, True), (False, False)])
def test_what_became_of_the_caches_is_logged(
    config: RunConfig, tmp_path: Path, dropped: bool | None, logged: bool
) -> None:
    """False as on macOS, which cannot forget them: an honest log, which T6 refuses."""
    task = ScriptedTask([GOOD])
    task.drop_caches = lambda: dropped  # type: ignore[method-assign]
    _, events = execute(config, task, tmp_path / "result_0.txt")
    assert [event["value"] for event in events if event["key"] == "cache_clear"] == [logged]


def test_progress_reports_the_stages(config: RunConfig) -> None:
    reports: list[Progress] = []
    run(config.definition, ScriptedTask([GOOD]), config, RunLogWriter(None), reports.append)
    stages = [progress.stage for progress in reports]
    assert stages == [Stage.INITIALISING, Stage.TRAINING, Stage.EVALUATING, Stage.EVALUATED]
    assert reports[-1].quality == GOOD


@pytest.mark.parametrize("loss", [1.0, RuntimeError("broken")])
def test_garbage_is_sought_only_among_what_the_timed_part_has_made(
    config: RunConfig, tmp_path: Path, loss: float | BaseException
) -> None:
    """A search among all objects of a framework takes 0.2 s, and most fell into evaluations."""
    task, passed_over = ScriptedTask([GOOD], loss), list[int]()
    task.open_data = lambda: passed_over.append(gc.get_freeze_count())  # type: ignore[method-assign]
    execute(config, task, tmp_path / "result_0.txt")
    assert passed_over[0] > 0
    assert gc.get_freeze_count() == 0
