"""What a terminal shows: plain lines on a pipe for somebody who waits."""

import io
import time

import pytest

pytest.importorskip("mlperf_logging", reason="the loop writes logs with mlperf-logging")
from rich.console import Console

from cepheid.reference.run.progress import Progress, Stage
from cepheid.rules import definition
from cepheid.tools.console.terminal import RunDisplay, show_count
from tests.compliance.asserting import Patch

MINI = definition.load("galaxy_shape", "mini")


def test_a_line_for_every_evaluation() -> None:
    output = io.StringIO()
    with RunDisplay(MINI, Console(file=output, width=200)) as display:
        display(Progress(Stage.INITIALISING))
        for samples in range(32, 3200, 32):
            display(Progress(Stage.TRAINING, samples))
        good = {"e_rmse": 0.0, "nll": 9.0, "coverage_68": 0.7, "coverage_95": 0.9}
        display(Progress(Stage.EVALUATED, 3200, good))
    lines = output.getvalue().splitlines()
    assert len(lines) == 2
    assert "3,200 samples" in lines[1]
    assert "e_rmse 0.0000 (reached)" in lines[1]
    assert f"target {MINI.quality[1].target:g}" in lines[1]
    assert "\x1b" not in output.getvalue()


def test_counted_work_says_what_and_how_long_and_nothing_where_there_is_none() -> None:
    output = io.StringIO()
    with show_count("preparing data", "samples", Console(file=output)):
        pass
    assert output.getvalue() == ""
    with show_count("preparing data", "samples", Console(file=output, width=200)) as on_progress:
        for done in range(0, 1001, 250):
            on_progress(done, 1000)
    assert output.getvalue().splitlines() == [
        "preparing data: 1,000 samples",
        "preparing data: done in 0 s",
    ]


def test_counted_work_says_how_long_it_takes_as_measured_on_the_first(monkeypatch: Patch) -> None:
    output, now = io.StringIO(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with show_count("preparing data", "samples", Console(file=output, width=200)) as on_progress:
        for done in (1_000, *range(2_000, 41_000, 1_000)):  # the first were there already
            on_progress(done, 40_000)
            now[0] += 4
    lines = output.getvalue().splitlines()
    assert lines[1:3] == [
        "preparing data: about 2 min left at 250.0 samples/s, as measured on the first 3,000",
        "preparing data: about 2 min left at 250.0 samples/s, as measured on the first 6,000",
    ]
    assert len(lines) < 8
