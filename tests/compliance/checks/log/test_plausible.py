"""Metrics have possible values: beside each other, beside the noise, beside all evidence."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cepheid.compliance.checks import Place
from cepheid.compliance.checks.log import plausible
from cepheid.compliance.finding import Finding
from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules import definition, evidence
from cepheid.rules.definition import Definition
from cepheid.rules.host import ROOT
from tests.compliance.asserting import Patch, require
from tests.compliance.builder import Record, edit, put_metadata, run_records
from tests.compliance.judging import check_records, place_of

PAIRS = [(name, scale) for name in definition.names() for scale in definition.scales(name)]


def find(records: Sequence[Record], judged_by: Definition, folder: Path) -> list[Finding]:
    division = next(r["value"] for r in records if r["key"] == "submission_division")
    return check_records(records, folder, place_of(judged_by, division))


def measure(records: list[Record], nth: int, **metrics: float) -> list[Record]:
    def change(record: Record) -> None:
        names = list(record["metadata"]["metrics"])
        record["metadata"]["metrics"].update(metrics)
        record["value"] = record["metadata"]["metrics"][names[0]]

    return edit(records, "eval_accuracy", change, nth)


def lose(records: list[Record], losses: Sequence[float]) -> list[Record]:
    for nth, loss in enumerate(losses):
        records = put_metadata(records, "block_stop", nth, train_loss=loss)
    return records


BESIDE: dict[str, tuple[str, str, dict[str, float]]] = {
    "as accurate as its target with the loss of a guess": (
        "resnet50", "mini", {"accuracy": 0.91, "accuracy_top5": 0.99, "loss": 2.31}),
    "accurate, with too large a loss": (
        "resnet50", "mini", {"accuracy": 0.9, "accuracy_top5": 0.99, "loss": 1.9}),
    "accurate by hidden mistakes": (
        "resnet50", "mini", {"accuracy": 0.92, "accuracy_top5": 0.99, "loss": 1.2}),
    "a guess with a small loss": (
        "kfac", "mini", {"accuracy": 0.1, "accuracy_top5": 0.5, "loss": 0.7}),
    "nearly a guess with a small loss": (
        "resnet50", "mini", {"accuracy": 0.15, "accuracy_top5": 0.6, "loss": 0.7}),
    "1,000 classes": (
        "resnet50", "full", {"accuracy": 0.77, "accuracy_top5": 0.93, "loss": 7.0}),
    "1,000 classes with K-FAC": (
        "kfac", "full", {"accuracy": 0.76, "accuracy_top5": 0.93, "loss": 6.95}),
    "sentences that nobody expects": ("gnmt", "mini", {"bleu": 72.0, "loss": 6.95}),
    "sentences, hardly expected": ("transformer", "mini", {"bleu": 61.0, "loss": 6.0}),
    "words without sentences": ("gnmt", "mini", {"bleu": 1.0, "loss": 0.5}),
    "all words of WMT": ("gnmt", "full", {"bleu": 24.5, "loss": 10.5}),
    "all words of WMT17": ("transformer", "full", {"bleu": 25.5, "loss": 10.5}),
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_a_loss_belongs_to_the_quality_beside_it(name: str, tmp_path: Path) -> None:
    benchmark, scale, metrics = BESIDE[name]
    judged_by = definition.load(benchmark, scale)
    is_reached = judged_by.is_reached_by(metrics)
    records = measure(run_records(judged_by), 2 if is_reached else 0, **metrics)
    (found,) = find(records, judged_by, tmp_path)
    assert (found.code, found.severity) == ("T9.loss_beside", "warning")
    assert float(found.got) == metrics["loss"]


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("share", [0.7, 1.0, 1.5])
@pytest.mark.parametrize("name", ["resnet50", "kfac", "gnmt", "transformer"])
def test_other_losses_are_believed(name: str, share: float, at: int, tmp_path: Path) -> None:
    judged_by = definition.load(name, "mini")
    records = run_records(judged_by)
    nth = [r for r in records if r["key"] == "eval_accuracy"][at]["metadata"]["metrics"]
    assert find(measure(records, at, loss=nth["loss"] * share), judged_by, tmp_path) == []


@pytest.mark.parametrize("division", ["closed", "open"])
@pytest.mark.parametrize("scale", ["mini", "full"])
@pytest.mark.parametrize("name", ["galaxy_shape", "galaxy_bnn"])
def test_no_estimator_beats_the_noise(name: str, scale: str, division: str, tmp_path: Path) -> None:
    judged_by = definition.load(name, scale)
    least = judged_by.relations.least["e_rmse"]
    records = run_records(judged_by, division=division)
    for value, codes in (
        (0.0, {"T9.below_noise", "T9.record"}),
        (0.98 * least, {"T9.below_noise", "T9.record"}),
        (1.02 * least, {"T9.record"}),
    ):
        found = find(measure(records, 2, e_rmse=value), judged_by, tmp_path)
        assert {finding.code for finding in found} == codes
        assert {f.code for f in found if f.is_error} == codes - {"T9.record"}
    others = edit(records, "data_digest", lambda record: record.update(value="0" * 64))
    found = find(measure(others, 2, e_rmse=0.98 * least), judged_by, tmp_path)
    assert "T9.below_noise" not in {finding.code for finding in found}


def list_limits() -> Iterator[tuple[str, str, str, float, float]]:
    for name, scale in PAIRS:
        judged_by = definition.load(name, scale)
        limits = plausible.load_limits(name, scale, judged_by.digest)
        for metric, (best, limit) in limits.records.items():
            lowest, highest = judged_by.bounds.get(metric, (-math.inf, math.inf))
            lowest = max(lowest, judged_by.relations.least.get(metric, lowest))
            is_apart = metric in judged_by.relations.distances or metric == "loss"
            if lowest < limit < highest and not is_apart:
                yield name, scale, metric, best, limit


LIMITS = list(list_limits())


@pytest.mark.parametrize(
    ("name", "scale", "metric", "best", "limit"), LIMITS, ids=lambda value: str(value)[:20]
)
def test_better_than_records(name: str, scale: str, metric: str, best: float, limit: float) -> None:
    judged_by = definition.load(name, scale)
    evaluations = [r for r in run_records(judged_by) if r["key"] == "eval_accuracy"]
    whole = evaluations[-1]["metadata"]["metrics"]
    for beyond, codes in ((0.9, []), (1.1, ["T9.record"])):
        value = best + beyond * (limit - best)
        found = list(plausible.check_plausibility(
            make_log([{**whole, metric: value}]), judged_by, Place("v1.0")
        ))  # fmt: skip
        assert [finding.code for finding in found if finding.code != "T9.loss_beside"] == codes


def test_there_are_limits_wherever_there_is_evidence() -> None:
    assert len(LIMITS) > 25
    assert {name for name, *_ in LIMITS} == set(definition.names()) - {"kfac", "resnet50"}


def make_log(course: Sequence[Mapping[str, float]]) -> RunLog:
    events = [
        Event(
            line=number, time_ms=0, event_type="POINT_IN_TIME", key="eval_accuracy", value=0.0,
            metadata={"metrics": metrics},
        )
        for number, metrics in enumerate(course, 1)
    ]  # fmt: skip
    return RunLog(Path("result_0.txt"), tuple(events))


@pytest.mark.parametrize(("name", "scale"), PAIRS)
def test_every_recorded_curve_is_believed(name: str, scale: str, monkeypatch: Patch) -> None:
    """Also each seed by the evidence of all the others, and each run that was published."""
    judged_by = definition.load(name, scale)
    shown = evidence.load(judged_by)
    courses = [[m for _, m in curve.evaluations] for curve in (shown.curves if shown else ())]
    for path in sorted(ROOT.glob(f"submissions/*/results/*/{name}-{scale}-*/result_*.txt")):
        courses.append([point.metrics for point in runlog.read(path).quality_curve])
    for course in courses:
        assert list(plausible.check_plausibility(make_log(course), judged_by, Place("v1.0"))) == []
    for curve in shown.correct if shown else ():
        assert shown is not None
        others = replace(shown, curves=tuple(c for c in shown.curves if c is not curve))
        limits = plausible.make_limits(others, judged_by)
        monkeypatch.setattr(plausible, "load_limits", lambda *_, known=limits: known)
        log = make_log([metrics for _, metrics in curve.evaluations])
        assert list(plausible.check_plausibility(log, judged_by, Place("v1.0"))) == []


def test_new_evidence_moves_the_limits() -> None:
    judged_by = definition.load("gnmt", "mini")
    shown = require(evidence.load(judged_by))
    before = plausible.make_limits(shown, judged_by)
    best = max(shown.correct, key=lambda curve: curve.evaluations[-1][1]["bleu"])
    samples, metrics = best.evaluations[-1]
    better = replace(best, evaluations=((samples, {**metrics, "bleu": 95.0}),))
    after = plausible.make_limits(replace(shown, curves=(*shown.curves, better)), judged_by)
    best_after, limit_after = after.records["bleu"]
    assert before.records["bleu"][1] < 95 < best_after + 1e-9 < limit_after
    without = replace(shown, curves=shown.broken)
    assert plausible.make_limits(without, judged_by).records == {}


LOSSES: dict[str, tuple[list[float], list[str]]] = {
    "the same": ([0.5] * 5, ["T9.flat_loss"]),
    "a straight line": ([2.0, 1.75, 1.5, 1.25, 1.0], ["T9.computed_loss"]),
    "a straight line of other digits": ([2.0 - 0.3 * k for k in range(5)], ["T9.computed_loss"]),
    "a factor": ([2.0 * 0.7**k for k in range(5)], ["T9.computed_loss"]),
    "two in turn": ([0.5, 0.4] * 4, ["T9.computed_loss"]),
    "nothing in the end": ([0.9, 0.7, 0.6, 0.3, 0.0], ["T9.train_loss"]),
    "less than nothing": ([0.9, 0.7, 0.6, 0.3, -0.2], ["T9.train_loss"]),
    "more than a guess in the end": ([4.0, 3.8, 3.7, 3.3, 3.1], ["T9.train_loss"]),
    "honest, rounded to two digits": ([2.2, 1.7, 1.1, 0.79, 0.72, 0.72], []),
    "honest, rising once": ([2.2, 1.7, 1.9, 1.1], []),
    "honest, a plateau": ([2.2, 0.81, 0.8, 0.8, 0.8], []),
    "honest, halved twice, and on": ([2.0, 1.0, 0.5, 0.3], []),
    "honest, three blocks in a line": ([2.0, 1.5, 1.0], []),
    "honest, one block": ([0.7], []),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_no_training_has_are_told_from_honest_ones(name: str, tmp_path: Path) -> None:
    losses, codes = LOSSES[name]
    judged_by = definition.load("kfac", "mini")
    records = lose(run_records(judged_by, blocks=len(losses)), losses)
    assert [finding.code for finding in find(records, judged_by, tmp_path)] == codes


def test_training_losses_of_the_open_division_may_be_any(tmp_path: Path) -> None:
    judged_by = definition.load("resnet50", "mini")
    records = lose(run_records(judged_by, division="open"), [9.0, 8.0, 5.0])
    assert find(records, judged_by, tmp_path) == []


@pytest.mark.parametrize("value", [10**400, -(10**400), 1e308, 5e-324, 0, -1.5])
def test_huge_numbers_are_findings(value: float, tmp_path: Path) -> None:
    judged_by = definition.load("resnet50", "mini")
    assert find(measure(run_records(judged_by), 0, loss=value), judged_by, tmp_path)
    records = lose(run_records(judged_by), [1.0, value, value])
    assert find(records, judged_by, tmp_path) or value == 5e-324
