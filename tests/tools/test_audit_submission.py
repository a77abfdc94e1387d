"""`cepheid audit`: the same run again, and curves that agree or do not."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs need the extra torch")
pytest.importorskip("galsim", reason="runs need the extra galsim")

from compliance.read.log.runlog import read
from rules import definition
from rules.definition import ROOT
from rules.errors import UserError
from tests.compliance.builder import SYSTEM, Record, edit, run_records, write_log, write_result
from tests.tools.test_run_benchmark import FAST, cepheid_run, environment
from tools import audit_submission, new_submission

MINI = definition.load("galaxy_shape", "mini")
Printed = pytest.CaptureFixture[str]


def value_of(arguments: list[str], key: str) -> str:
    """What ``--set key=`` says."""
    (found,) = (text for text in arguments if text.startswith(f"{key}="))
    return found.partition("=")[2]


def test_a_run_is_repeated_as_its_log_says(tmp_path: Path) -> None:
    folder = write_result(tmp_path / "acme", MINI)
    records = run_records(MINI, 2, hyperparameters={"global_batch_size": 64})
    how = {"framework": "keras 3.8", "device": "cpu", "precision": "bf16", "ranks": 1}
    how["execution"] = {"precision": "bf16", "compile": "auto", "threads": "2", "because": {}}
    records = edit(records, "implementation", lambda record: record.update(value=how))
    log = write_log(folder / "result_2.txt", records)
    arguments = audit_submission.list_arguments(read(log), MINI)
    seed = next(record["value"] for record in records if record["key"] == "seed")
    assert arguments[:9] == ["galaxy_shape", "--scale", "mini", "--division", "closed", "--seed",
                             str(seed), "--runs", "1"]  # fmt: skip
    assert value_of(arguments, "global_batch_size") == "64"
    assert value_of(arguments, "opt_name") == "adam"
    assert value_of(arguments, "precision") == "bf16"
    assert not any(text.startswith("compile=") for text in arguments)
    assert arguments[arguments.index("--framework") + 1] == "keras"


def change_metrics(nth: int, **metrics: float) -> list[Record]:
    """A log with other metrics at one evaluation."""

    def change(record: Record) -> None:
        record["metadata"]["metrics"].update(metrics)

    return edit(run_records(MINI), "eval_accuracy", change, nth)


@pytest.mark.parametrize(
    ("again", "code", "says"),
    [
        (run_records(MINI), 0, "agrees: all 6 values within 0.0%"),
        (change_metrics(1, e_rmse=0.3), 1, "differs: 1 of 6 values differ by more than 10.0%"),
        (change_metrics(1, coverage_68=0.0), 0, "agrees"),
        (run_records(MINI, blocks=4), 1, "differ by more than"),
        (run_records(MINI, blocks=3, converged=False), 1, "differ by more than"),
        ([], 1, "differs: 0 of 0"),
    ],
)
def test_curves_are_compared(
    again: list[Record], code: int, says: str, tmp_path: Path, capsys: Printed
) -> None:
    logged = read(write_log(tmp_path / "result_0.txt", run_records(MINI)))
    other = read(write_log(tmp_path / "result_1.txt", again))
    assert audit_submission._judge_values(logged, other, MINI, 0.1) == code
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("again", "code", "says"),
    [
        (run_records(MINI), 0, "nll: differs by 0.0%"),
        (change_metrics(0, e_rmse=0.3), 0, "agrees"),  # early, as far apart as two seeds
        (change_metrics(2, e_rmse=0.3), 1, "differs: e_rmse: differs by"),
        (run_records(MINI, blocks=9), 1, "differs: the numbers of evaluations"),
        (
            [],
            1,
            "differs: the numbers of evaluations differ by more than 1; e_rmse: no common eval",
        ),
    ],
)
def test_on_another_machine_curves_are_compared_as_a_whole(
    again: list[Record], code: int, says: str, tmp_path: Path, capsys: Printed
) -> None:
    logged = read(write_log(tmp_path / "result_0.txt", run_records(MINI)))
    other = read(write_log(tmp_path / "result_1.txt", again))
    assert audit_submission._judge_curves(logged, other, [logged], MINI) == code
    assert says in capsys.readouterr().out


def test_runs_of_a_result_that_scatter_widen_the_tolerance(tmp_path: Path, capsys: Printed) -> None:
    logged = read(write_log(tmp_path / "result_0.txt", run_records(MINI)))
    again = read(write_log(tmp_path / "result_1.txt", change_metrics(2, e_rmse=0.3)))
    runs = [logged, read(write_log(tmp_path / "result_2.txt", change_metrics(2, e_rmse=0.2)))]
    audit_submission._judge_curves(logged, again, [logged], MINI)
    assert "tolerance 10%" in capsys.readouterr().out
    audit_submission._judge_curves(logged, again, runs, MINI)
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("e_rmse: "))
    assert not line.endswith("10%")


def test_what_cannot_be_audited_is_refused(tmp_path: Path) -> None:
    folder = write_result(tmp_path / "acme", MINI)
    with pytest.raises(UserError, match="no run with number 9"):
        audit_submission.main([str(folder), "--run", "9"])
    with pytest.raises(UserError, match="expected a share"):
        audit_submission.main([str(folder), "--tolerance", "10"])
    write_result(tmp_path / "acme", MINI, system={**SYSTEM, "system": "other"})
    with pytest.raises(UserError, match="contains several results"):
        audit_submission.main([str(tmp_path / "acme")])
    records = edit(run_records(MINI), "definition_digest", lambda record: record.update(value="0"))
    log = write_log(folder / "result_0.txt", records)
    with pytest.raises(UserError, match="another version"):
        audit_submission.main([str(log)])


def test_code_that_is_not_there_is_not_replaced_by_ours(tmp_path: Path) -> None:
    folder = write_result(tmp_path / "acme", MINI)
    records = run_records(MINI)
    at = next(n for n, record in enumerate(records) if record["key"] == "code_digest")
    records.insert(at + 1, records[at] | {"key": "task_digest", "value": "0" * 64})
    log = write_log(folder / "result_0.txt", records)
    with pytest.raises(UserError, match="not the code that wrote"):
        audit_submission.main([str(log)])


@pytest.mark.slow
def test_a_submissions_own_code_is_run_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    code = audit_submission.main([str(root), "--data", str(tmp_path / "data")])
    printed = capfd.readouterr()
    assert code == 0, printed.out + printed.err
    assert "e_rmse: differs by 0.0%" in printed.out  # one evaluation, bit for bit
