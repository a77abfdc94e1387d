"""Format all findings of a judgement for people and for programs, and write them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from cepheid.compliance.finding import Finding, escape, has_error
from cepheid.compliance.report.sarif import find_in_folder, format_sarif
from cepheid.rules.errors import UserError
from cepheid.rules.host import atomic_write


def format_text(findings: Sequence[Finding], logs: int) -> str:
    """Format all findings, and a last line such as ``pass: 1 log, 0 errors, 1 note``.

    Only the first finding of a rule points to the rule's text.
    """
    explained: set[str] = set()
    parts = []
    for finding in findings:
        parts.append(finding.text(explain=finding.rule not in explained))
        explained.add(finding.rule)
    return "\n".join([*parts, format_verdict(findings, logs)])


def format_verdict(findings: Sequence[Finding], logs: int) -> str:
    """Format the verdict with its counts."""
    counts = {
        severity: sum(finding.severity == severity for finding in findings)
        for severity in ("error", "warning", "note")
    }
    parts = [_count(logs, "log"), _count(counts["error"], "error")]
    parts += [_count(counts[level], level) for level in ("warning", "note") if counts[level]]
    return f"{decide_verdict(findings)}: {', '.join(parts)}"


def decide_verdict(findings: Iterable[Finding]) -> str:
    """Return ``pass`` or ``fail``."""
    return "fail" if has_error(findings) else "pass"


def format_json(findings: Sequence[Finding], logs: int, round_name: str) -> str:
    """Format the findings as JSON, in ASCII so that every terminal and file accepts it."""
    report = {
        "round": round_name,
        "verdict": decide_verdict(findings),
        "logs": logs,
        "findings": [finding.as_json() for finding in findings],
    }
    return json.dumps(report, indent=2)


_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def format_github(findings: Sequence[Finding], logs: int) -> str:
    """Format the findings as workflow commands of GitHub Actions, then the verdict."""
    lines = [format_github_command(finding) for finding in findings]
    return "\n".join([*lines, format_verdict(findings, logs)])


def format_github_command(finding: Finding) -> str:
    """Format one finding as ``::error file=…,line=…,title=…::message``."""
    place = find_in_folder(finding.path)
    properties = {"file": str(finding.path) if place is None else place.as_posix()}
    if finding.line is not None:
        properties["line"] = str(finding.line)
    properties["title"] = finding.code
    listed = ",".join(
        f"{name}={_escape(value).replace(':', '%3A').replace(',', '%2C')}"
        for name, value in properties.items()
    )
    message = finding.message + "".join(f"\n{line}" for line in finding.details())
    return f"::{_COMMANDS[finding.severity]} {listed}::{_escape(message)}"


def _escape(text: str) -> str:
    """Escape a text as the runner requires, so that a log cannot begin a command of its own.

    Control characters other than line ends are made visible.
    """
    text = "".join(c if c in "\r\n" else escape(c) for c in text)
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


FORMATS: Mapping[str, Callable[[Sequence[Finding], int, str], str]] = {
    "text": lambda findings, logs, round_name: format_text(findings, logs),
    "json": format_json,
    "sarif": format_sarif,
    "github": lambda findings, logs, round_name: format_github(findings, logs),
}
"""What `cepheid check --format` can print: findings, number of logs, name of the round -> text."""

ONE_BY_ONE: Mapping[str, Callable[[Finding], str]] = {
    "text": Finding.text,
    "github": format_github_command,
}
"""The formats whose findings can be printed as they come; the verdict line follows."""


def write_report(text: str, path: Path | None) -> None:
    """Print a report, or write it to a file as a whole: a reader never sees half of it.

    Raises UserError where the file cannot be written.
    """
    if path is None:
        print(text)
        return
    try:
        atomic_write(path, f"{text}\n".encode(errors="backslashreplace"))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); choose another --output"
        ) from error
