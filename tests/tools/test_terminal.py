"""What a terminal shows: tables of a report, and plain lines on a pipe for somebody who waits."""

import io
import math

import pytest

from cepheid.reference.run.report import Table
from cepheid.tools.console.terminal import format_table

pytest.importorskip("mlperf_logging", reason="the loop writes logs with mlperf-logging")
from rich.console import Console

from cepheid.reference.run.progress import Progress, Stage
from cepheid.rules import definition
from cepheid.tools.console.terminal import RunDisplay, show_count

TABLE = Table(
    "Bias",
    (
        {"quantity": "m", "e1": -0.11239, "e1_error": 0.0075, "galaxies": 12},
        {"quantity": "c", "e1": 0.00321, "e1_error": 0.00067, "galaxies": 12},
        {"quantity": "nothing", "e1": math.nan, "e1_error": math.inf, "galaxies": 0},
    ),
    "a note",
)


def test_standard_errors_have_two_digits() -> None:
    text = format_table(TABLE)
    assert "-0.1124 ± 0.0075" in text
    assert "0.00321 ± 0.00067" in text
    assert "a note" in text
    assert "e1_error" not in text


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


def test_counted_work_says_what_and_how_long() -> None:
    output = io.StringIO()
    with show_count("preparing data", "samples", Console(file=output, width=200)) as on_progress:
        for done in range(0, 1001, 250):
            on_progress(done, 1000)
    assert output.getvalue().splitlines() == [
        "preparing data: 1,000 samples",
        "preparing data: done in 0 s",
    ]


def test_nothing_to_do_says_nothing() -> None:
    output = io.StringIO()
    with show_count("preparing data", "samples", Console(file=output)):
        pass
    assert output.getvalue() == ""
