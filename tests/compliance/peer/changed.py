"""Makes changes of the catalogues to a published log, and asks mlcommons' checkers about it.

    python -m tests.compliance.peer.changed            print the table
    python -m tests.compliance.peer.changed --write    write it into compliance/README.md

The log is one result of MLPerf Training v4.0 below ``../shared/published_logs``. The peer is the
installed ``mlperf_logging``: its checker of single logs and its checker of packages, each in a
process of its own with a time limit, since it executes code and may not end.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cepheid.rules.installation import ROOT
from tests.checkout import PUBLISHED_LOGS
from tests.compliance.checks import test_catalogue, test_submission_catalogue
from tests.compliance.peer import readme

PUBLISHED = PUBLISHED_LOGS / "mlperf-training-4.0" / "NVIDIA"
SYSTEM, BENCHMARK = "h200_ngc24.04_mxnet", "resnet"
ROUND = "mlperf-training-4.0"
TABLE = "changed logs"
SECONDS_MAX = 30
MARKER = ":::MLLOG "

Lines = list[str]


@dataclass(frozen=True)
class Change:
    """A change of the catalogue, made to a result of five published logs.

    ``of_log`` changes the lines of ``result_2.txt``, ``of_result`` the folder of the result.
    """

    name: str
    of_log: Callable[[Lines], Lines] | None = None
    of_result: Callable[[Path], object] | None = None


# Changes of one log


def find(lines: Lines, key: str, nth: int = 0) -> int:
    """Where the ``nth`` record of a key stands; -1 is the last one."""
    found = [n for n, line in enumerate(lines) if line.startswith(MARKER) and f'"{key}"' in line]
    return found[nth]


def put(key: str, nth: int = 0, /, **fields: object) -> Callable[[Lines], Lines]:
    """Other fields in one record."""

    def change(lines: Lines) -> Lines:
        at = find(lines, key, nth)
        record = {**json.loads(lines[at].removeprefix(MARKER)), **fields}
        return [*lines[:at], MARKER + json.dumps(record), *lines[at + 1 :]]

    return change


def meta(key: str, nth: int = 0, /, **fields: object) -> Callable[[Lines], Lines]:
    """Other metadata in one record."""

    def change(lines: Lines) -> Lines:
        record = json.loads(lines[find(lines, key, nth)].removeprefix(MARKER))
        return put(key, nth, metadata={**record["metadata"], **fields})(lines)

    return change


def stamp(key: str, milliseconds: int, nth: int = 0, *, on: bool = False) -> (
    Callable[[Lines], Lines]
):  # fmt: skip
    """One record at another time; with ``on`` all after it too."""

    def change(lines: Lines) -> Lines:
        at, changed = find(lines, key, nth), list(lines)
        for number in range(at, len(lines) if on else at + 1):
            if lines[number].startswith(MARKER):
                record = json.loads(lines[number].removeprefix(MARKER))
                record["time_ms"] += milliseconds
                changed[number] = MARKER + json.dumps(record)
        return changed

    return change


def move(key: str, before: str, nth: int = 0, before_nth: int = 0) -> Callable[[Lines], Lines]:
    """One record moved, at the time of its new place."""

    def change(lines: Lines) -> Lines:
        record = json.loads(lines[find(lines, key, nth)].removeprefix(MARKER))
        left = [line for number, line in enumerate(lines) if number != find(lines, key, nth)]
        at = find(left, before, before_nth)
        record["time_ms"] = json.loads(left[at].removeprefix(MARKER))["time_ms"]
        return [*left[:at], MARKER + json.dumps(record), *left[at:]]

    return change


def drop(*keys: tuple[str, int]) -> Callable[[Lines], Lines]:
    def change(lines: Lines) -> Lines:
        gone = {find(lines, key, nth) for key, nth in keys}
        return [line for number, line in enumerate(lines) if number not in gone]

    return change


def at_seed(change: Callable[[str], str]) -> Callable[[Lines], Lines]:
    """The text of one line changed."""

    def change_seed(lines: Lines) -> Lines:
        at = find(lines, "seed")
        return [*lines[:at], change(lines[at]), *lines[at + 1 :]]

    return change_seed


def glue(lines: Lines) -> Lines:
    return [*lines, *lines]


def join_lines(lines: Lines) -> Lines:
    at = find(lines, "seed")
    return [*lines[: at - 1], lines[at - 1] + lines[at], *lines[at + 1 :]]


def evaluate_again(lines: Lines) -> Lines:
    """The last evaluation once more, at the time of run_stop and after it."""
    stop, result = find(lines, "run_stop", -1), lines[find(lines, "eval_accuracy", -1)]
    record = json.loads(result.removeprefix(MARKER))
    record["time_ms"] = json.loads(lines[stop].removeprefix(MARKER))["time_ms"]
    return [*lines[: stop + 1], MARKER + json.dumps(record), *lines[stop + 1 :]]


# Changes of a result


def log_of(folder: Path, index: int) -> Path:
    return folder / f"result_{index}.txt"


def read(path: Path) -> Lines:
    return path.read_text(encoding="utf-8").splitlines()


def write(path: Path, lines: Lines) -> None:
    path.write_bytes(("\n".join(lines) + "\n").encode("utf-8", "surrogatepass"))


def seed_of(folder: Path, index: int) -> int:
    lines = read(log_of(folder, index))
    return int(json.loads(lines[find(lines, "seed")].removeprefix(MARKER))["value"])


def seed_twice(folder: Path) -> None:
    write(log_of(folder, 3), put("seed", value=seed_of(folder, 1))(read(log_of(folder, 3))))


def copy_a_day_later(folder: Path) -> None:
    lines = read(log_of(folder, 1))
    later = stamp("submission_benchmark", 86_400_000, on=True)(lines)
    write(log_of(folder, 3), put("seed", value=seed_of(folder, 3))(later))


def two_aborted(folder: Path) -> None:
    for index in (1, 2):
        lines = meta("run_stop", status="aborted")(read(log_of(folder, index)))
        write(log_of(folder, index), put("eval_accuracy", -1, value=0.5)(lines))


def link_log(folder: Path) -> None:
    log_of(folder, 4).unlink()
    published = log_of(PUBLISHED / "results" / SYSTEM / BENCHMARK, 4)
    log_of(folder, 4).symlink_to(published)


def make_pipe(folder: Path) -> None:
    log_of(folder, 4).unlink()
    os.mkfifo(log_of(folder, 4))


CHANGES = [
    Change("run_start stamped later", stamp("run_start", 60_000)),
    Change("run_stop stamped earlier", stamp("run_stop", -60_000)),
    Change("wall clock set back within a block", stamp("eval_start", -60_000, 3, on=True)),
    Change("run_stop before the last evaluation", move("run_stop", "eval_start", 0, -1)),
    Change("run_stop before run_start", move("run_stop", "run_start")),
    Change("something after run_stop", evaluate_again),
    Change("data touched early", move("block_start", "init_stop")),
    Change("cache not cleared", put("cache_clear", value=False)),
    Change("long initialisation", stamp("init_start", -3_600_000)),
    Change("an evaluation skipped", drop(
        ("eval_start", 3), ("eval_stop", 3), ("eval_accuracy", 3))),
    Change("a target lowered", put("eval_accuracy", -1, value=0.7589)),
    Change("aborted with the targets", meta("run_stop", status="aborted")),
    Change("status in another case", meta("run_stop", status="SUCCESS")),
    Change("NaN quality", put("eval_accuracy", 3, value=float("nan"))),
    Change("infinite quality", put("eval_accuracy", -1, value=float("inf"))),
    Change("a share above one", put("eval_accuracy", 3, value=75.9)),
    Change("wrong epochs", meta("eval_accuracy", 3, epoch_num=99)),
    Change("batch size misreported", put("global_batch_size", value=3201)),
    Change("other training set", put("train_samples", value=7)),
    Change("other evaluation set", put("eval_samples", value=7)),
    Change("another optimizer", put("opt_name", value="adam")),
    Change("a fixed value almost right", put("lars_opt_end_learning_rate", value=0.00010001)),
    Change("a hyperparameter borrowed from open", put("lars_opt_momentum", key="opt_momentum")),
    Change("a hyperparameter as a list", put("opt_name", value=["lars"])),
    Change("a misspelt hyperparameter", put("lars_epsilon", key="lars_epslion")),
    Change("a key with Cyrillic letters", put("seed", key="s\u0435\u0435d")),
    Change("division in another case", put("submission_division", value="Closed")),
    Change("a path for a division", put("submission_division", value="../../tmp/closed")),
    Change("benchmark in another case", put("submission_benchmark", value="ResNet")),
    Change("another system", put("submission_platform", value="1xNVIDIA GB200")),
    Change("another submitter", put("submission_org", value="Nvidia")),
    Change("HTML for a system", put("submission_platform", value="<script>alert(1)</script>")),
    Change("time as text", put("seed", time_ms="1714028488162")),
    Change("two records on one line", join_lines),
    Change("a prefix", at_seed(lambda line: "0: " + line)),
    Change("cut JSON", at_seed(lambda line: line[:-20])),
    Change("a field twice", at_seed(lambda line: line.replace('"value":', '"value": 0, "value":'))),
    Change("a record of 2 MiB", put("seed", value="7" * 2**21)),
    Change("a bomb of brackets", at_seed(lambda line: MARKER + "[" * 200_000)),
    Change("a killed run", lambda lines: lines[: find(lines, "eval_start", 3)]),
    Change("glued: two logs in one file", glue),
    Change("no records at all", lambda lines: ["done"]),
    Change("a seed used twice", of_result=seed_twice),
    Change("a copy of another run, a day later", of_result=copy_a_day_later),
    Change("one run more", of_result=lambda folder: shutil.copy(
        log_of(folder, 4), log_of(folder, 5))),
    Change("one run fewer", of_result=lambda folder: log_of(folder, 4).unlink()),
    Change("two runs that did not converge", of_result=two_aborted),
    Change("a benchmark misspelt", of_result=lambda folder: folder.rename(
        folder.with_name("resent"))),
    Change("a link out of the folder", of_result=link_log),
    Change("a pipe", of_result=make_pipe),
    Change("a misnamed log", of_result=lambda folder: log_of(folder, 4).rename(
        folder / "result_04.txt")),
    Change("no code"),
    Change("no licence"),
]  # fmt: skip


def our_rules() -> dict[str, str]:
    """The rule of each change, by the name that it has in the catalogues."""
    of_logs = {case.name: case.rule for case in (*test_catalogue.CASES, *test_catalogue.WARNED)}
    return of_logs | {case.name: case.rule for case in test_submission_catalogue.CASES}


def lay_out(folder: Path) -> Path:
    """A submitter's folder with the published result, as the peer accepts it."""
    result = folder / "results" / SYSTEM / BENCHMARK
    shutil.copytree(
        PUBLISHED / "results" / SYSTEM / BENCHMARK, result, copy_function=shutil.copyfile
    )
    result.chmod(0o755)
    description = json.loads((PUBLISHED / "systems" / f"{SYSTEM}.json").read_text())
    description["status"] = "Available on-premise"  # the peer's word since 4.1; else it complains
    (folder / "systems").mkdir()
    (folder / "systems" / f"{SYSTEM}.json").write_text(json.dumps(description))
    return result


def run_module(*arguments: str, folder: Path) -> tuple[int | None, str]:
    """Exit code and output of a Python module; None where it had to be stopped."""
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", *arguments], cwd=folder, env=path, capture_output=True,
            timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


def peer_verdict(*arguments: str, folder: Path, accepted: str) -> str:
    code, output = run_module(*arguments, folder=folder)
    if code is None:
        return f"hangs ({SECONDS_MAX} s)"
    if "Traceback (most recent call last)" in output:
        return f"crashes: {output.strip().splitlines()[-1].split(':')[0]}"
    return "**accepts**" if accepted in output else "rejects"


def ours_in_the_same_round(path: Path, folder: Path) -> str:
    """The rules that reject the same path in the same round."""
    code, output = run_module(
        "cepheid.tools.cli", "check", "--round", ROUND, "--format", "json", str(path), folder=folder
    )
    if code == 2:
        return "refused"
    found = json.loads(output)["findings"]
    errors = dict.fromkeys(f["rule"] for f in found if f["severity"] == "error")
    return ", ".join(errors) or "accepts"


def row(change: Change) -> list[str]:
    """What both say about one change."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "NVIDIA")
        result = lay_out(folder)
        changed = log_of(result, 2)
        if change.of_log:
            write(changed, change.of_log(read(changed)))
        elif change.of_result:
            change.of_result(result)
        ours = our_rules()[change.name]
        about = changed if change.of_log else folder
        same_round = ours_in_the_same_round(about, Path(place))
        alone = "–"
        if change.of_log:
            alone = peer_verdict(
                "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", "4.0.0",
                str(changed), folder=Path(place), accepted="SUCCESS",
            )  # fmt: skip
        package = peer_verdict(
            "mlperf_logging.package_checker", str(folder), "training", "4.0.0",
            folder=Path(place), accepted="FOUND NO ERRORS",
        )  # fmt: skip
    return [change.name, ours, same_round, alone, package]


def table() -> str:
    """The whole table in Markdown, and its counts."""
    unchanged = Change("no code")  # the published result has none, and the peer does not ask
    baseline = row(unchanged)[-1]
    if baseline != "**accepts**":
        raise SystemExit(f"the peer says of the unchanged result: {baseline}")
    made = [row(change) for change in CHANGES]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write into compliance/README.md")
    write_it = parser.parse_args().write
    if not PUBLISHED.is_dir():
        raise SystemExit(f"{PUBLISHED}: the published logs are not there")
    made = table()
    if write_it:
        readme.replace_table(TABLE, made)
    else:
        print(made)


if __name__ == "__main__":
    main()
