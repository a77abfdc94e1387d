"""Findings as SARIF 2.1.0 (OASIS), which pull requests show beside the lines they are about.

Section numbers are those of the standard, https://docs.oasis-open.org/sarif/sarif/v2.1.0/.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cepheid.compliance.finding import Finding
from cepheid.compliance.report.rulebook import RuleText, read_rules
from cepheid.rules import rounds

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_BASE = "%SRCROOT%"  # the folder that the command was run in; for a pull request, the checkout


def format_sarif(findings: Sequence[Finding], logs: int, round_name: str) -> str:
    """Format all findings as one SARIF log with one run, in ASCII."""
    checked = rounds.load(round_name).rules
    ids = list(dict.fromkeys([*checked, *(finding.rule for finding in findings)]))
    severities = {rule: checked[rule].severity if rule in checked else "error" for rule in ids}
    texts = read_rules()
    driver = {
        "name": "cepheid check",
        "rules": [_describe_rule(rule, severities[rule], texts.get(rule)) for rule in ids],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True}],
        "results": [_describe_finding(finding, ids.index(finding.rule)) for finding in findings],
        "properties": {"round": round_name, "logs": logs},
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _describe_rule(rule_id: str, severity: str, text: RuleText | None) -> dict[str, Any]:
    """Return a reportingDescriptor (3.49)."""
    rule: dict[str, Any] = {"id": rule_id, "defaultConfiguration": {"level": severity}}
    if text is not None:
        rule["name"] = "".join(word.capitalize() for word in text.title.split())
        rule["shortDescription"] = {"text": f"{rule_id} {text.title}"}
        rule["fullDescription"] = {"text": text.first_sentence}
        rule["help"] = {"text": f"{rule_id} {text.title}\n{text.body}", "markdown": text.body}
    return rule


def _describe_finding(finding: Finding, rule_index: int) -> dict[str, Any]:
    """Return a result (3.27)."""
    place: dict[str, Any] = {"artifactLocation": _locate(finding.path)}
    if finding.line is not None:
        place["region"] = {"startLine": finding.line}
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "level": finding.severity,
        "message": {"text": _escape("\n".join([finding.message, *finding.details()]))},
        "locations": [{"physicalLocation": place}],
        "properties": {
            "code": finding.code,
            "expected": finding.expected, "got": finding.got, "hint": finding.hint,
        },
    }  # fmt: skip


def _escape(text: str) -> str:
    """Escape links (3.11.6) and placeholders (3.11.5) in a message."""
    return text.replace("](", "] (").replace("{", "{{").replace("}", "}}")


def _locate(path: Path) -> dict[str, str]:
    """Return an artifactLocation (3.4), relative to the current folder if it holds the path."""
    inside = find_in_folder(path)
    if inside is None:
        return {"uri": "file://" + quote(os.fsencode(os.path.abspath(path)))}
    return {"uri": quote(os.fsencode(inside.as_posix())), "uriBaseId": _BASE}


def find_in_folder(path: Path) -> Path | None:
    """Return a path relative to the current folder, or None if it lies elsewhere."""
    absolute, folder = Path(os.path.abspath(path)), Path.cwd()
    return absolute.relative_to(folder) if absolute.is_relative_to(folder) else None
