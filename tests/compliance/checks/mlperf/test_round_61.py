"""Logs of v6.1, of which none is published: samples for epochs, precisions and parallelism."""

import json
from pathlib import Path

import pytest

from cepheid.rules.mlperf.rule_files import require_rule_set
from cepheid.tools import check_compliance
from cepheid.tools.peer.asked import judge_log
from tests.compliance.asserting import Printed
from tests.compliance.checks.test_mlperf import check
from tests.compliance.history import Entry, change, drop, mllog_lines, write

ROUND = "mlperf-training-6.1"
BATCH = 32
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
        Entry("seed", 100 + index), Entry("global_batch_size", BATCH),
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
CASES = {
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


@pytest.mark.parametrize("name", CASES)
def test_a_log_gets_the_verdict_of_mlcommons(name: str, tmp_path: Path) -> None:
    entries, codes = CASES[name]
    assert {each.code for each in check(mllog_lines(entries), ROUND, tmp_path)} == codes
    theirs = judge_log(tmp_path / "result_0.txt", require_rule_set(ROUND)).verdict
    assert theirs == ("FAILED" if codes else "SUCCESS")


def test_a_result_says_samples_precisions_parallelism(tmp_path: Path, capsys: Printed) -> None:
    folder = tmp_path / "acme" / "results" / "box" / "llama31_8b"
    for index in range(10):
        write(folder / f"result_{index}.txt", mllog_lines(llama_61(index), index))
    check_compliance.main([str(tmp_path), "--round", ROUND, "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    assert {each["code"] for each in report["findings"]} == {"M4.missing"}
    (row,) = report["results"]
    assert (row["samples_to_target"], row["epochs_to_target"]) == (184_320, None)
    assert (row["global_batch_size"], row["rcp_verdict"]) == (BATCH, "pass")
    assert row["precision"] == "linear nvfp4, attn fp8, comm bfloat16"
    assert row["parallelism"] == "TP2 CP4"
