"""What surrounds the logs of a submission in rounds of MLPerf."""

from pathlib import Path

from tests.compliance.checks.test_mlperf import submit
from tests.compliance.history import cosmoflow_20, mllog_lines, resnet_40, write
from tests.compliance.test_published import judge_published


def test_power_logs_are_no_results(tmp_path: Path) -> None:
    """Some submitters name them like the run that they belong to."""
    folder = submit(tmp_path, [resnet_40(index) for index in range(5)])
    write(folder / "power" / "result_0" / "result_0-1_0.txt", mllog_lines(resnet_40()))
    judgement = judge_published(tmp_path, "mlperf-training-4.0")
    assert [result.folder.path for result in judgement.results] == [folder]


def test_weak_scaling_may_train_hundreds_of_models(tmp_path: Path) -> None:
    folder = tmp_path / "acme" / "results" / "box" / "weak" / "cosmoflow"
    for index in range(101):
        write(folder / f"result_{index}.txt", mllog_lines(cosmoflow_20(index), index))
    assert judge_published(tmp_path, "mlperf-hpc-2.0").findings == ()
