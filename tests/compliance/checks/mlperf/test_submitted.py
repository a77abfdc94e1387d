"""M4 to M7: what surrounds the logs of a submission in rounds of MLPerf."""

import contextlib
import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cepheid.compliance.finding import Finding
from cepheid.leaderboard.rows.entry import list_rows
from cepheid.rules import rounds
from cepheid.tools import check_compliance
from cepheid.tools.console.tables import write_table
from tests import assert_refused
from tests.compliance.checks.test_mlperf import submit
from tests.compliance.history import Entry, change, cosmoflow_20, mllog_lines, resnet_40, write
from tests.compliance.judging import judge_as_mlperf

ROUND = "mlperf-training-4.0"
Damage = Callable[[Path], object]


def describe(**fields: object) -> Damage:
    """Change fields of the description; None removes one."""

    def damage(root: Path) -> None:
        path = root / "systems" / "box.json"
        content = {**json.loads(path.read_text()), **fields}
        kept = {key: value for key, value in content.items() if value is not None}
        path.write_text(json.dumps(kept))

    return damage


def write_power(root: Path, *left_out: str, reading_ms: int = 1000) -> Path:
    """Write power logs of two nodes and two switches for each of five runs, and a picture."""
    watts = [Entry("power_reading", watt, after_ms=reading_ms) for watt in (1000, 3000)]
    node = [Entry("conversion_eff", 0.5), Entry("power_measurement_start"), *watts,
            Entry("power_measurement_stop", after_ms=0)]  # fmt: skip
    logs = {
        "node_0.txt": node, "node_1.txt": node, "nodes_0_to_1.png": [],
        "sw_0.txt": [Entry("interconnect_power_est", 500)],
        "sw_1.txt": [Entry("power_reading", 700)],  # as Dell's of v4.1: mlcommons counts none
    }  # fmt: skip
    power = root / "results/box/resnet/power"
    for run in range(5):
        for name, entries in logs.items():
            if f"{run}/{name}" not in left_out and f"{run}" not in left_out:
                write(power / f"result_{run}" / name, mllog_lines(entries))
    return power


def log(key: str, value: str) -> Damage:
    def damage(root: Path) -> None:
        for path in (root / RESULT).glob("result_*.txt"):
            pattern = rf'("key": "{key}", "value": )"[^"]*"'
            path.write_text(re.sub(pattern, rf'\1"{value}"', path.read_text()))

    return damage


DESCRIPTION, RESULT = Path("systems/box.json"), Path("results/box/resnet")
POWER_3 = RESULT / "power/result_3"
CASES: tuple[tuple[str, Damage, list[tuple[str, str, Path]]], ...] = (
    ("no description", lambda root: (root / DESCRIPTION).unlink(),
     [("M4.missing", "error", DESCRIPTION)]),
    ("another case", lambda root: (root / DESCRIPTION).rename(root / "systems/BOX.json"),
     [("M4.missing", "error", DESCRIPTION)]),
    ("no JSON", lambda root: (root / DESCRIPTION).write_text("{"),
     [("M4.unreadable", "error", DESCRIPTION)]),
    ("a field is missing", describe(cooling=None), [("M4.fields", "error", DESCRIPTION)]),
    ("a number", describe(accelerators_per_node=8), [("M4.text", "error", DESCRIPTION)]),
    ("a status of v3.1", describe(status="onprem"), [("M4.status", "error", DESCRIPTION)]),
    ("a field twice", lambda root: (root / DESCRIPTION).write_text(
        (root / DESCRIPTION).read_text().replace("{", '{"cooling": "air", ', 1)),
     [("M4.repeated", "warning", DESCRIPTION)]),
    ("a power log less", lambda root: write_power(root, "2/node_1.txt"),
     [("M5.number", "warning", RESULT / "power/result_2")]),
    ("no power logs of a run", lambda root: write_power(root, "2"),
     [("M5.missing", "warning", RESULT / "power/result_2")]),
    ("a gap", lambda root: (write_power(root) / "result_3/node_1.txt").rename(
        root / POWER_3 / "node_3.txt"), [("M5.names", "warning", RESULT / "power/result_3")]),
    ("a measurement that stops when it starts", lambda root: write_power(root, reading_ms=0),
     [("M5.no_energy", "warning", RESULT / f"power/result_{run}") for run in range(5)]),
    ("two runs", lambda root: write_power(root, "2", "3/sw_1.txt"),
     [("M2.too_many_broken", "error", RESULT),
      ("M5.missing", "warning", RESULT / "power/result_2"),
      ("M5.number", "warning", RESULT / "power/result_3")]),
    ("no logs", lambda root: write(root / "results/box/bert/run_1.txt", []),
     [("M6.no_logs", "error", Path("results/box/bert"))]),
    ("a hidden file", lambda root: (root / ".env").touch(), [("M6.unfit", "error", Path(".env"))]),
    ("a blank", lambda root: (root / "systems/a b.txt").touch(),
     [("M6.unfit", "error", Path("systems/a b.txt"))]),
    ("a lost link", lambda root: (root / "code").symlink_to("nowhere"),
     [("M6.unfit", "error", Path("code"))]),
    ("another submitter", describe(submitter="Umbrella"), [("M7.described", "note", RESULT)]),
    ("the maker of the machine", log("submission_org", "Weyland"),
     [("M7.described", "note", RESULT)]),
    ("a cloud", describe(status="Available cloud"), [("M7.described", "note", RESULT)]),
    ("no cloud", log("submission_status", "cloud"), []),  # but a preview
    ("no submitter", log("submission_org", "SUBMISSION_ORG_PLACEHOLDER"),
     [("M7.placeholder", "note", RESULT)]),
    ("no platform", log("submission_platform", "1xSUBMISSION_PLATFORM_PLACEHOLDER"),
     [("M7.placeholder", "note", RESULT)]),
)  # fmt: skip


def judge_damaged(tmp_path: Path, damage: Damage) -> list[Finding]:
    submit(tmp_path, [resnet_40(index) for index in range(5)])
    damage(tmp_path / "acme")
    return list(judge_as_mlperf(tmp_path, ROUND).findings)


@pytest.mark.parametrize(
    ("damage", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_one_change(damage: Damage, expected: list[tuple[str, str, Path]], tmp_path: Path) -> None:
    found = judge_damaged(tmp_path, damage)
    root = tmp_path / "acme"
    said = [(each.code, each.severity, each.path.relative_to(root)) for each in found]
    assert sorted(said) == sorted(expected)


def test_packed_logs_of_a_result_are_named(tmp_path: Path) -> None:
    """mlcommons counts none of them. One that is given by itself is read."""
    folder = submit(tmp_path, [resnet_40(index) for index in range(5)])
    (folder / "result_4.txt").rename(folder / "result_4.txt.gz")
    (found,) = judge_as_mlperf(tmp_path, ROUND).findings
    assert (found.code, found.got) == ("M2.number_of_runs", "4, beside result_4.txt.gz")
    for log in folder.glob("result_?.txt"):
        log.rename(f"{log}.gz")
    assert_refused(
        r"no run logs .*, but result_\d\.txt\.gz; unpack it", judge_as_mlperf, tmp_path, ROUND
    )


def test_logs_of_another_benchmark_than_their_folder_are_an_error(tmp_path: Path) -> None:
    """No published log is. It is one finding, also where the round has no such benchmark."""
    for benchmark, expected in (("ssd", 1), ("resnet", 0), ("unknown", 0)):
        found = judge_damaged(tmp_path / benchmark, log("submission_benchmark", benchmark))
        named = [each for each in found if each.rule == "M7"]
        assert [each.code for each in named] == ["M7.benchmark"] * expected
        assert all(each.is_error and each.got == benchmark for each in named)


@pytest.mark.parametrize(
    "damage",
    [
        write_power,
        lambda root: describe(status="Available on-premise", more="x")(root),
        describe(submitter="ACME-Robotics"),
        log("submission_org", "acme inc"),
        log("submission_platform", "16xanything"),
        lambda root: (root / "code").symlink_to("systems"),
        lambda root: (root / "results/box/resnet/notes.txt").write_text("no log"),
    ],
)
def test_what_is_allowed_raises_nothing(damage: Damage, tmp_path: Path) -> None:
    assert judge_damaged(tmp_path, damage) == []


def test_what_review_lets_pass_is_a_warning(tmp_path: Path) -> None:
    runs = [
        change(resnet_40(index), "eval_accuracy", 2, metadata={"epoch_num": 3 + index / 8})
        for index in range(5)
    ]
    folder = submit(tmp_path, [change(run, "global_batch_size", value=4096) for run in runs])
    for code in ("M3.too_fast", "M3.bypassed"):
        found = judge_as_mlperf(tmp_path, ROUND).findings
        assert [each.code for each in found if each.rule == "M3"] == [code]
        (folder / "package_checker_params").write_text("rcp-bypass\n")


def test_runs_with_other_batch_sizes_are_one_finding(tmp_path: Path) -> None:
    runs = [change(resnet_40(k), "global_batch_size", value=2048 << (k == 2)) for k in range(5)]
    submit(tmp_path, runs)
    (finding,) = judge_as_mlperf(tmp_path, ROUND).findings
    assert (finding.code, finding.got) == ("M3.batch_sizes", "2,048, 4,096")


def test_descriptions_are_asked_for_since_v10_and_a_status_since_v40() -> None:
    asked = {
        name: (len(judged_in.description_fields), len(judged_in.statuses))
        for name in rounds.names()
        if (judged_in := rounds.load(name)).is_mlperf
    }
    assert asked["mlperf-training-0.7"] == (0, 0)
    assert asked["mlperf-training-1.0"] == asked["mlperf-hpc-3.0"] == (33, 0)
    assert asked["mlperf-training-4.0"] == asked["mlperf-training-6.1"] == (33, 4)


def test_the_table_has_what_people_ask_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(tmp_path, [resnet_40(index) for index in range(5)])
    write_power(tmp_path / "acme")
    (row,) = json.loads(run_check(tmp_path, "--format", "json"))["results"]
    assert (row["global_batch_size"], row["epochs_to_target"]) == (2048, 36)
    assert row["energy_joules"] == pytest.approx(2500 * 60 * row["time_minutes"])
    assert (row["rcp_verdict"], row["precision"], row["models"]) == ("pass", "", None)
    text = run_check(tmp_path)
    assert "as judged by mlperf-logging" in text
    assert text.startswith("resnet, closed division")
    assert text.endswith(": pass; Cepheid: pass\n")
    monkeypatch.setattr(check_compliance, "RESULTS_MAX", 0)
    assert run_check(tmp_path).startswith("1 results: `cepheid summary` shows their table")
    assert "energy, kJ" in text
    header, values = run_check(tmp_path, "--format", "csv").splitlines()
    assert dict(zip(header.split(","), values.split(","), strict=True))["benchmark"] == "resnet"


@pytest.mark.parametrize(
    ("damage", "verdict"),
    [
        (describe(status="onprem"), "fail (M4.status)"),
        (lambda root: (root / ".env").touch(), "fail (M6.unfit)"),
        (lambda root: write_power(root, "2"), "pass"),
        (describe(division="open"), "pass"),
    ],
)
def test_an_accepted_result_passes_whatever_the_tools_of_today_say(
    damage: Damage, verdict: str, tmp_path: Path
) -> None:
    """Both verdicts are told: an installed package is not history."""
    submit(tmp_path, [resnet_40(index) for index in range(5)])
    damage(tmp_path / "acme")
    assert run_check(tmp_path, "--published").endswith(f": {verdict}; Cepheid: pass\n")


def test_a_log_that_is_refused_counts_as_the_slowest(tmp_path: Path) -> None:
    """As mlcommons scores it; where the result was accepted, its time counts."""
    runs = [resnet_40(index, epoch_ms=60_000 + index) for index in range(5)]
    submit(tmp_path, [change(runs[0], "lars_epsilon", value=1), *runs[1:]])
    for as_published in (False, True):
        (result,) = judge_as_mlperf(tmp_path, ROUND, as_published).results
        assert math.isinf(result.summary.runs[0].minutes) != as_published


def submit_weak(root: Path, models: int) -> None:
    folder = root / "acme" / "results" / "box" / "weak" / "cosmoflow"
    for index in range(models):
        write(folder / f"result_{index}.txt", mllog_lines(cosmoflow_20(index), index))


def test_weak_scaling_may_train_hundreds_of_models_measured_by_the_minute(tmp_path: Path) -> None:
    submit_weak(tmp_path, 12)
    (result,) = judge_as_mlperf(tmp_path, "mlperf-hpc-2.0").results
    (row,) = list_rows([result])
    weak = row.standing.weak
    starts = [run.started_ms or 0 for run in result.runs]
    stops = [start + 60_000 * run.minutes for start, run in zip(starts, result.runs, strict=True)]
    assert weak is not None
    assert (row.names.scale, row.standing.score) == ("weak", None)
    assert (weak.models, weak.instance_scale) == (12, 32)
    assert weak.minutes == pytest.approx((max(stops) - min(starts)) / 60_000)
    assert "models/min" in write_table([row])
    submit_weak(tmp_path, 101)
    codes = {each.code for each in judge_as_mlperf(tmp_path, "mlperf-hpc-2.0").findings}
    assert codes == {"M4.missing"}


def run_check(path: Path, *options: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        check_compliance.main([str(path), "--round", ROUND, *options])
    return printed.getvalue()


def test_power_logs_are_no_results(tmp_path: Path) -> None:
    """Some submitters name them like the run that they belong to."""
    folder = submit(tmp_path, [resnet_40(index) for index in range(5)])
    write(folder / "power" / "result_0" / "result_0-1_0.txt", mllog_lines(resnet_40()))
    judgement = judge_as_mlperf(tmp_path, ROUND)
    assert [result.folder.path for result in judgement.results] == [folder]


def test_errors_come_first_then_results_and_what_decides_last(tmp_path: Path) -> None:
    folder = submit(tmp_path, [resnet_40(index) for index in range(5)])
    for log in folder.glob("result_*.txt"):
        log.write_text(log.read_text() + log.read_text().splitlines()[-1] + "\n")
    (folder / "result_4.txt").write_text("nothing")
    text = run_check(tmp_path)
    parts = ("T1.no_record", "warning: ", "note: ", "resnet, closed", "\ncode ", "\nfail: ")
    places = [text.index(part) for part in parts]
    assert places == sorted(places), text
