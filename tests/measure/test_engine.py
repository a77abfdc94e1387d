"""The engine of studies, with a study that measures nothing; turns, processes, phases, memory."""

import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from cepheid.measure.engine import options, own_process, study
from cepheid.measure.engine.byte_counts import SavedBytes
from cepheid.measure.engine.phases import StepProfiler, profile_steps
from cepheid.measure.engine.study import Column, Measured, Request, Study
from cepheid.measure.engine.turns import Comparison, time_in_turns
from cepheid.measure.studies.speed.sharing import predict_bubble
from cepheid.rules.errors import UserError
from cepheid.tools.console.arguments import make_study_parser
from tests import assert_refused
from tests.processes import have_ended, kill_after_a_line, warm_context

COLUMNS = (Column("name", lambda row: row[0]), Column("time, s", lambda row: row[1], "{:.2f}"))
OTHER = Study("other", lambda _: (), lambda *_: Measured(notes=["the other"]))


def measure(request: Request, arms: list[str]) -> Measured:
    rows = [(name, request.arguments.rounds or None) for name in arms]
    is_fine = "bad" not in arms
    return Measured(rows, "A title", notes=["a note"], facts={"rows": rows}, is_fine=is_fine)


def draw(path: Path, request: Request, measured: Measured) -> None:
    path.write_text(f"{len(measured.rows)} rows")


STUDY = Study(
    "nothing",
    lambda request: request.arguments.arms,
    measure,
    COLUMNS,
    draw,
    is_timed=True,
    others=(OTHER,),
    description="It measures nothing.",
    examples="exit codes: 0 fine",
    options=options.declare(
        yaml.safe_load("""
        arms: {help: what is compared, nargs: "+"}
        --rounds N: {help: turns, kind: whole, default: 3, least: 3, why: for a spread}
        --share: {help: a share, kind: number, least: 0, most: 1}
        --other: {help: another study, kind: switch}
        --sizes N,…: {help: sizes, kind: numbers, example: "2,4", most: 100}
        --figure FILE.png: {help: a figure, kind: path}
        --output FILE: {help: a file, kind: path}
    """)
    ),
)


def run(*arguments: object) -> bool:
    parsed = make_study_parser(STUDY, "measure nothing").parse_args(list(map(str, arguments)))
    open_display: Any = None  # nothing shows progress here
    return study.run_study(STUDY, parsed, open_display)


def test_a_study_prints_writes_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "measure_load", lambda: 1000)
    out, figure = tmp_path / "new" / "out.json", tmp_path / "figure.png"
    assert run("a", "b", "--output", out, "--figure", figure)
    printed = capsys.readouterr().out
    assert printed.startswith("A title\n\nname  time, s\n")
    for text in ("\na     3.00\n", "\n\na note\n", "other work was running", f"written: {figure}"):
        assert text in printed
    assert json.loads(out.read_text()) == {"rows": [["a", 3], ["b", 3]], "load_before": 1000}
    assert figure.read_text() == "2 rows"


def test_a_missed_target_is_a_finding_and_a_missing_value_an_empty_cell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not run("bad")
    capsys.readouterr()
    assert run("bad", "--other")
    assert capsys.readouterr().out == "the other\n"
    text = study.format_table(study.Table("", COLUMNS, [("a", None)]))
    assert text.splitlines()[-1].split() == ["a"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", 2], "--rounds 2: expected 3 or more, for a spread"),
        (["--share", 1.5], "--share 1.5: expected 0 to 1"),
        (["--sizes", "2,x"], "--sizes 2,x: expected numbers up to 100 .* e.g. 2,4"),
        (["--sizes", "0"], "--sizes 0: expected numbers"),
        (["--sizes", "101"], "--sizes 101: expected numbers"),
        (["--figure", "/no/such/f.png"], "cannot write it, because /no/such is no folder; fix:"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_measured(
    arguments: list[object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(message, run, "a", *arguments)
    assert capsys.readouterr().out == ""


# Turns and phases ---------------------------------------------------------------------------------


def test_sides_take_turns_and_the_first_one_does_not_count() -> None:
    seconds = iter([9, 9, 1, 2, 4, 2, 3, 6])
    calls = []

    def measure(side: str) -> Callable[[], float]:
        def read_clock() -> float:
            calls.append(side)
            return next(seconds)

        return read_clock

    rounds = []
    measures = {"plain": measure("plain"), "ours": measure("ours")}
    timings = time_in_turns(3, measures, lambda done, total: rounds.append((done, total)))
    compared = Comparison("work", *timings)
    assert rounds == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert calls == ["plain", "ours", "ours", "plain"] * 2
    assert compared.baseline.seconds == (2, 4, 6)
    assert (compared.ratio, compared.overhead) == (2, -0.5)
    assert compared.reference.quartiles_seconds == (1.5, 2.5)


def test_a_phase_within_another_is_counted_once() -> None:
    waited = []
    profiler = StepProfiler(lambda: waited.append(1))
    started = time.perf_counter()
    with profiler("backward"):
        time.sleep(0.01)
        with profiler("factors"):
            time.sleep(0.03)
            with profiler("communication"):
                time.sleep(0.02)
        with profiler("factors"):
            time.sleep(0.01)
    total = time.perf_counter() - started
    assert len(waited) == 4
    assert sum(profiler.seconds.values()) == pytest.approx(total, abs=2e-3)
    assert profiler.seconds["factors"] >= 0.04
    assert profiler.seconds["communication"] >= 0.02
    assert 0.01 <= profiler.seconds["backward"] <= total - 0.06


class Task:
    """A task whose step spends a third of its time outside its phases."""

    def __init__(self) -> None:
        self.steps = 0
        self.phase: Any = None

    def step(self) -> None:
        self.steps += 1
        with self.phase("forward"):
            time.sleep(0.02)
        time.sleep(0.01)

    def synchronize(self) -> None:
        """Nothing to wait for."""

    finish_phase = synchronize


def test_a_profile_accounts_for_the_whole_step() -> None:
    task, calls = Task(), []
    profile = profile_steps(task, 2, lambda: calls.append(task.steps))
    assert calls == [1, 2]
    assert task.phase is None
    assert sum(profile.shares.values()) == pytest.approx(1)
    assert profile.shares["backward"] == 0
    assert 0.2 < profile.shares["other"] < 0.5
    assert sum(profile.phases_ms.values()) == pytest.approx(1000 * profile.seconds)


# Processes ----------------------------------------------------------------------------------------


def test_sizes_and_ranks_have_processes_of_their_own_and_may_lose_them() -> None:
    assert own_process.run_alone(os.getpid) != os.getpid()
    with pytest.raises(UserError, match=r"was killed; was there enough memory\?"):
        own_process.run_alone(signal.raise_signal, signal.SIGKILL)
    warm_context()
    assert own_process.run_on_ranks(1, fail_on_the_last_rank) == 1
    assert_refused("no room", own_process.run_on_ranks, 2, fail_on_the_last_rank)
    assert_refused("was killed", own_process.run_on_ranks, 2, partial(os._exit, 3))


def _tell_and_sleep() -> None:
    print(os.getpid(), flush=True)
    time.sleep(600)


def test_a_measurement_ends_with_the_process_that_started_it() -> None:
    script = "from tests.measure import test_engine as here\n"
    script += "here.own_process.run_alone(here._tell_and_sleep)"
    line, _ = kill_after_a_line(script)
    assert have_ended([int(line)])


def fail_on_the_last_rank() -> int:
    if os.environ.get("RANK") == "1":
        raise UserError("no room")
    return int(os.environ.get("WORLD_SIZE", "1"))


# Memory and pipelines -----------------------------------------------------------------------------


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 8), (4, 4)])
def test_equal_stages_wait_as_the_formula_says_and_always_for_a_slow_one(
    stages: int, micro_batches: int
) -> None:
    formula = (stages - 1) / (micro_batches + stages - 1)
    assert predict_bubble([0.3] * stages, micro_batches) == pytest.approx(formula)
    assert predict_bubble([1.0, 3.0], 1000) == pytest.approx(1 / 3, abs=1e-3)


def test_kept_bytes_are_those_between_forward_and_backward() -> None:
    layers = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.Sigmoid())
    saved = SavedBytes.beside(layers.parameters())
    inputs = torch.randn(4, 8)
    with saved.count():
        for _ in range(2):  # one after the other
            layers(inputs).sum().backward()
        assert saved.most == 3 * inputs.nbytes  # inputs and the two results, each once
        first, second = layers(inputs).sum(), layers(inputs).sum()
        assert saved.most == 5 * inputs.nbytes
        (first + second).backward()
