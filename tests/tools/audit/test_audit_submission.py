"""`cepheid audit`: the same run again, and curves that agree or do not."""

import json
import random
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs need the extra torch")
pytest.importorskip("galsim", reason="runs need the extra galsim")

from cepheid.compliance.read.log.runlog import RunLog, read
from cepheid.reference.session.code_digest import digest_own_code
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT
from cepheid.tools import audit_submission, new_submission
from cepheid.tools.audit import comparison, rerun
from cepheid.tools.audit.choice import choose_run
from cepheid.tools.audit.comparison import Verdict
from tests import assert_refused
from tests.compliance.asserting import Patch, Printed, assert_says, call_tool
from tests.compliance.builder import (
    SYSTEM,
    Record,
    edit,
    name_task,
    put,
    run_records,
    write_log,
    write_result,
)
from tests.tools.audit.test_containment import needs_bwrap
from tests.tools.test_run_benchmark import FAST, cepheid_run, environment

MINI = definition.load("galaxy_shape", "mini")
BLOCKS = 11  # about as many as the reference needs (T21)


def value_of(arguments: list[str], key: str) -> str:
    (found,) = (text for text in arguments if text.startswith(f"{key}="))
    return found.partition("=")[2]


def test_a_run_is_repeated_as_its_log_says(tmp_path: Path) -> None:
    folder = write_result(tmp_path / "acme", MINI)
    records = run_records(MINI, 2, hyperparameters={"global_batch_size": 64})
    how = {"framework": "keras 3.8", "device": "cpu", "precision": "bf16", "ranks": 1}
    how["execution"] = {"precision": "bf16", "compile": "auto", "threads": "2", "because": {}}
    records = put(records, "implementation", value=how)
    log = write_log(folder / "result_2.txt", records)
    arguments = rerun.list_arguments(read(log), MINI)
    seed = next(record["value"] for record in records if record["key"] == "seed")
    assert arguments[:9] == ["galaxy_shape", "--scale", "mini", "--division", "closed", "--seed",
                             str(seed), "--runs", "1"]  # fmt: skip
    assert value_of(arguments, "global_batch_size") == "64"
    assert value_of(arguments, "opt_name") == "adam"
    assert value_of(arguments, "precision") == "bf16"
    assert not any(text.startswith("compile=") for text in arguments)
    assert arguments[arguments.index("--framework") + 1] == "keras"


@pytest.mark.parametrize(("micro_batch", "repeated"), [("16", True), ("whole", False)])
def test_pieces_of_a_batch_are_repeated(micro_batch: str, repeated: bool, tmp_path: Path) -> None:
    how = {"framework": "torch 2.9", "execution": {"micro_batch": micro_batch}}
    records = put(run_records(MINI, 0), "implementation", value=how)
    log = write_log(tmp_path / "result_0.txt", records)
    assert ("micro_batch=16" in rerun.list_arguments(read(log), MINI)) == repeated


def change_metrics(nth: int, *, index: int = 0, **metrics: float) -> list[Record]:
    def change(record: Record) -> None:
        record["metadata"]["metrics"].update(metrics)

    return edit(run_records(MINI, index), "eval_accuracy", change, nth)


def write(path: Path, records: list[Record]) -> RunLog:
    return read(write_log(path, records))


def verdict_of(verdicts: Iterable[Verdict]) -> tuple[bool, str]:
    """Whether all that was judged agrees, and what was found, on lines."""
    listed = list(verdicts)
    agrees = all(verdict.agrees for verdict in listed if verdict.agrees is not None)
    return agrees, "\n".join(f"{v.what}: {v.word}: {v.found}" for v in listed)


VALUES = "the values of each evaluation"
CURVES = "on another machine, curves as a whole"


def test_two_runs_are_compared(tmp_path: Path) -> None:
    for compared, again, agrees, says in [
        (VALUES, run_records(MINI), True, "nll: agrees: all 3 values within 0.0%"),
        (VALUES, change_metrics(1, e_rmse=0.3), False, "e_rmse: DIFFERS: 1 of 3 values differ by"),
        (VALUES, change_metrics(1, coverage_68=0.0), True, "agrees"),
        (VALUES, run_records(MINI, blocks=4), False, "differ by more than"),
        (VALUES, run_records(MINI, blocks=3, converged=False), False, "differ by more than"),
        (VALUES, [], False, "0 of 0"),
        (CURVES, run_records(MINI), True, "nll: agrees: differs by 0.0%"),
        (CURVES, change_metrics(0, e_rmse=0.3), True, "agrees"),  # early, as two seeds differ
        (CURVES, change_metrics(2, e_rmse=0.3), False, "e_rmse: DIFFERS: differs by"),
        (CURVES, run_records(MINI, blocks=9), False, "evaluations: DIFFERS: 3 in the log, 9 in"),
        (CURVES, [], False, "e_rmse: DIFFERS: no common eval"),
    ]:
        logged = write(tmp_path / "result_0.txt", run_records(MINI))
        other = write(tmp_path / "result_1.txt", again)
        if compared == VALUES:
            found = verdict_of(comparison.judge_values(logged, other, MINI, 0.1))
        else:
            found = verdict_of(comparison.judge_curves(logged, other, [logged], MINI))
        assert found[0] == agrees
        assert says in found[1]


def test_converged_runs_that_scatter_widen_the_tolerance_up_to_a_limit(tmp_path: Path) -> None:
    logged = write(tmp_path / "result_0.txt", run_records(MINI))
    again = write(tmp_path / "result_1.txt", change_metrics(2, e_rmse=0.165))
    assert not verdict_of(comparison.judge_curves(logged, again, [logged], MINI))[0]
    near = write(tmp_path / "result_2.txt", change_metrics(2, e_rmse=0.14))
    agrees, found = verdict_of(comparison.judge_curves(logged, again, [logged, near], MINI))
    assert agrees
    assert "tolerance 10%" not in found.split("e_rmse: ")[1].split("\n")[0]
    far = write(tmp_path / "result_3.txt", change_metrics(2, e_rmse=9.0))
    _, found = verdict_of(comparison.judge_curves(logged, again, [logged, far], MINI))
    assert "e_rmse: not judged" in found


def test_times_are_judged_on_the_machine_of_the_log_only(tmp_path: Path) -> None:
    logged = write(tmp_path / "result_0.txt", run_records(MINI, block_ms=10_000))
    again = write(tmp_path / "result_1.txt", run_records(MINI, block_ms=20_000))
    assert verdict_of(comparison.judge_times(again, logged, ""))[0]  # a log may be slow
    (verdict,) = comparison.judge_times(logged, again, "")
    assert verdict.agrees is False
    assert "x 1.8" in verdict.found
    (verdict,) = comparison.judge_times(logged, again, "another machine: processor A, here B")
    assert verdict.agrees is None
    assert "another machine: processor A, here B" in verdict.found
    short = write(tmp_path / "result_2.txt", run_records(MINI, block_ms=10, blocks=1))
    (verdict,) = comparison.judge_times(short, again, "")
    assert verdict.agrees is None
    assert comparison.describe_other_machine(SYSTEM, SYSTEM) == ""
    assert "processor Example CPU 9000, here B" in comparison.describe_other_machine(
        SYSTEM, {**SYSTEM, "processor": "B"}
    )


def test_the_run_is_drawn_among_those_that_converged(tmp_path: Path) -> None:
    folder = write_result(tmp_path / "acme", MINI, converged=lambda index: index != 3)
    drawn = [choose_run(folder, None, seed).logged.index for seed in range(40)]
    assert set(drawn) == {0, 1, 2, 4}
    assert drawn == [choose_run(folder, None, seed).logged.index for seed in range(40)]
    assert choose_run(folder, 3, 0).logged.index == 3
    assert choose_run(folder / "result_2.txt", None, 0).logged.index == 2


def test_what_cannot_be_audited_is_refused(tmp_path: Path) -> None:
    folder = write_result(tmp_path / "acme", MINI)
    assert_refused("no run with number 9", audit_submission.main, [str(folder), "--run", "9"])
    assert_refused("expected a share", audit_submission.main, [str(folder), "--tolerance", "10"])
    records = put(run_records(MINI), "definition_digest", value="0")
    log = write_log(folder / "result_0.txt", records)
    assert_refused("another version", audit_submission.main, [str(log)])
    write_result(tmp_path / "acme", MINI, system={**SYSTEM, "system": "other"})
    assert_refused("contains several results", audit_submission.main, [str(tmp_path / "acme")])


def test_logs_that_the_checker_rejects_are_not_repeated(tmp_path: Path) -> None:
    folder = write_result(tmp_path / "acme", MINI, blocks=lambda index: BLOCKS)
    records = put(run_records(MINI, 4, blocks=BLOCKS), "train_samples", value=7)
    write_log(folder / "result_4.txt", records)
    printed = call_tool(audit_submission.main, [str(folder / "result_1.txt")], 1)
    assert_says(printed, "result_4.txt", "not repeated: the checker rejects this result, 1 errors")


def write_logs(folder: Path, change: Callable[[list[Record]], list[Record]]) -> None:
    for index in range(5):
        write_log(folder / f"result_{index}.txt", change(run_records(MINI, index, blocks=BLOCKS)))


def test_code_that_is_not_there_is_not_replaced_by_ours(tmp_path: Path) -> None:
    folder = write_result(tmp_path / "acme", MINI, blocks=lambda index: BLOCKS)
    write_logs(folder, partial(name_task, digest="0" * 64))
    assert_refused("not the code that wrote", audit_submission.main, [str(folder)])


@pytest.mark.parametrize("framework", ["tensorflow 2.21.0", "torch 2.13.0"])
def test_a_log_without_our_settings_is_not_ours(framework: str, tmp_path: Path) -> None:
    system = {**SYSTEM, "framework": framework}
    folder = write_result(tmp_path / "acme", MINI, blocks=lambda index: BLOCKS, system=system)
    how = {"framework": framework, "device": "cpu", "precision": "fp32", "ranks": 1}
    write_logs(folder, lambda records: put(records, "implementation", value=how))
    with pytest.raises(UserError, match=r"repeat the run as .*README.md says \(no run.sh there\)"):
        audit_submission.main([str(folder)])
    with pytest.raises(UserError, match=r"run\.sh: missing"):
        audit_submission.main([str(folder), "--run-submitted-code"])


PROGRAM = """\
#!/usr/bin/env bash
# run.sh DATA OUTPUT: "trains" by writing recorded logs as new ones; those that are there stay
set -e
test -d "$1"
folder="$2/results/box/galaxy_shape-mini-closed"
mkdir -p "$folder"
for run in 0 1 2 3 4; do
  [ -e "$folder/result_$run.txt" ] && continue
  echo "making $run" >> "$2/made"
  python3 "$(dirname "$0")/train.py" "$(dirname "$0")/recorded_$run.txt" "$folder/result_$run.txt"
done
"""

TRAIN = """\
import json, pathlib, random, sys, time
recorded = pathlib.Path(sys.argv[1]).read_text().splitlines()
with open(sys.argv[2], "w") as log:
    for line in recorded:
        record = json.loads(line.removeprefix(":::MLLOG "))
        time.sleep(random.uniform(0.002, 0.02))
        record["time_ms"] = time.time() * 1000
        record["metadata"]["monotonic_ms"] = time.monotonic() * 1000
        print(":::MLLOG " + json.dumps(record), file=log)
"""


RUN_3 = random.Random(3).choice(range(5))  # what seed 3 draws


def write_foreign(root: Path, program: str = PROGRAM) -> Path:
    """A submission whose code is a program of its own, which writes recorded logs."""
    folder = write_result(root, MINI, blocks=lambda index: BLOCKS)
    code = root / "benchmarks" / "galaxy_shape"
    code.mkdir(parents=True, exist_ok=True)
    (code / "run.sh").write_text(program)
    (code / "train.py").write_text(TRAIN)
    for index in range(5):
        write_log(code / f"recorded_{index}.txt", run_records(MINI, index, blocks=BLOCKS))
    write_logs(folder, partial(name_task, digest=digest_own_code(code)))
    return folder


@needs_bwrap
def test_foreign_code_runs_if_asked(tmp_path: Path, monkeypatch: Patch) -> None:
    folder = write_foreign(tmp_path / "acme")
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(rerun, "_prepare", lambda choice, data: data)
    data = ["--data", str(tmp_path / "data")]
    with pytest.raises(UserError, match=r"--run-submitted-code: runs `run\.sh DATA OUTPUT`"):
        audit_submission.main([str(folder), *data])
    assert not (tmp_path / "out").exists()
    out, report = tmp_path / "out", tmp_path / "audit.json"
    out.mkdir()
    line = [str(folder), *data, "--run-submitted-code", "--output", str(out), "--json", str(report)]
    printed = call_tool(audit_submission.main, [*line, "--seed", "3"])
    assert f"run {RUN_3}: drawn with --seed 3, among 5 that converged" in printed
    assert (out / "made").read_text() == f"making {RUN_3}\n"
    assert "it could print a" in printed
    assert printed.endswith("agrees\n")
    content = json.loads(report.read_text())
    assert (content["code"], content["seed"], content["agrees"]) == ("foreign", 3, True)
    assert content["containment"] == "bwrap"
    # A log that differs, repeated elsewhere:
    other = write_log(tmp_path / "other.txt", run_records(MINI, blocks=14))
    line = [str(folder / "result_0.txt"), *data, "--against", str(other)]
    assert "differs: evaluations: 11 in the log, 14 in" in call_tool(audit_submission.main, line, 1)


def test_only_the_arithmetic_may_be_repeated_otherwise(tmp_path: Path) -> None:
    reference = rerun.Origin("reference", tmp_path)
    rerun.Settings(tmp_path, tmp_path, ("precision=fp32",)).check(MINI, reference)
    foreign = rerun.Origin("foreign", tmp_path)
    for origin, override, why in (
        (reference, "opt_base_learning_rate=1", "only how the arithmetic is done"),
        (foreign, "precision=fp32", "takes no settings; leave --set out"),
    ):
        assert_refused(why, rerun.Settings(tmp_path, tmp_path, (override,)).check, MINI, origin)


def test_times_of_other_arithmetic_are_not_judged(tmp_path: Path) -> None:
    """An honest log would be called too fast where bfloat16 is emulated, or another precision is
    repeated."""

    def differs(precision: str, *overrides: str, has_bfloat16: bool) -> str:
        how = {"framework": "torch", "device": "cpu", "precision": precision, "ranks": 1}
        records = put(run_records(MINI), "implementation", value=how)
        logged = write(tmp_path / "result_0.txt", records)
        return comparison.describe_other_arithmetic(logged, overrides, has_bfloat16=has_bfloat16)

    assert differs("bfloat16", has_bfloat16=True) == ""
    assert differs("float32", has_bfloat16=False) == ""
    assert "no instructions for bfloat16" in differs("bfloat16", has_bfloat16=False)
    repeated = differs("bfloat16", "precision=fp32", has_bfloat16=True)
    assert repeated == "repeated with precision=fp32"


@pytest.mark.parametrize("overrides", [(), ("precision=fp32",)])
def test_the_table_says_why_times_are_not_judged(
    overrides: tuple[str, ...], tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    """On a machine whose description is that of the log."""
    folder = write_result(tmp_path / "acme", MINI, blocks=lambda _: BLOCKS)
    again = rerun.Rerun(read(folder / "result_1.txt"), overrides=overrides)
    monkeypatch.setattr(audit_submission, "repeat", lambda *_, **__: again)
    monkeypatch.setattr("cepheid.tools.describe_system.describe_machine", lambda *_: SYSTEM)
    audit_submission.main([str(folder / "result_0.txt")])
    (line,) = [text for text in capsys.readouterr().out.splitlines() if text.startswith("time per")]
    assert ("not judged" in line) == bool(overrides)


@needs_bwrap
@pytest.mark.promise
def test_submitted_code_is_run_again(tmp_path: Path, capfd: Printed, monkeypatch: Patch) -> None:
    where = ["--submissions", str(tmp_path / "submissions"), "--scale", "mini"]
    new_submission.main(["acme", "--benchmark", "galaxy_shape", *where])
    root = tmp_path / "submissions" / "acme"
    (described,) = (root / "systems").iterdir()
    task = ["--task", root / "benchmarks" / "galaxy_shape", "--system", described]
    line = ["galaxy_shape", *FAST, *task, "--runs", "1", "--data", tmp_path / "data"]
    made = cepheid_run(*line, "--output", root)
    assert made.returncode == 0, made.stderr
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="only if you ask"):
        audit_submission.main([str(root), "--data", str(tmp_path / "data")])
    asked = [str(root), "--data", str(tmp_path / "data"), "--run-submitted-code"]
    code = audit_submission.main(asked)
    printed = capfd.readouterr()
    assert code == 0, printed.out + printed.err
    assert "differs by 0.0%" in printed.out  # one evaluation, bit for bit
