"""Rules of published rounds: one change of a compliant synthetic log each, and what is found."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.finding import Finding
from cepheid.compliance.judge import follow
from cepheid.compliance.read.log import runlog
from cepheid.rules import rounds
from cepheid.tools import check_compliance
from tests.compliance.asserting import Patch, call_tool
from tests.compliance.history import (
    Entry,
    change,
    cosmoflow_20,
    drop,
    gnmt_06,
    mll_lines,
    mllog_lines,
    move,
    resnet_40,
    write,
)
from tests.compliance.judging import judge_as_mlperf

TRAINING_40 = rounds.load("mlperf-training-4.0")
TRAINING_06 = rounds.load("mlperf-training-0.6")
HPC_20 = rounds.load("mlperf-hpc-2.0")

CLOSED, OPEN = resnet_40(), resnet_40(division="open")
SGD, V06, HPC = resnet_40(optimizer="sgd"), gnmt_06(), cosmoflow_20()


def check(lines: Sequence[str], round_name: str, tmp_path: Path) -> list[Finding]:
    path = write(tmp_path / "result_0.txt", lines)
    return check_log(runlog.read(path), Place(round_name), rounds.load(round_name))


def check_40(entries: Sequence[Entry], tmp_path: Path) -> list[Finding]:
    return check(mllog_lines(entries), TRAINING_40.name, tmp_path)


def check_06(entries: Sequence[Entry], tmp_path: Path) -> list[Finding]:
    return check(mll_lines(entries), TRAINING_06.name, tmp_path)


def test_a_compliant_log_raises_nothing_whatever_ranks_write_around_it(tmp_path: Path) -> None:
    for entries in (CLOSED, OPEN, SGD):
        assert check_40(entries, tmp_path) == []
    assert check_06(V06, tmp_path) == []
    assert check(mllog_lines(HPC), HPC_20.name, tmp_path) == []
    text = "".join(f"rank 0: {line}\n" for line in mllog_lines(CLOSED)).replace("acme", "München")
    path = tmp_path / "result_0.txt"
    path.write_bytes(b"caf\xe9\n\0\n" + text.encode("latin-1"))
    assert check_log(runlog.read(path), Place(TRAINING_40.name), TRAINING_40) == []


@dataclass(frozen=True)
class Case:
    """A changed log, the code of the finding, the key whose record is named (None: the file)."""

    name: str
    code: str
    key: str | None
    entries: list[Entry]
    severity: str = "error"
    nth: int = 0


def repeat(entries: list[Entry], key: str, value: object) -> list[Entry]:
    at = next(number for number, entry in enumerate(entries) if entry.key == key)
    return [*entries[: at + 1], replace(entries[at], value=value), *entries[at + 1 :]]


BLOCKS = [  # the same run in blocks
    replace(entry, key=entry.key.replace("epoch_", "block_"), metadata={"samples_count": 5})
    if entry.key in ("epoch_start", "epoch_stop")
    else entry
    for entry in CLOSED
]

CASES_40 = (
    Case("org is missing", "M1.missing", None, drop(CLOSED, "submission_org")),
    Case("no epoch and no block", "M1.missing", None, drop(CLOSED, "epoch_start")),
    Case("batch size twice, other value", "M1.repeated", "global_batch_size",
         repeat(CLOSED, "global_batch_size", 4096), nth=1),
    Case("batch size twice", "M1.repeated", "global_batch_size",
         repeat(CLOSED, "global_batch_size", 2048), "warning", 1),
    Case("no hyperparameter of lars", "M1.missing", None, drop(CLOSED, "lars_opt_momentum")),
    Case("no hyperparameter of sgd", "M1.missing", None, drop(SGD, "model_bn_span")),
    Case("empty org", "M1.value", "submission_org", change(CLOSED, "submission_org", value="")),
    Case("unknown division", "M1.value", "submission_division",
         change(OPEN, "submission_division", value="Open")),
    Case("unknown status", "M1.value", "submission_status",
         change(CLOSED, "submission_status", value="on-prem")),
    Case("optimizer", "M1.value", "opt_name",
         change(CLOSED, "opt_name", value="adam")),
    Case("fixed value", "M1.value", "lars_epsilon", change(CLOSED, "lars_epsilon", value=1e-5)),
    Case("a text for a number", "M1.value", "global_batch_size",
         change(CLOSED, "global_batch_size", value="2048")),
    Case("no power of two", "M1.value", "lars_opt_weight_decay",
         change(CLOSED, "lars_opt_weight_decay", value=0.0003)),
    Case("no multiple", "M1.value", "sgd_opt_base_learning_rate",
         change(SGD, "sgd_opt_base_learning_rate", value=0.0105)),
    Case("not in open", "M1.value", "submission_benchmark",
         change(OPEN, "submission_benchmark", value="llama2_70b_lora")),
    Case("epoch without number", "M1.value",
         "epoch_start", change(CLOSED, "epoch_start", metadata={})),
    Case("evaluation without epoch", "M1.value", "eval_accuracy",
         change(CLOSED, "eval_accuracy", metadata={"samples_count": 7})),
    Case("evaluation of nothing", "M1.value",
         "eval_stop", change(CLOSED, "eval_stop", 1, metadata={}),
         nth=1),
    Case("block of no epochs", "M1.value", "block_start",
         change(BLOCKS, "block_start", metadata={"epoch_count": 0, "first_epoch_num": 1})),
    Case("block without first epoch", "M1.value", "block_start",
         change(BLOCKS, "block_start", metadata={"epoch_count": 1})),
    Case("no status", "M1.value", "run_stop", change(CLOSED, "run_stop", metadata={})),
    Case("run before initialisation ends", "M1.value", "run_start",
         move(CLOSED, "run_start", "init_stop")),
    Case("initialisation without start", "M1.value", "init_start",
         move(CLOSED, "init_stop", "init_start")),
    Case("division after initialisation", "M1.value", "init_stop",
         move(CLOSED, "submission_division", "run_start")),
    Case("closed initialisation", "M1.value", "init_stop",
         change(CLOSED, "init_stop", after_ms=30 * 60_000)),
    Case("open initialisation", "M1.value", "init_stop",
         change(OPEN, "init_stop", after_ms=240 * 60_000)),
    Case("target", "M1.never", "eval_accuracy",
         change(CLOSED, "eval_accuracy", 2, value=0.7589), nth=2),
    Case("a share above one", "M1.never", "eval_accuracy",
         change(CLOSED, "eval_accuracy", 2, value=1.0), nth=2),
    Case("did not converge", "T17.not_converged", "run_stop", resnet_40(status="aborted")),
    Case("cut short", "T17.not_converged", "eval_stop", drop(CLOSED, "run_stop"), nth=2),
    Case("after the end", "T3.after_run_stop",
         "seed", [*drop(CLOSED, "seed"), Entry("seed", 1)], "note"),
    Case("clock", "T4.step_back", "epoch_stop", change(CLOSED, "epoch_stop", after_ms=-20),
         "note"),
    Case("not finite", "T5.not_finite", "eval_accuracy",
         change(CLOSED, "eval_accuracy", value=float("nan"))),
)  # fmt: skip

CASES_06 = (
    Case("no contact", "M1.missing", None, drop(V06, "submission_poc_name")),
    Case("caches", "M1.value", "cache_clear", change(V06, "cache_clear", value=None)),
    Case("no boolean", "M1.value", "opt_learning_rate_alt_decay_func",
         change(V06, "opt_learning_rate_alt_decay_func", value="True")),
    Case("caches after start", "M1.value",
         "cache_clear", move(V06, "cache_clear", "global_batch_size")),
    Case("20 minutes", "M1.value", "init_stop", change(V06, "init_stop", after_ms=20 * 60_000)),
    Case("epoch left out", "M1.value", "epoch_start",
         change(V06, "epoch_start", 1, metadata={"epoch_num": 3}), nth=1),
    Case("evaluation of another epoch", "M1.value", "eval_accuracy",
         change(V06, "eval_accuracy", 1, metadata={"epoch_num": 1}), nth=1),
    Case("block of another epoch", "M1.value", "block_stop",
         change(V06, "block_stop", metadata={"first_epoch_num": 9})),
    Case("evaluation open at the end", "M1.value",
         "run_stop", move(V06, "run_stop", "eval_stop")),
    Case("did not converge", "T17.not_converged", "run_stop", gnmt_06(status="aborted")),
    Case("after the end", "T3.after_run_stop", "run_final", [*V06, Entry("run_final")], "note"),
)  # fmt: skip


@pytest.mark.parametrize("case", [*CASES_40, *CASES_06], ids=lambda case: case.name)
def test_a_broken_log_has_one_finding(case: Case, tmp_path: Path) -> None:
    found = (check_40 if case in CASES_40 else check_06)(case.entries, tmp_path)
    line = None
    if case.key is not None:
        line = [n for n, entry in enumerate(case.entries, 1) if entry.key == case.key][case.nth]
    assert (case.code, case.severity, line) in {(f.code, f.severity, f.line) for f in found}
    assert all(finding.hint for finding in found)


def test_lars_keys_belong_to_lars_alone_in_v06(tmp_path: Path) -> None:
    entries = [*V06[:9], Entry("opt_name", "sgd"), Entry("lars_epsilon", 0.1), *V06[9:]]
    found = check_06(change(entries, "submission_benchmark", value="resnet"), tmp_path)
    (whole,) = [finding for finding in found if finding.code == "M1.end"]
    assert "lars_eps equal to lars" in whole.expected
    assert whole.got.endswith("lars_eps 1")


def test_logs_that_rules_cannot_judge_are_told(tmp_path: Path) -> None:
    found = check_06(change(V06, "submission_benchmark", value="../gnmt"), tmp_path)
    told = {(finding.code, finding.line) for finding in found}
    assert told == {("M1.value", 1), ("M1.no_rules", None)}
    found = check_40(change(CLOSED, "submission_benchmark", value=["resnet"]), tmp_path)
    assert ("M1.unreadable", 1) in {(finding.code, finding.line) for finding in found}
    for lines, judged_in in ((mll_lines(CLOSED), TRAINING_40), (mllog_lines(V06), TRAINING_06)):
        found = check(lines, judged_in.name, tmp_path)
        assert [(f.code, f.line, f.severity) for f in found] == [("T1.dialect", 1, "error")]


def test_what_was_accepted_is_rejected_by_the_rules_of_mlcommons_alone(tmp_path: Path) -> None:
    wrong = change(change(CLOSED, "eval_accuracy", value=float("nan")), "seed", value=7)
    log = write(tmp_path / "result_0.txt", mllog_lines(wrong))
    for as_published, severity in ((False, "error"), (True, "warning")):
        judged_in = rounds.load(TRAINING_40.name, as_published)
        (finding,) = check_log(runlog.read(log), Place(TRAINING_40.name), judged_in)
        assert (finding.code, finding.severity) == ("T5.not_finite", severity)


def test_steps_of_the_clock_are_one_finding(tmp_path: Path) -> None:
    entries = change(change(HPC, "eval_start", after_ms=-70), "eval_error", after_ms=-500)
    found = check(mllog_lines(entries), HPC_20.name, tmp_path)
    assert [(f.code, f.severity) for f in found] == [("T4.step_back", "note")]
    assert "2 times, at most by 500 ms" in found[0].message


def test_a_glued_line_and_a_truncated_one_are_errors(tmp_path: Path) -> None:
    lines = mllog_lines(CLOSED)
    found = check([*lines[:3], lines[3] + lines[4], *lines[5:]], TRAINING_40.name, tmp_path)
    assert [(f.code, f.line) for f in found] == [("T1.place", 4)]
    path = tmp_path / "result_0.txt"
    path.write_text("\n".join(lines)[:-9], encoding="utf-8")
    found = check_log(runlog.read(path), Place(TRAINING_40.name), TRAINING_40)
    told = [(f.code, f.line) for f in found]
    assert told == [("T17.not_converged", len(lines) - 1), ("T1.truncated", len(lines))]


def test_a_log_of_a_round_is_followed(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(follow, "QUIET_SECONDS", 0.0)
    lines = mllog_lines(change(CLOSED, "lars_epsilon", value=1))
    log = write(tmp_path / "result_0.txt", lines)
    said = call_tool(check_compliance.main, [str(log), "--round", TRAINING_40.name, "--follow"], 1)
    assert said.count("M1.value lars_epsilon is not as the round requires") == 1
    assert "MLPerf Training v4.0 as judged by mlperf-logging" in said
    assert said.endswith(": fail (M1.value); Cepheid: fail\n")


def submit(
    root: Path, runs: Sequence[list[Entry]], system: str = "box", described: str | None = None
) -> Path:
    folder = root / "acme" / "results" / system / "resnet"
    for index, entries in enumerate(runs):
        write(folder / f"result_{index}.txt", mllog_lines(entries, index))
    description = dict.fromkeys(TRAINING_40.description_fields, "") | {
        "submitter": "Acme Inc.", "division": "closed", "system_name": "The Box",
        "status": "Preview", "number_of_nodes": "2", "accelerators_per_node": "8",
    }  # fmt: skip
    systems = root / "acme" / "systems"
    systems.mkdir(exist_ok=True)
    (systems / f"{described or system}.json").write_text(json.dumps(description))
    return folder


@pytest.mark.parametrize(
    ("name", "runs", "code", "severity"),
    [
        ("too few", [resnet_40(k) for k in range(4)], "M2.number_of_runs", "error"),
        ("too many", [resnet_40(k) for k in range(6)], "M2.number_of_runs", "error"),
        ("same seed", [change(resnet_40(k), "seed", value=1) for k in range(5)], "T15.repeated",
         "error"),
        ("two break rules", [change(resnet_40(k), "lars_epsilon", value=k // 3) for k in range(5)],
         "M2.too_many_broken", "error"),
        ("copy", [change(resnet_40(k // 2), "seed", value=k) for k in range(5)],
         "T19.copied_quality", "error"),
        ("one not converged",
         [resnet_40(k, status="aborted" if k == 3 else "success") for k in range(5)],
         "T17.not_converged", "note"),
        ("two not converged",
         [resnet_40(k, status="aborted" if k > 2 else "success") for k in range(5)], "T17.too_many",
         "error"),
    ],
)  # fmt: skip
def test_a_result(
    name: str, runs: list[list[Entry]], code: str, severity: str, tmp_path: Path
) -> None:
    submit(tmp_path, runs)
    found = judge_as_mlperf(tmp_path, TRAINING_40.name).findings
    assert (code, severity) in {(finding.code, finding.severity) for finding in found}
    others = {finding.rule for finding in found if finding.severity != "warning"}
    assert others == {code.partition(".")[0]}
    assert all(finding.rule == "M1" for finding in found if finding.severity == "warning")


def test_closed_runs_log_a_seed_since_v41(tmp_path: Path) -> None:
    runs = [
        change(drop(resnet_40(k), "seed"), "submission_benchmark", value="ssd") for k in range(5)
    ]
    submit(tmp_path, runs)
    for version, codes in (("4.0", set()), ("4.1", {"T15.missing"})):
        found = judge_as_mlperf(tmp_path, f"mlperf-training-{version}").findings
        assert {finding.code for finding in found if finding.rule == "T15"} == codes


def test_what_was_needed_to_the_target_has_its_unit(tmp_path: Path) -> None:
    for metadata, samples, epochs in (
        ({"epoch_num": 3}, None, 3), ({"epoch_num": 2_549_387}, 2_549_387, None),
        ({"epoch_num": 3, "samples_count": 700}, 700, None), ({"epoch_num": 0.75}, None, 0.75),
    ):  # fmt: skip
        entries = change(CLOSED, "eval_accuracy", 2, metadata=metadata)
        log = write(tmp_path / "result_0.txt", mllog_lines(entries))
        (run,) = judge_as_mlperf(log, TRAINING_40.name).results[0].runs
        assert (run.samples, run.epochs) == (samples, epochs)
