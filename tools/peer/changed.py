"""Make changes of the catalogues to a published log, and ask mlcommons' checkers about it.

The log is of one result of MLPerf Training v4.0. The checkers of single logs and of packages run in
a process each, with a time limit, since they execute code and may not end.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT

ROUND, SUBMITTER = "mlperf-training-4.0", "NVIDIA"
SYSTEM, BENCHMARK = "h200_ngc24.04_mxnet", "resnet"
SECONDS_MAX = 30
MARKER = ":::MLLOG "

Lines = list[str]
Edit = Callable[[Lines], Lines]


@dataclass(frozen=True)
class Change:
    """A change of the catalogue, made to a result of five published logs.

    ``rule`` is the rule of v1.0 that finds it. ``of_log`` changes the lines of ``result_2.txt``,
    ``of_result`` the folder of the result.
    """

    name: str
    rule: str
    of_log: Edit | None = None
    of_result: Callable[[Path], object] | None = None


# Changes of one log


def find_record(lines: Lines, key: str, nth: int = 0) -> int:
    """Return where the ``nth`` record of a key stands; -1 is the last one."""
    numbers = [n for n, line in enumerate(lines) if line.startswith(MARKER) and f'"{key}"' in line]
    return numbers[nth]


def read_record(lines: Lines, key: str, nth: int = 0) -> dict[str, Any]:
    """Return the ``nth`` record of a key."""
    record: dict[str, Any] = json.loads(lines[find_record(lines, key, nth)].removeprefix(MARKER))
    return record


def edit(line: str, change: Callable[[dict[str, Any]], object]) -> str:
    """Change the record of a line; any other line stays as it is."""
    if not line.startswith(MARKER):
        return line
    record = json.loads(line.removeprefix(MARKER))
    change(record)
    return MARKER + json.dumps(record)


def edit_line(change: Callable[[str], str], key: str = "seed", nth: int = 0) -> Edit:
    """Change the text of the line of one record."""

    def edit_lines(lines: Lines) -> Lines:
        at = find_record(lines, key, nth)
        return [*lines[:at], change(lines[at]), *lines[at + 1 :]]

    return edit_lines


def put(key: str, nth: int = 0, /, **fields: object) -> Edit:
    """Give one record other fields."""
    return edit_line(lambda line: edit(line, lambda record: record.update(fields)), key, nth)


def put_metadata(key: str, nth: int = 0, /, **fields: object) -> Edit:
    """Give one record other metadata."""
    return edit_line(lambda line: edit(line, lambda r: r["metadata"].update(fields)), key, nth)


def shift(key: str, milliseconds: int, nth: int = 0, *, on: bool = False) -> Edit:
    """Give one record another time; with ``on`` all after it too."""

    def delay(record: dict[str, Any]) -> None:
        record["time_ms"] += milliseconds

    def change(lines: Lines) -> Lines:
        at = find_record(lines, key, nth)
        end = len(lines) if on else at + 1
        return [*lines[:at], *(edit(line, delay) for line in lines[at:end]), *lines[end:]]

    return change


def move(key: str, before: str, nth: int = 0, before_nth: int = 0) -> Edit:
    """Move one record, and give it the time of its new place."""

    def change(lines: Lines) -> Lines:
        left = drop((key, nth))(lines)
        at = find_record(left, before, before_nth)
        record = read_record(lines, key, nth)
        record["time_ms"] = read_record(left, before, before_nth)["time_ms"]
        return [*left[:at], MARKER + json.dumps(record), *left[at:]]

    return change


def drop(*keys: tuple[str, int]) -> Edit:
    """Drop some records, by key and number."""

    def change(lines: Lines) -> Lines:
        gone = {find_record(lines, key, nth) for key, nth in keys}
        return [line for number, line in enumerate(lines) if number not in gone]

    return change


def join_lines(lines: Lines) -> Lines:
    """Join the line of the seed with the one before."""
    at = find_record(lines, "seed")
    return [*lines[: at - 1], lines[at - 1] + lines[at], *lines[at + 1 :]]


def evaluate_again(lines: Lines) -> Lines:
    """Repeat the last evaluation after run_stop, at its time."""
    stop, record = find_record(lines, "run_stop", -1), read_record(lines, "eval_accuracy", -1)
    record["time_ms"] = read_record(lines, "run_stop", -1)["time_ms"]
    return [*lines[: stop + 1], MARKER + json.dumps(record), *lines[stop + 1 :]]


# Changes of a result


def locate_log(folder: Path, index: int) -> Path:
    """Return the path of a log."""
    return folder / f"result_{index}.txt"


def read_lines(path: Path) -> Lines:
    """Read the lines of a log."""
    return path.read_text(encoding="utf-8").splitlines()


def rewrite(path: Path, *edits: Edit) -> None:
    """Change the lines of a log."""
    lines = read_lines(path)
    for each in edits:
        lines = each(lines)
    path.write_bytes(("\n".join(lines) + "\n").encode("utf-8", "surrogatepass"))


def give_seed(folder: Path, of: int) -> Edit:
    """Give a log the seed of another."""
    return put("seed", value=read_record(read_lines(locate_log(folder, of)), "seed")["value"])


def copy_a_day_later(folder: Path) -> None:
    """Replace a log by a copy of another, a day later and with its own seed."""
    own = give_seed(folder, 3)
    shutil.copyfile(locate_log(folder, 1), locate_log(folder, 3))
    rewrite(locate_log(folder, 3), shift("submission_benchmark", 86_400_000, on=True), own)


def abort_two(folder: Path) -> None:
    """Let two runs end without their target."""
    missed = put_metadata("run_stop", status="aborted"), put("eval_accuracy", -1, value=0.5)
    for index in (1, 2):
        rewrite(locate_log(folder, index), *missed)


def link_log(folder: Path) -> None:
    """Replace a log by a link to a copy outside of the folder."""
    outside = folder.parents[3] / "outside.txt"
    locate_log(folder, 4).rename(outside)
    locate_log(folder, 4).symlink_to(outside)


def make_pipe(folder: Path) -> None:
    """Replace a log by a pipe."""
    locate_log(folder, 4).unlink()
    os.mkfifo(locate_log(folder, 4))


CHANGES = [
    Change("run_start stamped later", "T4", shift("run_start", 60_000)),
    Change("run_stop stamped earlier", "T4", shift("run_stop", -60_000)),
    Change("wall clock set back within a block", "T4", shift("eval_start", -60_000, 3, on=True)),
    Change("run_stop before the last evaluation", "T3", move("run_stop", "eval_start", 0, -1)),
    Change("run_stop before run_start", "T3", move("run_stop", "run_start")),
    Change("something after run_stop", "T3", evaluate_again),
    Change("data touched early", "T3", move("block_start", "init_stop")),
    Change("cache not cleared", "T6", put("cache_clear", value=False)),
    Change("long initialisation", "T6", shift("init_start", -3_600_000)),
    Change("an evaluation skipped", "T8", drop(
        ("eval_start", 3), ("eval_stop", 3), ("eval_accuracy", 3))),
    Change("a target lowered", "T9", put("eval_accuracy", -1, value=0.7589)),
    Change("aborted with the targets", "T9", put_metadata("run_stop", status="aborted")),
    Change("status in another case", "T2", put_metadata("run_stop", status="SUCCESS")),
    Change("NaN quality", "T5", put("eval_accuracy", 3, value=float("nan"))),
    Change("infinite quality", "T5", put("eval_accuracy", -1, value=float("inf"))),
    Change("a share above one", "T9", put("eval_accuracy", 3, value=75.9)),
    Change("wrong epochs", "T10", put_metadata("eval_accuracy", 3, epoch_num=99)),
    Change("batch size misreported", "T10", put("global_batch_size", value=3201)),
    Change("other training set", "T10", put("train_samples", value=7)),
    Change("other evaluation set", "T10", put("eval_samples", value=7)),
    Change("another optimizer", "T12", put("opt_name", value="adam")),
    Change("a fixed value almost right", "T12", put(
        "lars_opt_end_learning_rate", value=0.00010001)),
    Change("a hyperparameter borrowed from open", "T2", put(
        "lars_opt_momentum", key="opt_momentum")),
    Change("a hyperparameter as a list", "T12", put("opt_name", value=["lars"])),
    Change("a misspelt hyperparameter", "T2", put("lars_epsilon", key="lars_epslion")),
    Change("a key with Cyrillic letters", "T2", put("seed", key="s\u0435\u0435d")),
    Change("division in another case", "T2", put("submission_division", value="Closed")),
    Change("a path for a division", "T2", put("submission_division", value="../../tmp/closed")),
    Change("benchmark in another case", "T14", put("submission_benchmark", value="ResNet")),
    Change("another system", "T14", put("submission_platform", value="1xNVIDIA GB200")),
    Change("another submitter", "T14", put("submission_org", value="Nvidia")),
    Change("HTML for a system", "T14", put(
        "submission_platform", value="<script>alert(1)</script>")),
    Change("time as text", "T1", put("seed", time_ms="1714028488162")),
    Change("two records on one line", "T1", join_lines),
    Change("a prefix", "T1", edit_line(lambda line: "0: " + line)),
    Change("cut JSON", "T1", edit_line(lambda line: line[:-20])),
    Change("a field twice", "T1", edit_line(
        lambda line: line.replace('"value":', '"value": 0, "value":'))),
    Change("a record of 2 MiB", "T1", put("seed", value="7" * 2**21)),
    Change("a bomb of brackets", "T1", edit_line(lambda line: MARKER + "[" * 200_000)),
    Change("a killed run", "T7", lambda lines: lines[: find_record(lines, "eval_start", 3)]),
    Change("glued: two logs in one file", "T2", lambda lines: [*lines, *lines]),
    Change("no records at all", "T1", lambda lines: ["done"]),
    Change("a seed used twice", "T15", of_result=lambda folder: rewrite(
        locate_log(folder, 3), give_seed(folder, 1))),
    Change("a copy of another run, a day later", "T19", of_result=copy_a_day_later),
    Change("one run more", "T16", of_result=lambda folder: shutil.copy(
        locate_log(folder, 4), locate_log(folder, 5))),
    Change("one run fewer", "T16", of_result=lambda folder: locate_log(folder, 4).unlink()),
    Change("two runs that did not converge", "T17", of_result=abort_two),
    Change("a benchmark misspelt", "S1", of_result=lambda folder: folder.rename(
        folder.with_name("resent"))),
    Change("a link out of the folder", "S5", of_result=link_log),
    Change("a pipe", "S5", of_result=make_pipe),
    Change("a misnamed log", "S1", of_result=lambda folder: locate_log(folder, 4).rename(
        folder / "result_04.txt")),
    Change("no code", "S3"),
    Change("no licence", "S6"),
]  # fmt: skip


def lay_out(folder: Path, logs: Path) -> Path:
    """Lay out a submitter's folder with the published result, as the peer accepts it."""
    published = logs / ROUND / SUBMITTER
    result = folder / "results" / SYSTEM / BENCHMARK
    shutil.copytree(
        published / "results" / SYSTEM / BENCHMARK, result, copy_function=shutil.copyfile
    )
    result.chmod(0o755)
    description = json.loads((published / "systems" / f"{SYSTEM}.json").read_text())
    description["status"] = "Available on-premise"  # the peer's word since 4.1; else it complains
    (folder / "systems").mkdir()
    (folder / "systems" / f"{SYSTEM}.json").write_text(json.dumps(description))
    return result


def run_module(*arguments: str, folder: Path) -> tuple[int | None, str]:
    """Return exit code and output of a Python module; None where it had to be stopped."""
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=folder, env=path, capture_output=True,
            timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


def ask_peer(*arguments: str, folder: Path, accepted: str) -> str:
    """Return what the peer says, as the table has it."""
    code, output = run_module(*arguments, folder=folder)
    if code is None:
        return f"hangs ({SECONDS_MAX} s)"
    if "Traceback (most recent call last)" in output:
        return f"crashes: {output.strip().splitlines()[-1].split(':')[0]}"
    return "**accepts**" if accepted in output else "rejects"


def ask_ours(path: Path, folder: Path) -> str:
    """Return the rules that reject the same path in the same round."""
    code, output = run_module(
        "cepheid.tools.cli", "check", "--round", ROUND, "--format", "json", str(path), folder=folder
    )
    if code == 2:
        return "refused"
    findings = json.loads(output)["findings"]
    errors = dict.fromkeys(f["rule"] for f in findings if f["severity"] == "error")
    return ", ".join(errors) or "accepts"


def make_row(change: Change, logs: Path) -> list[str]:
    """Return what both say about one change."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, SUBMITTER)
        result = lay_out(folder, logs)
        changed = locate_log(result, 2)
        if change.of_log:
            rewrite(changed, change.of_log)
        elif change.of_result:
            change.of_result(result)
        same_round, alone = ask_ours(changed if change.of_log else folder, Path(place)), "–"
        if change.of_log:
            alone = ask_peer(
                "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", "4.0.0",
                str(changed), folder=Path(place), accepted="SUCCESS",
            )  # fmt: skip
        package = ask_peer(
            "mlperf_logging.package_checker", str(folder), "training", "4.0.0",
            folder=Path(place), accepted="FOUND NO ERRORS",
        )  # fmt: skip
    return [change.name, change.rule, same_round, alone, package]


def make_table(logs: Path) -> str:
    """Make the whole table in Markdown, and its counts. Raises UserError without published logs."""
    if not (logs / ROUND / SUBMITTER).is_dir():
        raise UserError(f"{logs / ROUND / SUBMITTER}: the published logs are not there")
    unchanged = Change("no change", "")  # the published result has no code, which the peer accepts
    baseline = make_row(unchanged, logs)[-1]
    if baseline != "**accepts**":
        raise UserError(f"the peer says of the unchanged result: {baseline}")
    made = [make_row(change, logs) for change in CHANGES]
    head = ["change", "our rule in v1.0", f"ours in {ROUND}", "peer: the log", "peer: the package"]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *made)]
    of_logs = [cells for cells in made if cells[-2] != "–"]
    alone = sum("accepts" in cells[-2] for cells in of_logs)
    package = sum("accepts" in cells[-1] for cells in made)
    trouble = sum("crashes" in cells[-1] or "hangs" in cells[-1] for cells in made)
    counts = (
        f"Of {len(of_logs)} changed logs the peer accepts {alone}; of {len(made)} changed packages "
        f"it accepts {package} and does not come to an end with {trouble}."
    )
    return "\n".join([counts, "", *lines, ""])
