"""Reports: all findings of a judgement as text or JSON, the text of a rule, and writing it down."""

import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from compliance.finding import Finding, has_error
from rules.definition import ROOT
from rules.errors import UserError, did_you_mean

_RULE_BOOKS = ("training.md", "submission.md", "mlperf.md")


def report_text(findings: Sequence[Finding], logs: int) -> str:
    """All findings, and a last line such as ``pass: 1 log, 0 errors, 1 note``.

    Only the first finding of a rule points to the rule's text.
    """
    explained: set[str] = set()
    parts = []
    for finding in findings:
        parts.append(finding.text(explain=finding.rule not in explained))
        explained.add(finding.rule)
    return "\n".join([*parts, verdict_line(findings, logs)])


def verdict_line(findings: Sequence[Finding], logs: int) -> str:
    """The verdict with its counts."""
    counts = {
        severity: sum(finding.severity == severity for finding in findings)
        for severity in ("error", "warning", "note")
    }
    said = [_counted(logs, "log"), _counted(counts["error"], "error")]
    said += [_counted(counts[level], level) for level in ("warning", "note") if counts[level]]
    return f"{verdict(findings)}: {', '.join(said)}"


def verdict(findings: Iterable[Finding]) -> str:
    """``pass`` or ``fail``."""
    return "fail" if has_error(findings) else "pass"


def report_json(findings: Sequence[Finding], logs: int, round_name: str) -> str:
    """The findings for a program. ASCII only, so that no terminal or file can refuse it."""
    report = {
        "round": round_name,
        "verdict": verdict(findings),
        "logs": logs,
        "findings": [finding.as_json() for finding in findings],
    }
    return json.dumps(report, indent=2)


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def explain(rule_id: str) -> str:
    """The text of a numbered rule from the rule books. Raises UserError for an unknown rule."""
    rules = _rule_texts()
    asked = rule_id.upper()
    if asked not in rules:
        raise UserError(
            f'no rule "{rule_id}"{did_you_mean(asked, rules)} '
            f"(all: {', '.join(rules)}; they are written in rules/)"
        )
    book, text = rules[asked]
    return f"{text}\n\n(rules/{book})"


def _rule_texts() -> Mapping[str, tuple[str, str]]:
    """Rule book and text of each rule, by id, in the order of the books."""
    found = {}
    for book in _RULE_BOOKS:
        text = (ROOT / "rules" / book).read_text(encoding="utf-8")
        for section in re.split(r"^(?=##)", text, flags=re.MULTILINE):
            title = re.match(r"### ([A-Z]+[0-9]+) ", section)
            if title:
                found[title.group(1)] = (book, section.removeprefix("### ").strip())
    return found


def write(text: str, path: Path | None) -> None:
    """Print a report, or write it to a file as a whole: a reader never sees half of it.

    Raises UserError where the file cannot be written.
    """
    if path is None:
        print(text)
        return
    try:
        descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text + "\n")
            os.chmod(partial, 0o644)  # mkstemp lets only its owner read
            os.replace(partial, path)
        except BaseException:
            os.unlink(partial)
            raise
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); choose another --output"
        ) from error
