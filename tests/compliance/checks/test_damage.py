"""What befalls logs in the field: one damage is one finding, with its cause and its cure."""

import bz2
import gzip
import json
import lzma
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cepheid.compliance.finding import Finding
from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.read import package
from cepheid.leaderboard.rows.entry import list_entries
from cepheid.leaderboard.rows.statuses import list_statuses
from cepheid.rules import definition, rounds
from tests.compliance.builder import (
    SYSTEM,
    Record,
    edit,
    line_of,
    power_lines,
    run_records,
    write_log,
    write_result,
)
from tests.compliance.judging import find_all, judge_folder

pytestmark = pytest.mark.usefixtures("fast_reference")

MINI = definition.load("galaxy_shape", "mini")
MARK = ":::MLLOG"


def result_with(tmp_path: Path, change: Callable[[bytes], bytes], *damaged: int) -> Path:
    folder = write_result(tmp_path / "out", MINI)
    values = {name: known.default for name, known in MINI.hyperparameters.items()}
    configuration = {"benchmark": MINI.name, "framework": "torch", "hyperparameters": values}
    (folder / "configuration.json").write_text(json.dumps(configuration))
    for index in damaged:
        log = folder / f"result_{index}.txt"
        log.write_bytes(change(log.read_bytes()))
    return folder


def each_line(change: Callable[[str], str]) -> Callable[[bytes], bytes]:
    def damage(content: bytes) -> bytes:
        return "".join(change(line) for line in content.decode().splitlines(True)).encode()

    return damage


def wrap(width: int) -> Callable[[bytes], bytes]:
    return each_line(lambda line: "\n".join(re.findall(f".{{1,{width}}}", line)) + "\n")


def label(text: str) -> Callable[[bytes], bytes]:
    return each_line(lambda line: text + line)


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str, str, str]] = {
    "UTF-16 of Windows PowerShell": (
        lambda log: log.decode().encode("utf-16"), "T1.text", "UTF-16", "iconv -f UTF-16"),
    "UTF-16, the other order": (
        lambda log: b"\xfe\xff" + log.decode().encode("utf-16-be"), "T1.text", "UTF-16", "iconv"),
    "UTF-16 without a mark": (
        lambda log: log.decode().encode("utf-16-le"), "T1.text", "UTF-16", "iconv"),
    "UTF-16 from the middle on": (
        lambda log: log[: log.index(b"\n") + 1]
        + log[log.index(b"\n") + 1 :].decode().encode("utf-16-le"),
        "T1.text", "a part of the file is UTF-16", "iconv"),
    "UTF-32": (lambda log: log.decode().encode("utf-32"), "T1.text", "UTF-32", "iconv"),
    "JSON of Docker": (
        each_line(lambda line: json.dumps({"log": line, "stream": "stdout"}) + "\n"),
        "T1.around", "as Docker keeps", "jq --join-output .log"),
    "gzip": (gzip.compress, "T1.text", "gzip", "unpack"),
    "bzip2": (bz2.compress, "T1.text", "bzip2", "unpack"),
    "xz": (lzma.compress, "T1.text", "xz", "unpack"),
    "zip": (lambda log: b"PK\x03\x04\x14\0" + log[::-1], "T1.text", "zip", "unpack"),
    "a byte order mark": (lambda log: b"\xef\xbb\xbf" + log, "T1.around", "byte order", "tail"),
    "srun --label": (label("0: "), "T1.around", "srun --label", "grep -o"),
    "srun --label, many ranks": (label("  12: "), "T1.around", "srun --label", "grep -o"),
    "mpirun": (label("[1,0]<stdout>:"), "T1.around", "mpirun", "grep -o"),
    "kubectl": (label("2026-11-20T03:04:05.678901234Z "), "T1.around", "kubectl", "grep -o"),
    "another label": (label("INFO root "), "T1.around", "text stands before", "start of a line"),
    "wrapped at 80": (wrap(80), "T1.json", "goes on on the next line", "the file itself"),
    "wrapped at 200": (wrap(200), "T1.json", "goes on on the next line", "the file itself"),
    "indented": (
        each_line(lambda line: f"{MARK} {json.dumps(json.loads(line[9:]), indent=1)}\n"),
        "T1.json", "goes on on the next line", "on one line"),
    "backslashes": (
        each_line(lambda line: line.replace('"train.py"', '"D:\\work\\train.py"')),
        "T1.json", "a backslash", "two backslashes"),
    "Python's notation": (
        each_line(lambda line: f"{MARK} {json.loads(line[9:])!r}\n"), "T1.json", "Python", "dumps"),
    "colours": (
        each_line(lambda line: f"\x1b[32m{line.rstrip()}\x1b[0m\n"), "T1.around", "colour", "sed"),
    "grep with colours": (
        each_line(lambda line: line.replace(MARK, f"\x1b[01;31m\x1b[K{MARK}\x1b[m\x1b[K")),
        "T1.around", "colour", "sed"),
    "times as text": (
        each_line(lambda line: re.sub('"time_ms": ([0-9]+)', r'"time_ms": "\1"', line)),
        "T1.fields", "time_ms is not a time", "mllog"),
}  # fmt: skip


@pytest.mark.parametrize("damaged", [(1,), (0, 1, 2, 3, 4)], ids=["one log", "all logs"])
@pytest.mark.parametrize("name", DAMAGES)
def test_each_damaged_log_is_a_finding(name: str, damaged: Sequence[int], tmp_path: Path) -> None:
    change, code, says, cure = DAMAGES[name]
    folder = result_with(tmp_path, change, *damaged)
    found = [each for each in find_all(folder) if each.severity != "note"]
    assert [each.path.name for each in found] == [f"result_{index}.txt" for index in damaged]
    assert {each.code for each in found} == {code}
    assert all(says in each.message and cure in each.hint for each in found), found


def test_a_mistake_in_more_records_than_are_kept_is_still_one_finding(tmp_path: Path) -> None:
    broken = (line_of(record).replace(": ", ": '", 1) for record in run_records(MINI) * 60)
    log = tmp_path / "result_0.txt"
    log.write_text("\n".join(broken) + "\n")
    (found,) = find_all(log)
    assert found.code == "T1.json"
    assert "in 100 or more records" in found.message


@pytest.mark.parametrize("name", ["galaxy_shape", "galaxy_generation"])
def test_numbers_of_any_size_are_no_bug_of_ours(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_result(tmp_path / "out", definition.load(name, "mini")) / "result_0.txt"
    usual, chance = log.read_text().replace("0.0107", "0.010701234"), random.Random(9)
    first = {line.partition('"key"')[2][:20]: line for line in usual.splitlines()[::-1]}
    for line in first.values():  # of each kind
        parts = re.split(r"(?<=[ \[])([0-9.]+)(?=[],}])", line)
        for value in ("1e200", "1.7e308", "-1e155"):
            parts[1 + 2 * chance.randrange(len(parts) // 2)] = value
            log.write_text(usual.replace(line, "".join(parts)))
            judge_folder(tmp_path / "out")
    assert "our bug" not in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return result_with(tmp_path, lambda log: log)


def test_power_in_another_unit_or_read_too_seldom(folder: Path) -> None:
    for watts, every_ms, codes, says in [
        (300.0, 500.0, set(), ""),
        (0.3, 500.0, {"T23.implausible"}, ""),  # in another unit
        (3e5, 500.0, {"T23.implausible"}, ""),
        (300.0, 1_080.0, set(), ""),
        (300.0, 1_990.0, {"T23.sparse"}, "1.99 seconds"),
    ]:
        for index in range(MINI.runs.required):
            lines = power_lines(run_records(MINI, index), {"node0": watts}, every_ms=every_ms)
            lines.append(f"{float(lines[-1].split(',')[0]) + every_ms},{1.003 * watts}")
            (folder / f"power_{index}.csv").write_text("\n".join(lines) + "\n")
        found = find_all(folder)
        assert {each.code for each in found} == codes
        assert all(says in each.message for each in found)


def test_logs_that_are_numbered_from_one_are_one_mistake(folder: Path) -> None:
    for index in reversed(range(MINI.runs.required)):
        (folder / f"result_{index}.txt").rename(folder / f"result_{index + 1}.txt")
    (found,) = find_all(folder)
    assert (found.code, found.message) == ("T16.from_one", "the 5 logs are numbered from 1")
    assert "number before" in found.hint


def test_other_output_and_names_of_files_do_no_harm(folder: Path) -> None:
    for index in range(MINI.runs.required):
        records = run_records(MINI, index)
        for record in records:
            record["metadata"]["file"] = "/tmp/run_stop/train.py"
        write_log(folder / f"result_{index}.txt", records)
    assert not any(each.is_error for each in find_all(folder))
    log = folder / "result_1.txt"
    lines = log.read_text().splitlines(True)
    lines[30:30] = [f"step {n}: loss {n / 7:.5f}\n" for n in range(200_000)]
    log.write_text("".join(lines))
    assert not any(each.is_error for each in find_all(folder))


def test_samples_that_count_one_block_less(folder: Path) -> None:
    records = run_records(MINI, 1)
    first = next(record for record in records if record["key"] == "block_stop")
    trained = first["metadata"]["samples_count"]
    for key in ("eval_start", "eval_accuracy", "eval_stop"):
        records = edit(records, key, lambda r: r["metadata"].update(samples_count=trained), nth=1)
    write_log(folder / "result_1.txt", records)
    codes = {each.code for each in find_all(folder) if each.is_error}
    assert codes == {"T8.evaluation_count", "T10.epoch_num"}


def submit_teams(folder: Path, *teams: str) -> list[Finding]:
    """Hand in a result of acme in each folder, each of a system of its own."""
    for team in teams:
        system = {**SYSTEM, "system": f"box-of-{team.replace('_', '-')}"}
        write_result(folder / "submissions" / team, MINI, system=system)
    return [found for found in find_all(folder / "submissions") if found.rule != "S4"]


def test_the_teams_of_a_submitter_are_one_in_the_tables(tmp_path: Path) -> None:
    found = submit_teams(tmp_path, "acme", "acme_2", "acme_3", "acme_12")
    assert {(each.code, each.severity) for each in found} == {("S2.team", "note")}
    assert "from its team in acme_2" in {each.message.split(", ")[1] for each in found}
    rows = list_entries(judge_folder(tmp_path / "submissions").results)
    assert {row.names.submitter for row in rows} == {"acme"}
    assert len({row.id for row in rows}) == 4
    assert all(row.is_ranked for row in rows)
    names = [status.submitter for status in list_statuses(rows, rounds.load())]
    assert names == ["acme", "acme (acme_12)", "acme (acme_2)", "acme (acme_3)"]


@pytest.mark.parametrize(
    "team", ["acme_1", "acme_0", "acme_02", "acme2", "acme-2", "acme_2x", "Acme_2"]
)
def test_another_name_is_no_team(team: str, tmp_path: Path) -> None:
    found = submit_teams(tmp_path, "acme", team)
    assert {each.code for each in found if each.is_error} == {"S2.submitter"}


def test_a_second_team_needs_a_first_one_unless_its_name_is_its_own(tmp_path: Path) -> None:
    (found,) = submit_teams(tmp_path / "alone", "acme_2")
    assert (found.code, found.severity) == ("S2.submitter", "error")
    assert "that of the first team must be there" in found.hint
    submit_teams(tmp_path, "acme")
    named = {**SYSTEM, "submitter": "acme_2", "system": "own"}
    write_result(tmp_path / "submissions" / "acme_2", MINI, system=named)
    assert not [each for each in find_all(tmp_path / "submissions") if each.rule == "S2"]


@pytest.mark.parametrize(
    ("stood", "accused"), [("", "acme_2"), ("acme", "acme_2"), ("acme_2", "acme")]
)
def test_a_result_of_two_teams_counts_once(stood: str, accused: str, tmp_path: Path) -> None:
    """Of one organisation that hands in twice, the first team counts, and nobody is in dispute."""
    root = tmp_path / "submissions"
    for team in ("acme", "acme_2"):
        write_result(root / team, MINI)
    judged = judge([package.read(root)], rounds.load(), stood=lambda path: stood in path.parts)
    errors = [each for each in judged.findings if each.is_error]
    told = {(each.code, each.path.relative_to(root).parts[0]) for each in errors}
    assert told == {("T19.recycled", accused)}
    assert len(errors) == MINI.runs.required
    assert all("another team of this submitter" in each.message for each in errors)
    ranked = [row for row in list_entries(judged.results) if row.is_ranked]
    assert [row.names.submitter for row in ranked] == ["acme"]


def test_three_teams_with_one_result_leave_the_first(tmp_path: Path) -> None:
    for team in ("acme_10", "acme_9", "acme"):
        write_result(tmp_path / "submissions" / team, MINI)
    errors = [each for each in find_all(tmp_path / "submissions") if each.is_error]
    assert {each.path.parts[-5] for each in errors} == {"acme_9", "acme_10"}


def find(tmp_path: Path, change: Callable[[Record], object]) -> list[Finding]:
    records = run_records(MINI, blocks=9)
    for record in records:
        change(record)
    return find_all(write_log(tmp_path / "result_0.txt", records))


def scale_clock(factor: float) -> Callable[[Record], object]:
    def change(record: Record) -> None:
        record["metadata"]["monotonic_ms"] *= factor

    return change


def test_a_clock_of_another_unit_is_told_from_one_that_runs_wrong(tmp_path: Path) -> None:
    for factor, unit in ((1e-3, "seconds"), (1e3, "microseconds"), (1e6, "nanoseconds")):
        findings = find(tmp_path, scale_clock(factor))
        (found,) = (finding for finding in findings if finding.rule == "T4")
        assert found.code == "T4.unit"
        assert found.message == f"metadata.monotonic_ms looks like {unit}"
        assert "time.monotonic() * 1000" in found.hint
    findings = find(tmp_path, lambda record: record.update(time_ms=record["time_ms"] // 1000))
    assert [finding.message for finding in findings] == ["time_ms looks like seconds"]
    codes = {finding.code for finding in find(tmp_path, scale_clock(1.01))}
    assert "T4.clocks_apart" in codes
    assert "T4.unit" not in codes


def test_a_field_that_is_never_written_is_one_finding(tmp_path: Path) -> None:
    found = find(tmp_path, lambda record: record["metadata"].pop("lineno"))
    (finding,) = (each for each in found if each.code.startswith("T1."))
    count = len(run_records(MINI, blocks=9))
    assert finding.code == "T1.schema"
    assert finding.message.endswith(f"lineno that wrote the record, in {count} records")
    assert finding.line == 1


def test_one_result_of_a_submission_leaves_the_manifest_unchecked(tmp_path: Path) -> None:
    folder = write_result(tmp_path / "submissions" / "acme", MINI)
    found = find_all(folder)
    (note,) = [finding for finding in found if finding.rule == "S4"]
    assert (note.code, note.severity) == ("S4.not_checked", "note")
    assert "submissions/acme" in note.hint
    whole = find_all(folder.parents[2])
    assert "S4.not_checked" not in {finding.code for finding in whole}


@pytest.mark.parametrize("name", ["systems/box.json", "manifest.json"])
def test_deep_nesting_is_reported_in_words(name: str, tmp_path: Path) -> None:
    root = tmp_path / "submissions" / "acme"
    write_result(root, MINI)
    (root / name).write_text("[" * 200_000)
    text = " ".join(str(finding) for finding in find_all(root))
    assert "nested too deeply" in text
    assert "recursion" not in text
