"""Ask the installed mlperf-logging about logs, results and packages, in this process.

The peer executes its own rules, deletes ``scaling.json`` beside the logs that it reads, and writes
a new one. Results are therefore shown to it as links in a folder of their own.
"""

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from cepheid.rules import extras
from cepheid.rules.mlperf.rule_files import RuleSet

CRASH = "CRASH"
ErrorsOf = dict[str, set[str]]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Answer:
    """What the peer says: its verdict, and in ``says`` why; the error of Python for a CRASH."""

    verdict: str
    says: str = ""
    factor: float = 1.0


def judge_log(log: Path, rule_set: RuleSet) -> Answer:
    """Return SUCCESS, FAILED or CRASH for one log."""
    peer = _load("compliance_checker.mlp_compliance")
    peer.enqueued_configs.clear()  # a crash leaves some behind

    def ask() -> Answer:
        checker = peer.make_checker(rule_set.usage, f"{rule_set.version}.0", True, False)
        is_valid = peer.main(str(log), rule_set.first_file, checker)[0]
        return Answer("SUCCESS" if is_valid else "FAILED")

    return _ask(ask)[0]


def compare_convergence(logs: Sequence[Path], rule_set: RuleSet) -> Answer:
    """Return pass, fail, missing point or none for the logs of a result, with the factor.

    None where the peer compares nothing, because runs did not converge or do not fit together.
    """
    peer = _load_rcp_checker(rule_set)

    def ask() -> Answer:
        with tempfile.TemporaryDirectory() as folder:
            for log in logs:
                (Path(folder) / log.name).symlink_to(log.absolute())
            is_fine, why, factor = peer.check_directory(
                folder, rule_set.usage, f"{rule_set.version}.0", False, False,
                rcp_pass="pruned_rcps", set_scaling=True,
            )  # fmt: skip
        if why in ("Insufficient convergence", "Could not detect global_batch_size"):
            return Answer("none", why)
        is_missing = not is_fine and why.startswith("Missing RCP")
        return Answer("missing point" if is_missing else "pass" if is_fine else "fail", why, factor)

    return _ask(ask)[0]


def check_package(submitter: Path, rule_set: RuleSet) -> tuple[Answer, ErrorsOf]:
    """Return SUCCESS, FAILED or CRASH for a submitter's folder, and the errors by result.

    The key of errors about all systems is empty. After a crash, the errors are those before it.
    """
    peer = _load("package_checker.package_checker")
    _load_rcp_checker(rule_set)

    def ask() -> Answer:
        with tempfile.TemporaryDirectory() as folder:
            shown = Path(folder) / "shown"
            _link_tree(submitter, shown)
            peer.check_training_package(
                str(shown), rule_set.usage, f"{rule_set.version}.0", True, False, False, False,
                False, "",
            )  # fmt: skip
        return Answer("SUCCESS")

    answer, said = _ask(ask)
    errors: ErrorsOf = {}
    where = ""
    for level, message in said:
        if message.startswith(" Running compliance checks in dir "):
            where = message.partition("/shown/results/")[2]
        elif level >= logging.ERROR:
            if message.startswith("System description"):
                errors.setdefault("", set()).add(message)
            elif not message.startswith(("  System description", " Seed checker failed and")):
                errors.setdefault(where, set()).add(message)
    return (Answer("FAILED") if errors and answer.verdict != CRASH else answer), errors


def _link_tree(submitter: Path, shown: Path) -> None:
    for part in ("systems", "results"):
        (shown / part).mkdir(parents=True)
        for path in sorted((submitter / part).rglob("*")):
            made = shown / path.relative_to(submitter)
            if path.is_dir():
                made.mkdir(parents=True, exist_ok=True)
            elif path.is_file():
                made.symlink_to(path.absolute())


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((record.levelno, record.getMessage()))


def _ask(question: Callable[[], Answer]) -> tuple[Answer, list[tuple[int, str]]]:
    """Ask, and return the answer with everything that was logged; whatever is raised is CRASH."""
    listener, root = _Listener(), logging.getLogger()
    level, handlers = root.level, root.handlers
    root.handlers, root.level = [listener], logging.INFO
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
            answer = question()
    except Exception as error:  # whatever it raises is what this is about
        answer = Answer(CRASH, f"{type(error).__name__}: {str(error)[:80]}")
    finally:
        root.handlers, root.level = handlers, level
    return answer, listener.said


def _load_rcp_checker(rule_set: RuleSet) -> Any:
    """Load it, and tell it the runs of dlrm, which it lacks and the package checker knows."""
    peer = _load("rcp_checker.rcp_checker")
    runs = _load("benchmark_meta")._ALL_RESULT_FILE_COUNTS[rule_set.usage]
    peer.submission_runs[rule_set.usage] = runs | peer.submission_runs[rule_set.usage]
    return peer


@cache
def _load(name: str) -> Any:
    extras.require("mlperf_logging", "numpy", "scipy")
    module: ModuleType = import_module(f"mlperf_logging.{name}")
    return module
