"""A made-up definition whose runs end at the second of two successive evaluations that hold."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("mlperf_logging", reason="run logs are written with mlperf-logging")

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.summary import measure_crossing
from cepheid.reference.run.config import configure
from cepheid.reference.run.log import RunLogWriter
from cepheid.reference.run.train import run
from cepheid.rules import definition, evidence, rounds
from cepheid.rules.definition import Definition
from cepheid.rules.evidence import Curve
from tests import assert_refused
from tests.compliance import small
from tests.compliance.asserting import Patch
from tests.compliance.builder import Record, edit, line_number, quality, run_records
from tests.compliance.judging import check_records
from tests.distributed import on_ranks
from tests.reference.run.scripted import ScriptedTask, execute

EVERY, BLOCKS = 50, 8  # of the small definition; batches of 10
PLACE = Place("v1.0", benchmark="star_shape", scale="mini", in_result=True)


@pytest.fixture(params=[1, 2])
def asked(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Patch) -> int:
    """How many successive evaluations must hold; 1 without the field."""
    make_up(tmp_path / "definitions", monkeypatch, request.param)
    return int(request.param)


def make_up(folder: Path, monkeypatch: Patch, asked: int) -> Definition:
    small.install(folder, monkeypatch)
    path = folder / "star_shape" / "benchmark.yaml"
    document = yaml.safe_load(path.read_text())
    if asked > 1:
        document["scales"]["mini"]["timing"]["evaluations_to_hold"] = asked
    definition._read_document.cache_clear()
    path.write_text(yaml.safe_dump(document))
    return definition.load("star_shape", "mini")


def measure(chosen: Definition, pattern: str) -> list[dict[str, float]]:
    """The metrics of evaluations, H where all targets hold."""
    return [quality(chosen, at, held == "H") for at, held in enumerate(pattern, 1)]


# pattern of all evaluations of the budget; where a run ends if one must hold, and if two must
PATTERNS: Mapping[str, tuple[int | None, int | None]] = {
    "HHPPPPPP": (1, 2),
    "HPHPPHHP": (1, 7),
    "PPHHPPPP": (3, 4),
    "PPPPPPHH": (7, 8),
    "PPPPPPPH": (8, None),  # the budget ends before there can be a second one
    "HPHPHPHP": (1, None),  # lucky looks
    "PPPPPPPP": (None, None),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_trainer_checker_score_and_evidence_agree_where_a_run_ends(
    asked: int, pattern: str, tmp_path: Path
) -> None:
    chosen = definition.load("star_shape", "mini")
    assert chosen.timing.evaluations_to_hold == asked
    end, qualities = PATTERNS[pattern][asked - 1], measure(chosen, pattern)
    config = configure(chosen, seed=7)
    outcome, _ = execute(config, ScriptedTask(list(qualities)), tmp_path / "result_0.txt")
    assert (outcome.reached, outcome.samples) == (end is not None, EVERY * (end or BLOCKS))

    log = runlog.read(tmp_path / "result_0.txt")
    findings = check_log(log, PLACE, rounds.load("v1.0"))
    errors = {finding.code for finding in findings if finding.severity == "error"}
    errors -= {"T7.no_time"}  # a scripted run may end within a millisecond
    assert not [code for code in errors if code.startswith(("T7", "T8", "T9", "T11"))]
    crossing = measure_crossing(log, chosen)
    curve = Curve("correct", 7, 1.0, tuple(zip(range(50, 401, 50), qualities, strict=True)))
    assert curve.count_samples_to_target(chosen) == (end and EVERY * end)
    if end is None:
        assert crossing is None
    else:
        first = EVERY * (end - asked + 1)  # the score takes the first of the two
        assert crossing is not None
        assert max(1, first - EVERY) <= crossing <= first
        # A run that goes on is no run of the first kind; there, curves end where their runs do.
        ended = Curve("correct", 7, 1.0, curve.evaluations[:end])
        assert ended.find_crossing(chosen) == crossing


def put_metrics(metrics: dict[str, float], record: Record) -> None:
    record["metadata"]["metrics"] = metrics
    record["value"] = metrics["rmse"]


@pytest.mark.parametrize(
    ("pattern", "status", "code", "says"),
    [
        ("PH", "success", "T9.false_success", "the last two evaluations"),
        ("HP", "success", "T9.false_success", "rmse"),
        ("H", "success", "T9.false_success", "one evaluation"),
        ("PHH", "aborted", "T9.false_abort", "two successive evaluations"),
        ("HHP", "aborted", "T9.trained_on", "two successive evaluations"),
        ("PHH", "success", None, ""),
        ("HPHH", "success", None, ""),
        ("PH", "aborted", None, ""),
    ],
)
def test_logs_that_end_elsewhere_are_found(
    tmp_path: Path, monkeypatch: Patch,
    pattern: str, status: str, code: str | None, says: str,
) -> None:  # fmt: skip
    chosen = make_up(tmp_path / "definitions", monkeypatch, 2)
    records = run_records(chosen, blocks=len(pattern), converged=False)
    for place, metrics in enumerate(measure(chosen, pattern)):
        records = edit(records, "eval_accuracy", partial(put_metrics, metrics), place)
    records = edit(records, "run_stop", lambda record: record["metadata"].update(status=status))
    found = [f for f in check_records(records, tmp_path, PLACE) if f.rule == "T9"]
    assert [finding.code for finding in found] == ([code] if code else [])
    for finding in found:
        assert says in f"{finding.message} {finding.got}"
        key, nth = ("block_start", 2) if code == "T9.trained_on" else ("run_stop", 0)
        assert finding.line == line_number(records, key, nth)


def test_another_number_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    assert_refused("evaluations_to_hold", make_up, tmp_path, monkeypatch, 3)


def test_the_end_of_a_run_is_said_in_words(asked: int) -> None:
    words = evidence.describe_end(definition.load("star_shape", "mini"))
    which = "first evaluation" if asked == 1 else "second of two successive evaluations"
    assert words == f"the {which} at which rmse <= 0.1 and accuracy >= 0.8"


def train_on_rank(folder: str) -> tuple[bool, int, list[str]]:
    """Make a run on this rank; only together the ranks know whether targets hold."""
    import torch

    from cepheid.reference.torch.ranks.distributed import start_ranks

    chosen = definition.load("star_shape", "mini")
    with start_ranks() as ranks:
        own = [dict(each) for each in measure(chosen, "PHPHHPPP")]
        for metrics in own:  # the mean over the ranks is that of one process
            for name in metrics:
                metrics[name] += 0.2 * (-1) ** ranks.rank

        class Shared(ScriptedTask):
            def evaluate(self) -> dict[str, float]:
                mine = super().evaluate()
                total = ranks.sum(torch.tensor(list(mine.values()), dtype=torch.float64))
                return dict(zip(mine, (total / ranks.world_size).tolist(), strict=True))

        task = Shared(own)
        log = RunLogWriter(Path(folder, "result_0.txt") if ranks.rank == 0 else None)
        outcome = run(chosen, task, configure(chosen, seed=7), log)
        log.close()
        return outcome.reached, outcome.samples, task.diary


def test_all_ranks_stop_at_the_same_evaluation(tmp_path: Path, monkeypatch: Patch) -> None:
    pytest.importorskip("torch", reason="needs the extra torch")
    make_up(tmp_path / "definitions", monkeypatch, 2)
    first, second = on_ranks(2, train_on_rank, str(tmp_path))
    assert first == second
    assert first[:2] == (True, 5 * EVERY)
    stop: dict[str, Any] = {}
    for line in (tmp_path / "interrupted_result_0_0.txt").read_text().splitlines():
        record = json.loads(line.partition(":::MLLOG ")[2])
        stop = record["metadata"] if record["key"] == "run_stop" else stop
    assert (stop["status"], stop["samples_count"]) == ("success", 5 * EVERY)
