"""What submitters to MLPerf met, and logs of v6.1: a situation each, and the right answer.

Each situation of the field was accepted, refused or reported at github.com/mlcommons; ``seen`` says
where. No log of v6.1 is published: samples stand for epochs, and logs say precisions, parallelism.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cepheid.rules.errors import UserError
from cepheid.rules.mlperf.rule_files import require_rule_set
from cepheid.tools import check_compliance, summarize_results
from cepheid.tools.peer.asked import judge_log
from tests.compliance.asserting import Printed
from tests.compliance.checks.test_mlperf import check, submit
from tests.compliance.history import (
    Entry,
    change,
    cosmoflow_20,
    drop,
    mllog_lines,
    resnet_40,
    write,
)

TRAINING, HPC = "mlperf-training-4.0", "mlperf-hpc-2.0"
BATCH, EPOCHS = 3264, 34.5  # the reference has runs at this batch size, and needs more epochs
RUNS = [change(resnet_40(k), "global_batch_size", value=BATCH) for k in range(5)]
MINUTES = sum(
    sum(e.after_ms for e in run[[e.key for e in run].index("run_start") + 1 :]) for run in RUNS[1:4]
) / (3 * 60_000)  # the olympic mean

Finding = tuple[str, str, int | None]  # code, severity and line


@dataclass(frozen=True)
class Case:
    """A situation: what is submitted, all findings in it, and what its row in the summary says."""

    name: str
    seen: str
    prepare: Callable[[Path], object]
    findings: frozenset[Finding] = frozenset()
    row: Mapping[str, object] = field(default_factory=dict)
    round: str = TRAINING

    @property
    def is_refused(self) -> bool:
        return any(severity == "error" for _, severity, _ in self.findings)


def go_on(root: Path) -> None:
    """Write records after run_stop, as callbacks do that close their epoch."""
    more = [Entry("epoch_stop", None, {"epoch_num": 36}), Entry("throughput", 9.5)]
    submit(root, [[*run, *more] for run in RUNS])


def step_back(root: Path) -> None:
    """Write an evaluation with the time of its checkpoint, a minute before the record above it."""
    submit(root, [change(run, "eval_start", 1, after_ms=-60_000) for run in RUNS])


def scale(root: Path) -> None:
    (submit(root, RUNS) / "scaling.json").write_text('{"scaling_factor": 1.1}')


def prune(root: Path) -> None:
    folder = root / "acme" / "results" / "box" / "weak" / "cosmoflow"
    for index in range(12):
        inner = folder / "pruned_results" if index > 9 else folder
        write(inner / f"result_{index}.txt", mllog_lines(cosmoflow_20(index), index))
    submit(root, [])  # the description alone


def count_samples(root: Path) -> None:
    submit(root, [
        [each.having(epoch_num=each.metadata["epoch_num"] * 100_000)
         if "epoch_num" in each.metadata else each for each in run] for run in RUNS
    ])  # fmt: skip


def relaunch(root: Path) -> None:
    """Let the first attempt of a run die after an evaluation, and append the second one."""
    died = RUNS[0][: [entry.key for entry in RUNS[0]].index("eval_stop") + 1]
    submit(root, [[*died, *RUNS[0]], *RUNS[1:]])


def call_open(root: Path) -> None:
    submit(root, RUNS)
    description = root / "acme" / "systems" / "box.json"
    content = json.loads(description.read_text())
    description.write_text(json.dumps({**content, "division": "open"}))


def average_reference() -> float:
    counts = sorted(require_rule_set(TRAINING).read_reference_runs("resnet")[BATCH])
    return sum(counts[1:-1]) / len(counts[1:-1])


STOP = len(RUNS[0])
SECOND = [line for line, entry in enumerate(RUNS[0], 1) if entry.key == "eval_start"][1]
CASES = (
    Case("01 records after run_stop", "training_results_v4.0", go_on,
         frozenset({("T3.after_run_stop", "note", STOP + 1)}), {"verdict": "pass"}),
    Case("02 time steps back", "training_policies#341", step_back,
         frozenset({("T4.step_back", "note", SECOND)}), {"verdict": "pass"}),
    Case("04 scaling factor of the published score", "logging#455", scale,
         row={"score_minutes": pytest.approx(1.1 * MINUTES), "scaling_factor": 1.1}),
    Case("05 pruned results are no result", "training_policies#493", prune,
         frozenset({("M2.pruned", "note", None)}),
         {"scale": "weak", "runs": 10, "verdict": "pass"}, HPC),
    Case("06 samples called epochs", "logging#434", count_samples,
         row={"samples_to_target": 3_600_000, "epochs_to_target": None}),
    Case("09 relaunched into the same log", "AMD-AGI/Primus#1071", relaunch,
         frozenset({("M1.second_run", "error", STOP - 10)})),
    Case("16 division contradicts the logs", "logging#241", call_open,
         frozenset({("M2.division", "warning", None)}), {"division": "open"}),
    # with fewer epochs than the reference's mean, and not too few
    Case("18 convergence test of a round", "training_policies#503", lambda root: submit(root, [
        change(run, "eval_accuracy", 2, metadata={"epoch_num": EPOCHS}) for run in RUNS]),
         row={"rcp_verdict": "pass", "rcp_factor": pytest.approx(average_reference() / EPOCHS)}),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_situation_has_its_right_answer(case: Case, tmp_path: Path, capsys: Printed) -> None:
    case.prepare(tmp_path)
    call = [str(tmp_path), "--round", case.round, "--format", "json"]
    assert check_compliance.main(call) == case.is_refused
    report = json.loads(capsys.readouterr().out)
    found = {(each["code"], each["severity"], each["line"]) for each in report["findings"]}
    assert found == case.findings
    assert summarize_results.main(call) == case.is_refused
    (row,) = json.loads(capsys.readouterr().out)
    assert {key: row[key] for key in case.row} == case.row


def test_nothing_but_pruned_results_is_said(tmp_path: Path) -> None:
    prune(tmp_path)
    for log in (tmp_path / "acme" / "results" / "box" / "weak" / "cosmoflow").glob("*.txt"):
        log.unlink()
    with pytest.raises(UserError, match="pruned_results: logs that weak scaling sets aside"):
        summarize_results.main([str(tmp_path), "--round", HPC])


ROUND_61 = "mlperf-training-6.1"
BATCH_61 = 32
LLAMA = {
    "max_sequence_length": 8192, "opt_name": "adamw", "opt_base_learning_rate": 8e-4,
    "opt_end_learning_rate": 8e-5, "opt_learning_rate_warmup_steps": 256,
    "opt_learning_rate_decay_steps": 1_200_000 - 256,
    "opt_learning_rate_decay_schedule": "cosine with linear warmup", "opt_adamw_beta_1": 0.9,
    "opt_adamw_beta_2": 0.95, "opt_adamw_epsilon": 1e-05, "opt_adamw_weight_decay": 0.1,
    "opt_gradient_clip_norm": 1.0, "max_steps": 1_200_000,
}  # fmt: skip
DISCLOSED = {
    "lowest_numerical_precision_in_linear": "nvfp4", "lowest_numerical_precision_in_attn": "fp8",
    "lowest_numerical_precision_in_comm": "bfloat16", "tensor_parallelism": 2,
    "pipeline_parallelism": 1, "context_parallelism": 4, "expert_parallelism": 1,
    "micro_batch_size": 2, "config_filename": "config_box.sh",
}  # fmt: skip


def llama_61(index: int = 0) -> list[Entry]:
    """Make a compliant log of Llama 3.1 8B, in samples; the target is reached at the third."""
    entries = [
        Entry("submission_benchmark", "llama31_8b"), Entry("submission_org", "acme"),
        Entry("submission_division", "closed"), Entry("submission_status", "onprem"),
        Entry("submission_platform", "1xbox"), Entry("cache_clear", True), Entry("init_start"),
        Entry("seed", 100 + index), Entry("global_batch_size", BATCH_61),
        Entry("gradient_accumulation_steps", 8), Entry("train_samples", 1_574_207_408),
        Entry("eval_samples", 1024),
        *(Entry(key, value) for key, value in (LLAMA | DISCLOSED).items()),
        Entry("init_stop", after_ms=90_000), Entry("run_start"),
    ]  # fmt: skip
    for samples, loss in ((159_744, 3.4), (172_032, 3.35), (184_320, 3.29)):
        number = {"samples_count": samples}
        entries += [
            Entry("block_start", None, number),
            Entry("block_stop", None, number, 600_000 + index),
            Entry("eval_start", None, number),
            Entry("eval_accuracy", loss + index / 1e5, number, 2_000),
            Entry("eval_stop", None, number),
        ]
    return [*entries, Entry("run_stop", None, {"status": "success", "samples_count": 184_320})]


RUN = llama_61()
LOGS_61 = {
    "as it should be": (RUN, set()),
    "in bfloat16 on one device": (
        change(change(RUN, "tensor_parallelism", value=1),
               "lowest_numerical_precision_in_linear", value="bfloat16"), set()),
    "an unknown precision": (
        change(RUN, "lowest_numerical_precision_in_attn", value="fp7"), {"M1.value"}),
    "a precision as a list": (
        change(RUN, "lowest_numerical_precision_in_comm", value=["fp8"]), {"M1.value"}),
    "no parallelism": (change(RUN, "expert_parallelism", value=0), {"M1.value"}),
    "half a device": (change(RUN, "tensor_parallelism", value=0.5), {"M1.value"}),
    "a number as text": (change(RUN, "pipeline_parallelism", value="1"), {"M1.value"}),
    "not said": (drop(RUN, "context_parallelism"), {"M1.missing"}),
    "said by two ranks": ([*RUN[:9], Entry("micro_batch_size", 4), *RUN[9:]], {"M1.repeated"}),
    "no configuration": (change(RUN, "config_filename", value=""), {"M1.value"}),
    "epochs for the accuracy": (
        [each.having(samples_count=None, epoch_num=1) if each.key == "eval_accuracy" else each
         for each in RUN], {"M1.value"}),
    "neither samples nor epochs": (change(RUN, "block_stop", metadata={}), {"M1.value"}),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS_61)
def test_a_log_gets_the_verdict_of_mlcommons(name: str, tmp_path: Path) -> None:
    entries, codes = LOGS_61[name]
    assert {each.code for each in check(mllog_lines(entries), ROUND_61, tmp_path)} == codes
    theirs = judge_log(tmp_path / "result_0.txt", require_rule_set(ROUND_61)).verdict
    assert theirs == ("FAILED" if codes else "SUCCESS")


def test_a_result_says_samples_precisions_parallelism(tmp_path: Path, capsys: Printed) -> None:
    folder = tmp_path / "acme" / "results" / "box" / "llama31_8b"
    for index in range(10):
        write(folder / f"result_{index}.txt", mllog_lines(llama_61(index), index))
    check_compliance.main([str(tmp_path), "--round", ROUND_61, "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    assert {each["code"] for each in report["findings"]} == {"M4.missing"}
    (row,) = report["results"]
    assert (row["samples_to_target"], row["epochs_to_target"]) == (184_320, None)
    assert (row["global_batch_size"], row["rcp_verdict"]) == (BATCH_61, "pass")
    assert row["precision"] == "linear nvfp4, attn fp8, comm bfloat16"
    assert row["parallelism"] == "TP2 CP4"
