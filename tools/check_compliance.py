"""`cepheid check`: check run logs and submissions against the rules."""

import argparse
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __package__ in (None, ""):  # run as a file of a checkout that is not installed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from cepheid.compliance.failure import isolate
from cepheid.compliance.finding import Finding, has_error, sort_findings
from cepheid.compliance.judge.decided import apply_waivers
from cepheid.compliance.judge.judgement import JudgedResult, find_place, judge, strip_result
from cepheid.compliance.judge.unit import Kept, use_processes
from cepheid.compliance.read import package
from cepheid.compliance.read.layout import SUBMISSIONS
from cepheid.compliance.read.mlperf_folders import SCALING
from cepheid.compliance.report import formats as report
from cepheid.compliance.report import rulebook
from cepheid.rules import extras, rounds
from cepheid.rules.errors import UserError
from cepheid.rules.host import keep_memory
from cepheid.rules.layout import wrap
from cepheid.rules.mlperf.rule_files import use_checkout
from cepheid.tools.console.arguments import read_command
from cepheid.tools.console.program import (
    EXIT_FINDINGS,
    EXIT_FINE,
    colour,
    read_version,
    replace_file,
    run_tool,
)

if TYPE_CHECKING:
    from cepheid.tools.console.changed import Change


CSV = "csv"
SCORING = ("numpy", "scipy")
RESULTS_MAX = 50  # whose table is shown; a vendor has fewer, a round more
FORMATS = (*report.FORMATS, CSV)
SHOW_PROGRESS_AFTER_SECONDS = 1.0
GARBAGE_OBJECTS = 100_000  # logs have no reference cycles: looking for them only takes time


COMMAND = read_command("check")


def main(argv: Sequence[str] | None = None) -> int:
    """Check what the command line names. Exit code 1 where there is an error."""
    return check(COMMAND.parse(argv))


def check(arguments: argparse.Namespace) -> int:
    """Check what arguments name, and report it."""
    if arguments.explain:
        print(rulebook.explain(arguments.explain))
        return EXIT_FINE
    use_checkout(arguments.rules)
    if arguments.list_rounds:
        for name in rounds.names():
            print(wrap(f"{name:<24}{rounds.load(name).judge}"))
        return EXIT_FINE
    change = _find_change(arguments) if arguments.changed else None
    if change and not change.concerns_submissions:
        print(f"no submission differs from {arguments.changed}")
        return EXIT_FINE
    if not arguments.paths:
        raise UserError("no path given; give a run log or a folder: cepheid check results/first")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise UserError(f"--jobs {arguments.jobs}: expected 1 process or more")
    judged_in = rounds.load(arguments.round, arguments.published)
    if arguments.write_scaling and not judged_in.is_mlperf:
        raise UserError("--write-scaling is for rounds of MLPerf; fix: name one with --round")
    if judged_in.checker and judged_in.checker != read_version():
        _report(f"{judged_in.name} is judged by cepheid {judged_in.checker}, this is another one")
    gc.set_threshold(GARBAGE_OBJECTS)
    keep_memory()
    if arguments.follow:
        return _follow(arguments, judged_in)
    are_alone = not any(map(os.path.isdir, arguments.paths))
    keep: Kept = "findings" if are_alone and arguments.format != CSV else "summaries"
    with_systems = keep != "findings"
    packages = [
        package.read(path, judged_in.layout, with_systems=with_systems) for path in arguments.paths
    ]
    with _show_progress() as progress:
        each = use_processes(arguments.jobs, progress)
        if change:
            judgement = judge(packages, judged_in, each, stood=change.is_untouched)
        else:
            judgement = judge(packages, judged_in, each, keep)
    if arguments.write_scaling:
        written = sum(map(_write_scaling, judgement.results))
        _report(f"{written} scaling.json written; from now on, scores are multiplied by them")
    findings, logs = change.select(judgement) if change else (judgement.findings, judgement.logs)
    if logs == 0 and not has_error(findings):
        raise UserError("no run log was found, so nothing was checked, and nothing passes")
    listed = judgement.results if judged_in.is_mlperf and not are_alone else ()
    if arguments.format == CSV:
        text = write_rows(CSV, judgement.results)
    elif arguments.format == "text":
        rows = _write_table(listed) if listed else ""
        text = report.write_text(findings, logs, judgement.round, rows)
        text = colour(text, arguments.output)
    else:
        text = report.FORMATS[arguments.format](findings, logs, judgement.round)
    if listed and arguments.format == "json":
        text = _add_rows(text, listed)
    report.write_report(text, arguments.output)
    return EXIT_FINDINGS if has_error(findings) else EXIT_FINE


def _write_scaling(result: JudgedResult) -> bool:
    """Write the factor of a score beside its logs; return False where it needs none.

    A file with an older factor is removed then. Where nothing is compared, it stays.
    """
    found, file = result.of_mlcommons, result.folder.path / SCALING
    if found and found.verdict == "pass" and found.factor > 1:
        replace_file(file, json.dumps({"scaling_factor": found.factor}))
        return True
    if found:
        file.unlink(missing_ok=True)
    return False


def _write_table(results: Sequence[JudgedResult]) -> str:
    """Write the table of results of a round of MLPerf, or why there is none.

    Findings say already why a result was rejected.
    """
    if missing := extras.find_missing(SCORING):
        return f"no table: {extras.explain_missing(*missing)}"
    if len(results) > RESULTS_MAX:
        return (
            f"{len(results):,} results: `cepheid summary` shows their table, --format csv has rows"
        )
    return write_rows("table", results)


def _add_rows(text: str, results: Sequence[JudgedResult]) -> str:
    """Add the results of a round of MLPerf to a report as JSON, if they can be scored here."""
    if extras.find_missing(SCORING):
        return text
    rows = json.loads(write_rows("json", results))
    for row in rows:
        del row["findings"], row["reasons"]  # the report has all of them
    return json.dumps({**json.loads(text), "results": rows}, indent=2)


def write_rows(form: str, results: Sequence[JudgedResult]) -> str:
    """Write one row for each result, as ``cepheid summary`` does."""
    extras.require(*SCORING)
    from cepheid.leaderboard.rows.data import write_csv, write_json  # here: logs need none of it
    from cepheid.leaderboard.rows.entry import list_rows
    from cepheid.tools.console.tables import write_table

    as_table = partial(write_table, reasons=0)
    forms: dict[str, Any] = {"csv": write_csv, "json": write_json, "table": as_table}
    return isolate(results, lambda shown: forms[form](list_rows(shown)), strip_result)[0]


def _find_change(arguments: argparse.Namespace) -> "Change":
    """Find what a branch changes, and put all submissions in place of the paths."""
    from cepheid.tools.console.changed import find_change  # here: only --changed needs git

    if arguments.paths:
        raise UserError("--changed lets git choose the submissions to check; remove the path")
    change = find_change(arguments.changed)
    change.refuse_mixture(is_organiser=arguments.organiser)
    arguments.paths = [Path(os.path.relpath(change.root / SUBMISSIONS))]
    return change


def _follow(arguments: argparse.Namespace, judged_in: rounds.Round) -> int:
    """Check one log while it grows; text and workflow commands appear at once."""
    from cepheid.compliance.judge.follow import (
        follow_log,  # here: checking a finished log needs none of it
    )

    path = _choose_log(arguments.paths)
    if arguments.format == CSV:
        raise UserError("--format csv has a row for each result, and --follow is about one log")
    who = package.find_around_log(path, judged_in.layout)
    place = find_place(who.results[0], who, judged_in)
    print_now = report.ONE_BY_ONE.get(arguments.format) if arguments.output is None else None
    interrupted = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    findings: list[Finding] = []
    try:
        for new in follow_log(path, place, judged_in, _report, interrupted.wait):
            (finding,), _ = apply_waivers([new], who, judged_in)
            findings.append(finding)
            if print_now:
                print(print_now(finding), flush=True)
    finally:
        signal.signal(signal.SIGINT, before)
    if print_now:
        whose = report.name_judge(findings, judged_in.name)
        print(wrap(report.format_verdict(findings, 1) + whose))
    else:
        text = report.FORMATS[arguments.format](sort_findings(findings), 1, judged_in.name)
        report.write_report(text, arguments.output)
    return EXIT_FINDINGS if has_error(findings) else EXIT_FINE


def _choose_log(paths: Sequence[Path]) -> Path:
    if len(paths) > 1:
        raise UserError(f"--follow takes one run log, not {len(paths)}; start one for each")
    (path,) = paths
    if path.is_dir():
        unfinished = sorted(path.rglob("*.partial"))
        guess = (
            f", for example {unfinished[0]}" if unfinished else ", also one that does not exist yet"
        )
        raise UserError(f"{path} is a folder; --follow takes the run log itself{guess}")
    return path


def _report(text: str) -> None:
    print(wrap(f"cepheid: {text}"), file=sys.stderr, flush=True)


@contextmanager
def _show_progress() -> Iterator[Callable[[int, int], None]]:
    """Yield what shows the number of judged logs, on a terminal when the work takes long.

    (Not `rich`, which takes as long to import as checking a log.)
    """
    started = shown_at = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal shown_at
        now = time.monotonic()
        is_long = now - started > SHOW_PROGRESS_AFTER_SECONDS
        if is_long and now - shown_at > 0.1 and sys.stderr.isatty():
            shown_at = now
            print(f"\rchecked {done:,} of {total:,} logs", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if shown_at > started:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_tool(main)
