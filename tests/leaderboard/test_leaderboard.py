"""Rows and their formats: no number beside an error, nothing unescaped, nothing too wide."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cepheid.leaderboard.rows.data import write_csv, write_json
from cepheid.leaderboard.rows.entry import Entry, list_rows
from cepheid.leaderboard.rows.facts import Progress
from cepheid.rules.definition import Definition
from cepheid.rules.host import ROOT
from cepheid.tools import build_leaderboard
from cepheid.tools.console.tables import write_markdown, write_table
from tests.compliance import small
from tests.compliance.asserting import Patch, Printed, assert_golden, assert_says
from tests.compliance.builder import BLOCK_MS, SYSTEM, put, run_records, write_log, write_result
from tests.compliance.judging import judge_folder
from tests.compliance.mixed import write_mixed


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    with small.installed(tmp_path_factory.mktemp("home") / "mixed") as mini:
        return _rows(write_mixed(Path("out"), mini))


def _rows(path: Path) -> list[Entry]:
    return list_rows(judge_folder(path).results)


def test_no_number_beside_an_error(rows: list[Entry]) -> None:
    """Its data are null in the golden file, too."""
    rejected = rows[3]
    assert rejected.reasons == ("T12.not_allowed opt_name must be adam in the closed division",)
    assert (rejected.standing.score, rejected.standing.so_far) == (None, {})
    assert rejected.progress == Progress()


def test_a_warning_stands_below_a_score(star_shape: Definition, monkeypatch: Patch) -> None:
    write_result(Path("out"), star_shape)
    small.install(Path("known data").absolute(), monkeypatch, data_digest="d" * 64)
    (row,) = found = _rows(Path("out"))
    assert row.standing.verdict == "scored"
    reason = "T10.data warning: the data are not those of the reference (in 5 files)"
    assert row.reasons == (reason,)
    assert [finding.severity for finding in row.findings] == ["warning"] * 5
    assert "  acme/box: scored, with a warning\n    T10.data warning" in write_table(found)


def test_an_error_that_logs_share_is_one_reason(star_shape: Definition) -> None:
    folder = write_result(Path("out"), star_shape)
    for index in (1, 3):
        records = run_records(star_shape, index)
        records = put(records, "opt_name", value="sgd")
        if index == 3:
            records = put(records, "train_samples", value=7)
        write_log(folder / f"result_{index}.txt", records)
    (row,) = found = _rows(Path("out"))
    of_both, of_one = row.reasons
    assert of_both == "T12.not_allowed opt_name must be adam in the closed division (in 2 files)"
    assert of_one.startswith("T10.size ")
    assert "files" not in of_one
    (entry,) = csv.DictReader(io.StringIO(write_csv(found)))
    assert entry["reasons"] == f"{of_both}; {of_one}"
    assert json.loads(write_json(found))[0]["reasons"] == [of_both, of_one]
    assert row.standing.text == "rejected: 3 errors (T12, T10)"


def test_hardware_counts_all_accelerators(star_shape: Definition) -> None:
    system = {**SYSTEM, "nodes": 4, "accelerator": "Example A100", "accelerators_per_node": 8}
    write_result(Path("out"), star_shape, system=system)
    (row,) = _rows(Path("out"))
    assert (row.hardware.accelerators, str(row.hardware)) == (32, "32 x Example A100")


def test_rows_of_a_table_and_what_they_leave_out(rows: list[Entry]) -> None:
    entries = list(csv.DictReader(io.StringIO(write_csv(rows))))
    assert [entry["verdict"] for entry in entries] == [row.standing.verdict for row in rows]
    assert float(entries[1]["score_minutes"]) == rows[1].standing.cost
    assert float(entries[0]["time_minutes"]) == rows[0].standing.cost
    assert entries[3]["score_minutes"] == ""
    assert all(row.progress.update_time_ratio is None for row in rows)
    assert "update" not in write_table(rows)


@pytest.mark.parametrize("text", ["=cmd()", "+1", "-1", "@x"])
def test_no_cell_is_a_formula(text: str, star_shape: Definition) -> None:
    write_result(Path("out"), star_shape, system={**SYSTEM, "processor": text})
    (entry,) = csv.DictReader(io.StringIO(write_csv(_rows(Path("out")))))
    assert entry["processor"] == f"'{text}"


@pytest.mark.parametrize(
    ("write", "ending"), [(write_table, "txt"), (write_markdown, "md"), (write_json, "json")]
)
def test_golden(write: Callable[[list[Entry]], str], ending: str, rows: list[Entry]) -> None:
    assert_golden(write(rows) + "\n", f"summary.{ending}")


def test_a_first_run_fits_a_terminal_and_says_how_many_are_missing(star_shape: Definition) -> None:
    names = {"submitter": "a" * 40, "system": "b" * 30, "processor": "c" * 200}
    write_result(Path("out"), star_shape, runs=1, system={**SYSTEM, **names})
    text = write_table(_rows(Path("out")), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "provisional: 1 of 5 runs" in " ".join(text.split())
    assert text.count("c") >= 200


def test_a_table_has_one_unit_which_its_head_names(star_shape: Definition) -> None:
    for name, block_ms in (("fast", 2_000), ("slow", 400_000)):
        system = {**SYSTEM, "system": name}
        write_result(Path("both"), star_shape, block_ms=block_ms, system=system)
        write_result(Path(name), star_shape, block_ms=block_ms, system=system)
    table = write_table(_rows(Path("both")))
    assert table.count(", min ") == 2, "the middle of both decides"
    assert ", s " not in table
    assert write_table(_rows(Path("fast"))).count(", s ") == 2


def test_markup_in_names_is_only_text(star_shape: Definition) -> None:
    system = {**SYSTEM, "processor": "<img src=x> [a](b) | `c`"}
    write_result(Path("out"), star_shape, system=system)
    text = write_markdown(_rows(Path("out")))
    assert "&lt;img src=x&gt; \\[a\\](b) \\| \\`c\\`" in text


def test_an_update_that_does_more_is_compared_with_a_plain_one(star_shape: Definition) -> None:
    folder = write_result(Path("out"), star_shape)
    updates = run_updates(star_shape)
    for index in range(star_shape.runs.required):
        records = run_records(star_shape, index)
        measured = {"key": "plain_update_ms", "value": 10 * BLOCK_MS / updates}
        after = {**records[-1], "event_type": "POINT_IN_TIME", **measured}
        write_log(folder / f"result_{index}.txt", [*records, after])
    (row,) = found = _rows(Path("out"))
    ratio = 0.3 * 1.06  # the median is of run 2
    assert row.progress.update_time_ratio == pytest.approx(ratio, rel=1e-3)
    for text in (write_table(found), write_markdown(found)):
        assert_says(text, "update", "0.32×")
    assert json.loads(write_json(found))[0]["update_time_ratio"] == row.progress.update_time_ratio


PEAKS = {"fp32": {"measured": 0.001}, "bf16": {"datasheet": 9.0}}
FLOPS_PER_SAMPLE = 10**6  # of star_shape at mini scale


def test_the_share_of_the_peak(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape, system={**SYSTEM, "peak_tflops": PEAKS})
    (row,) = found = _rows(Path("out"))
    assert row.pace is not None
    batch = int(star_shape.hyperparameters["global_batch_size"].default)
    pace = run_updates(star_shape) * batch / (3 * 1.06 * BLOCK_MS / 1000)  # the median is of run 2
    assert row.pace.samples_per_second == pytest.approx(pace, rel=1e-3)
    (described,) = json.loads(write_json(found))
    assert described["mfu"] == pytest.approx(pace * FLOPS_PER_SAMPLE / 1e9, rel=1e-3)
    assert (described["mfu_precision"], described["mfu_peak"]) == ("fp32", "measured")
    header, line = list(csv.reader(write_csv(found).splitlines()))
    cells = dict(zip(header, line, strict=True))
    assert float(cells["mfu"]) == described["mfu"]
    assert float(cells["samples_per_second"]) == described["samples_per_second"]


@pytest.mark.parametrize("case", ["no peak", "open", "another precision"])
def test_no_share_is_guessed(case: str, star_shape: Definition) -> None:
    peaks = {"no peak": {}, "another precision": {"peak_tflops": {"bf16": {"measured": 1.0}}}}
    division = "open" if case == "open" else "closed"
    system = {**SYSTEM, **peaks.get(case, {"peak_tflops": PEAKS})}
    write_result(Path("out"), star_shape, division=division, system=system)
    (row,) = found = _rows(Path("out"))
    assert row.has_score
    assert row.peak_share is None
    assert json.loads(write_json(found))[0]["mfu"] is None


def test_a_measured_peak_that_is_too_low_is_a_warning(star_shape: Definition) -> None:
    low = {"fp32": {"measured": 1e-9}}
    write_result(Path("out"), star_shape, system={**SYSTEM, "peak_tflops": low})
    (row,) = _rows(Path("out"))
    assert row.has_score
    warnings = {found.code for found in row.findings if found.severity == "warning"}
    assert warnings == {"T14.above_peak"}


def run_updates(chosen: Definition) -> int:
    """Of the three blocks of a run by the builder."""
    batch = int(chosen.hyperparameters["global_batch_size"].default)
    *_, last = (block for block in chosen.schedule(batch) if block.number <= 3)
    return last.samples // batch


def test_runs_begun_on_one_hardware_are_counted_under_all_names(star_shape: Definition) -> None:
    folder = write_result(Path("out"), star_shape)
    write_log(folder / "interrupted_0.txt", run_records(star_shape, 2)[:30])
    write_result(Path("out"), star_shape, system={**SYSTEM, "system": "box2"})
    write_result(Path("out"), star_shape, system={**SYSTEM, "system": "box3", "processor": "other"})
    begun = {row.names.system: row.begun for row in _rows(Path("out"))}
    assert (begun["box"].runs, begun["box"].systems) == (11, 2)
    assert begun["box2"] == begun["box"]
    assert (begun["box3"].runs, begun["box3"].systems) == (5, 1)
    assert str(begun["box"]) == "11 on this hardware under 2 names of the system"
    (shown,) = (row for row in _rows(Path("out")) if row.names.system == "box")
    assert "runs begun: 11 on this hardware" in write_table([shown])


def test_a_site_is_loaded_into_pandas(star_shape: Definition, capsys: Printed) -> None:
    """The lines of the README do so."""
    pytest.importorskip("pandas", reason="pandas is not installed")
    write_mixed(Path("out"), star_shape)
    build_leaderboard.main(["out", "--output", "site"])
    readme = (ROOT / "leaderboard" / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    found: dict[str, object] = {}
    exec(code, found)
    results, curves = found["results"], found["curves"]
    assert {"quality_rmse", "accelerator", "framework", "score_low"} <= set(results)  # type: ignore[call-overload]
    assert len(curves) >= 3 * 5 * 3  # type: ignore[arg-type]
    assert "star_shape" in capsys.readouterr().out
