"""Format all findings of a judgement for people and for programs, and write them.

Section numbers are those of SARIF 2.1.0, https://docs.oasis-open.org/sarif/sarif/v2.1.0/.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cepheid.compliance.finding import MORE, SEVERITIES, Finding, escape, has_error
from cepheid.compliance.report.rulebook import RuleText, read_rules
from cepheid.rules import rounds
from cepheid.rules.errors import UserError
from cepheid.rules.findings import find_code, load_codes
from cepheid.rules.host import atomic_write
from cepheid.rules.layout import count, lay_out, wrap

GROUPED_MIN = 4  # findings of one cause; fewer are shown each
PLACES_MAX = 3  # of the others that are named


def format_text(findings: Sequence[Finding], logs: int, rows: str = "") -> str:
    """Format findings by cause, a table of them, and a line such as ``pass: 1 log, 0 errors``.

    Errors come first. Of a cause that many findings share, one is shown, and where the others are.
    ``rows``, a table of results, stands before that of codes. A rule is pointed to once.
    """
    explained: set[str] = set()
    parts, groups = [], group_by_cause(findings)
    if not (is_short := all(len(same) < GROUPED_MIN for same in groups)):
        groups.sort(key=lambda same: SEVERITIES.index(same[0].severity))
    for same in groups:
        for finding in same if len(same) < GROUPED_MIN else same[:1]:
            parts.append(finding.text(explain=finding.rule not in explained))
            explained.add(finding.rule)
        parts += [_describe_others(same[1:])] if len(same) >= GROUPED_MIN else []
    parts += ["", *rows.splitlines(), *([""] if is_short else [])] if rows else []
    parts += [] if is_short else format_table(findings)
    return "\n".join([*parts, format_verdict(findings, logs)]).lstrip("\n")


def group_by_cause(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Group findings that say the same, whatever their numbers; in the order of the first ones."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        said = (_NUMBER.sub("0", text) for text in (finding.message, finding.expected))
        groups.setdefault((finding.code, finding.severity, *said), []).append(finding)
    return list(groups.values())


_NUMBER = re.compile(r"[0-9][0-9,.]*(e[+-]?[0-9]+)?")


def _describe_others(others: Sequence[Finding]) -> str:
    places = [finding.place for finding in others[:PLACES_MAX]]
    more = len(others) - len(places)
    named = ", ".join(places) + (f" and {more:,} more" if more else "")
    return f"    the same {len(others):,} more times: {named}"


def format_table(findings: Sequence[Finding]) -> list[str]:
    """Return the lines of a table of codes: how severe, how many, in how many files, what it is."""
    counts = Counter((SEVERITIES.index(each.severity), each.code) for each in findings)
    files = {kind: len({each.path for each in findings if each.code == kind[1]}) for kind in counts}
    rows = [("code", "", "findings", "files", "what is wrong")]
    for kind, times in sorted(counts.items(), key=lambda row: (row[0][0], -row[1], row[0][1])):
        level, code = kind
        known = load_codes().get(code)
        means = known.means if known else "and more of the rule"
        rows.append((code, SEVERITIES[level], f"{times:,}", f"{files[kind]:,}", means))
    return ["", *lay_out(rows), "every finding by itself: --format json, sarif or github"]


def format_verdict(findings: Sequence[Finding], logs: int) -> str:
    """Format the verdict with its counts."""
    counts = Counter(finding.severity for finding in findings)
    parts = [count(logs, "log"), count(counts["error"], "error")]
    parts += [count(counts[level], level) for level in SEVERITIES[1:] if counts[level]]
    return f"{decide_verdict(findings)}: {', '.join(parts)}"


def decide_verdict(findings: Iterable[Finding]) -> str:
    """Return ``pass`` or ``fail``."""
    return "fail" if has_error(findings) else "pass"


def name_judge(findings: Iterable[Finding], round_name: str) -> str:
    """Return mlcommons' verdict beside ours as a line, and whose rules it is by; else nothing."""
    judged_in = rounds.load(round_name)
    if not judged_in.is_mlperf:
        return ""
    refused = list_of_mlcommons(findings, round_name)
    verdict = f": fail ({', '.join(refused)})" if refused else ": pass"
    theirs = verdict if judged_in.of_mlcommons else ""
    ours = decide_verdict(findings)
    return f"\n{judged_in.title} as judged by {judged_in.judge}{theirs}; Cepheid: {ours}"


def list_of_mlcommons(findings: Iterable[Finding], round_name: str) -> list[str]:
    """Return the codes of errors by the rules that mlcommons' checkers have too.

    Errors of a published round that are warnings there, because it was accepted, count as errors.
    """
    judged_in = rounds.load(round_name)
    lowered = {rule.id for rule in judged_in.rules.values() if rule.kind == "integrity"}
    refused = set()
    for each in (finding for finding in findings if finding.rule in judged_in.of_mlcommons):
        is_lowered = each.severity == "warning" and each.rule in lowered
        counts_others = each.code == f"{each.rule}.{MORE}"  # of which ten are shown
        known = find_code(each.code) if is_lowered and not counts_others else None
        if each.is_error or (known and known.severity == "error"):
            refused.add(each.code)
    return sorted(refused)


def format_json(findings: Sequence[Finding], logs: int, round_name: str) -> str:
    """Format the findings as JSON, in ASCII so that every terminal and file accepts it."""
    is_mlperf = rounds.load(round_name).is_mlperf
    refused = list_of_mlcommons(findings, round_name) if is_mlperf else []
    report = {
        "round": round_name,
        "judge": rounds.load(round_name).judge,
        "verdict": decide_verdict(findings),
        **({"mlcommons": "fail" if refused else "pass"} if is_mlperf else {}),
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
    text = "\n".join([finding.message, *finding.details()])
    text = text.replace("](", "] (").replace("{", "{{").replace("}", "}}")  # 3.11.6, 3.11.5
    place: dict[str, Any] = {"artifactLocation": _locate(finding.path)}
    if finding.line is not None:
        place["region"] = {"startLine": finding.line}
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "level": finding.severity,
        "message": {"text": text},
        "locations": [{"physicalLocation": place}],
        "properties": {
            "code": finding.code,
            "expected": finding.expected, "got": finding.got, "hint": finding.hint,
        },
    }  # fmt: skip


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


def write_text(findings: Sequence[Finding], logs: int, round_name: str, rows: str = "") -> str:
    """Write the findings for a terminal, and a table of results."""
    return wrap(format_text(findings, logs, rows) + name_judge(findings, round_name))


FORMATS: Mapping[str, Callable[[Sequence[Finding], int, str], str]] = {
    "text": write_text,
    "json": format_json,
    "sarif": format_sarif,
    "github": lambda found, logs, name: format_github(found, logs) + name_judge(found, name),
}
"""What `cepheid check --format` can print: findings, number of logs, name of the round -> text."""

ONE_BY_ONE: Mapping[str, Callable[[Finding], str]] = {
    "text": lambda finding: wrap(finding.text()),
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
