"""Rules about the logs of a result together, and who differs from whom (T10, T15 to T19, T25)."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.read import package
from cepheid.rules import definition, rounds
from cepheid.rules.definition import Definition
from tests import tiny
from tests.compliance.asserting import Patch
from tests.compliance.builder import (
    SYSTEM,
    Record,
    copy_quality,
    delay,
    derive_seed_of,
    edit,
    find,
    line_number,
    put,
    run_records,
    write_code,
    write_log,
    write_result,
)
from tests.compliance.judging import find_all, find_errors, judge_folder

pytestmark = pytest.mark.usefixtures("fast_reference")
MINI = definition.load("galaxy_shape", "mini")
ROUND = rounds.load("v1.0")
RECORDS = run_records(MINI)


def change(folder: Path, index: int, key: str, how: Callable[[Record], object]) -> None:
    write_log(folder / f"result_{index}.txt", edit(run_records(MINI, index), key, how))


def give(folder: Path, index: int, seed: int) -> None:
    change(folder, index, "seed", lambda record: (
        record.update(value=seed), record["metadata"].update(origin="given")))  # fmt: skip


def test_given_seeds_are_noted_once(tmp_path: Path) -> None:
    folder = write_result(tmp_path, MINI)
    for index in range(MINI.runs.required):
        give(folder, index, 100 + index)
    (found,) = find_all(tmp_path)
    assert (found.code, found.severity, found.path.name) == ("T15.given", "note", "result_0.txt")
    assert found.line == line_number(RECORDS, "seed")
    assert found.message == "seeds were given, not derived (in 5 of 5 runs)"
    (alone,) = find_all(folder / "result_2.txt")
    assert (alone.code, alone.severity) == ("T15.given", "note")
    assert alone.message == "seeds were given, not derived"


def test_fewer_runs_are_a_note_but_not_in_a_submission(tmp_path: Path) -> None:
    folder = write_result(tmp_path, MINI, runs=2)
    (found,) = find_all(tmp_path)
    assert (found.code, found.severity, found.path) == ("T16.too_few", "note", folder)
    assert found.message == f"provisional: 2 of {MINI.runs.required} runs"
    (tmp_path / "manifest.json").write_text("{}")
    write_code(tmp_path, MINI.name)
    codes = {finding.code for finding in find_errors(tmp_path)}
    assert codes == {"T16.too_few", "S4.unreadable"}  # the manifest lists nothing


def test_as_many_aborted_runs_as_are_dropped_are_notes(tmp_path: Path) -> None:
    allowed = MINI.runs.drop_slowest
    write_result(tmp_path, MINI, converged=lambda index: index >= allowed)
    found = [(finding.code, finding.severity) for finding in find_all(tmp_path)]
    assert found == [("T17.not_converged", "note")] * allowed


@pytest.mark.parametrize("nth", [0, 1, 2])
def test_one_evaluation_of_another_run(nth: int, tmp_path: Path) -> None:
    folder = write_result(tmp_path, MINI)
    of_run_1 = find(run_records(MINI, 1), "eval_accuracy", nth)
    records = run_records(MINI, 3)
    copy_quality(find(records, "eval_accuracy", nth), of_run_1)
    write_log(folder / "result_3.txt", records)
    (found,) = find_errors(tmp_path)
    line = line_number(RECORDS, "eval_accuracy", nth)
    assert (found.code, found.path.name, found.line) == ("T19.copied_quality", "result_3.txt", line)
    assert found.message == f"the quality is exactly that of result_1.txt, line {line}"


def test_shares_of_counted_samples_may_agree_by_chance(tmp_path: Path) -> None:
    """Accuracy over 2,000 samples has 2,001 values: one of them in two runs shows no copy."""
    folder = write_result(tmp_path, MINI)

    def coarse(record: Record, share: float) -> None:
        metrics = dict.fromkeys(record["metadata"]["metrics"], share)
        record.update(value=share)
        record["metadata"]["metrics"] = metrics

    for index, shares in ((1, (0.5, 0.5, 0.5)), (3, (0.5, 0.25, 0.5))):
        records = run_records(MINI, index, converged=False)
        for nth, share in enumerate(shares):
            records = edit(records, "eval_accuracy", partial(coarse, share=share), nth)
        write_log(folder / f"result_{index}.txt", records)
    assert "T19.copied_quality" not in {finding.code for finding in find_errors(tmp_path)}
    shutil.copy(folder / "result_1.txt", folder / "result_3.txt")
    assert "T19.copied_quality" in {finding.code for finding in find_errors(tmp_path)}


@pytest.mark.parametrize("overlap_ms", [-1, 0, 1, 30_000])
def test_two_runs_at_the_same_time(overlap_ms: int, tmp_path: Path) -> None:
    folder = write_result(tmp_path, MINI)
    second = run_records(MINI, 2)
    to_ms = find(run_records(MINI, 1), "run_stop")["time_ms"] - overlap_ms
    delay(second, to_ms - find(second, "run_start")["time_ms"])
    write_log(folder / "result_2.txt", second)
    found = find_errors(tmp_path)
    if overlap_ms <= 0:  # one may start when another one stops
        assert found == []
        return
    (overlap,) = found
    assert (overlap.code, overlap.path.name) == ("T19.overlap", "result_2.txt")
    assert overlap.line == line_number(RECORDS, "run_start")
    assert overlap.message == "two runs at the same time on one system"
    assert f"{overlap_ms / 1000:.3f} seconds" in overlap.got
    assert "result_1.txt" in overlap.expected


def test_runs_within_a_long_one(tmp_path: Path) -> None:
    """Every one is found, not only the one that follows the long run."""
    folder = write_result(tmp_path, MINI)
    records = run_records(MINI, 0)
    delay(records[line_number(records, "block_stop", 2) - 1 :], 25_000_000)
    write_log(folder / "result_0.txt", records)
    found = [(finding.code, finding.path.name) for finding in find_errors(tmp_path)]
    assert found == [("T19.overlap", "result_1.txt"), ("T19.overlap", "result_2.txt")]


@pytest.mark.parametrize(
    ("without", "said"),
    [((2,), ["0.9", "no opt_adam_beta_1"]), ((0, 1, 3, 4), ["no opt_adam_beta_1", "0.9"])],
    ids=["one run lacks it", "one run has it"],
)
def test_hyperparameters_differ(without: tuple[int, ...], said: list[str], tmp_path: Path) -> None:
    folder = write_result(tmp_path, MINI, division="open")
    line = line_number(run_records(MINI, division="open"), "opt_adam_beta_1")
    for index in without:
        records = run_records(MINI, index, division="open")
        write_log(folder / f"result_{index}.txt", [*records[: line - 1], *records[line:]])
    (found,) = find_errors(tmp_path)
    assert (found.code, found.path.name) == ("T18.differs", "result_2.txt")
    stop = line_number(run_records(MINI, division="open"), "init_stop")
    assert found.line == (stop - 1 if without == (2,) else line)
    assert [found.expected, found.got] == said


def test_a_result_without_its_folders_is_judged_by_its_logs(tmp_path: Path) -> None:
    folder = write_result(tmp_path / "made", MINI)
    bare = tmp_path / "logs"
    shutil.copytree(folder, bare)
    assert find_all(bare) == []
    records = put(run_records(MINI, 1), "submission_org", value="else")
    other = derive_seed_of(MINI, 1, {**SYSTEM, "submitter": "else"})
    records = put(records, "seed", value=other)
    write_log(bare / "result_1.txt", records)
    (found,) = find_errors(bare)
    assert (found.code, found.path.name) == ("T18.differs", "result_1.txt")


def test_one_log_of_a_result_is_judged_with_its_folders(tmp_path: Path) -> None:
    folder = write_result(tmp_path, MINI)
    description = tmp_path / "systems" / "box.json"
    content = json.loads(description.read_text())
    description.write_text(json.dumps({**content, "submitter": "emca"}))
    judged = judge_folder(folder / "result_3.txt")
    assert [finding.code for finding in judged.findings] == ["T14.mismatch"]
    assert judged.logs == 1


def test_the_round_decides_how_severe_a_breach_is(tmp_path: Path) -> None:
    folder = write_result(tmp_path, MINI)
    change(folder, 0, "opt_name", lambda record: record.update(value="sgd"))
    lenient = {**ROUND.rules, "T12": replace(ROUND.rules["T12"], severity="warning")}
    (found,) = judge([package.read(tmp_path)], replace(ROUND, rules=lenient)).findings
    assert (found.code, found.severity) == ("T12.not_allowed", "warning")
    without = {key: rule for key, rule in ROUND.rules.items() if key != "T12"}
    assert judge([package.read(tmp_path)], replace(ROUND, rules=without)).findings == ()


Seeds = tuple[str, Callable[[int], int | None], int]  # code, a run's seed or None, found in runs


derived = partial(derive_seed_of, MINI)
SEEDS: dict[str, Seeds] = {
    "the best five of forty": ("T15.chosen", lambda k: derived(7 * k + 6), 5),
    "one of many among others": ("T15.chosen", lambda k: derived(39) if k == 3 else k, 1),
    "the derived ones in another order": ("T15.chosen", lambda k: derived((k + 1) % 5), 5),
    "plus a multiple of 2**32": ("T15.chosen", lambda k: derived(k + 9) + 2**32, 5),
    "one derived seed set aside": ("T15.mixed", lambda k: 7 if k == 2 else None, 1),
}


@pytest.mark.parametrize("name", SEEDS)
def test_seeds_that_were_chosen(name: str, tmp_path: Path) -> None:
    code, choose, runs = SEEDS[name]
    folder = write_result(tmp_path, MINI)
    for index in range(MINI.runs.required):
        if (seed := choose(index)) is not None:
            give(folder, index, seed)
    found = find_errors(tmp_path)
    assert [finding.code for finding in found] == [code] * runs, found
    assert found[0].line == line_number(run_records(MINI), "seed")
    assert found[0].hint


@pytest.fixture(autouse=True)
def work_in(tmp_path: Path, monkeypatch: Patch) -> None:
    """Write submissions beside nothing else."""
    monkeypatch.chdir(tmp_path)


Logged = Mapping[str, str]  # digests by the keys of their events


def submit(who: str, chosen: Definition, logged: Logged, division: str = "closed") -> Path:
    system = {**SYSTEM, "submitter": who}
    root = Path("submissions", who)
    folder = write_result(root, chosen, system=system, division=division)
    for index in range(chosen.runs.required):
        records = run_records(chosen, index, system=system, division=division)
        for key in ("data_digest", "data_read", "weights_digest"):
            value = logged.get("data_digest" if key == "data_read" else key)
            if value and any(record["key"] == key for record in records):
                records = put(records, key, value=value)
        write_log(folder / f"result_{index}.txt", records)
    return root


def find_differences() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in find_all(Path("submissions")):
        if "differ" in finding.code:
            assert finding.severity == "warning"
            assert finding.line
            found.setdefault(finding.path.parts[1], set()).add(finding.code)
    return found


A, B = ({"data_digest": letter * 64} for letter in "ab")


def test_results_of_other_data_are_warned_on_all_sides(star_shape: Definition) -> None:
    a, b, c = ({"data_digest": letter * 64} for letter in "abc")
    for logged, warned in (
        ((a, a), ""),
        ((a, b), "acme bolt"),
        ((a, a, a), ""),
        ((a, a, b), "acme bolt core"),
        ((a, b, c), "acme bolt core"),
    ):
        for who, digests in zip(("acme", "bolt", "core"), logged, strict=False):
            submit(who, star_shape, digests)
        assert find_differences() == {who: {"T10.data_differ"} for who in warned.split()}


def test_scales_and_divisions(star_shape: Definition, monkeypatch: Patch, tmp_path: Path) -> None:
    submit("acme", star_shape, A)
    submit("bolt", definition.load("star_shape", "full"), B)
    assert find_differences() == {}  # another scale has other data
    submit("core", star_shape, B, "open")
    assert set(find_differences()) == {"acme", "core"}  # open has the same data


def test_what_the_definition_knows_is_compared_with_that(tmp_path: Path) -> None:
    chosen = definition.load("galaxy_shape", "mini")
    assert chosen.data_digest
    submit("acme", chosen, {})
    submit("bolt", chosen, A)
    assert find_differences() == {}
    assert "T10.data" in {finding.code for finding in find_all(Path("submissions"))}


@pytest.mark.parametrize(
    ("digest", "division", "warned"),
    [("unconfirmed", "closed", True), ("unconfirmed", "open", False), ("a" * 64, "closed", False)],
)
def test_weights_that_nobody_confirmed_are_compared(
    digest: str, division: str, warned: bool, tmp_path: Path, monkeypatch: Patch
) -> None:
    given: Any = {"file": "a.pth", "digest": digest}
    weights = {"given_weights": given}
    chosen = tiny.install(tmp_path / "rules", monkeypatch, "ssd", "full", model=weights)
    for who, letter in (("acme", "a"), ("bolt", "b")):
        submit(who, chosen, {"weights_digest": letter * 64}, division)
    expected = {who: {"T25.weights_differ"} for who in ("acme", "bolt")} if warned else {}
    assert find_differences() == expected
