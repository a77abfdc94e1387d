"""Findings: one rule broken at one place, printed for people and encoded for programs."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from cepheid.rules.findings import find_code
from cepheid.rules.rounds import Severity

SHOWN_MAX = 200  # characters of a value that a message repeats
FINDINGS_PER_RULE_MAX = 10  # of one log; the rest is counted
MORE = "more"  # the word of the code that counts the others
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")  # the worst first


@dataclass(frozen=True)
class Finding:
    """One rule broken.

    ``code`` names the rule and the kind of breach, for example ``T8.late``; it never changes, while
    the wording of ``message`` may.
    ``line`` is the line of ``path`` (from 1), or None for the file or folder as a whole.
    ``expected`` and ``got`` may be empty; ``hint`` says how to fix it.
    """

    code: str
    severity: Severity
    path: Path
    line: int | None
    message: str
    expected: str = ""
    got: str = ""
    hint: str = ""

    @property
    def rule(self) -> str:
        """The id of the rule, for example ``T8``."""
        return self.code.partition(".")[0]

    @property
    def identity(self) -> tuple[str, int | None, Severity]:
        """What stays the same while a log grows; counts in the message do not."""
        return self.code, self.line, self.severity

    @property
    def is_error(self) -> bool:
        """True when this finding alone rejects a result."""
        return self.severity == "error"

    @property
    def is_dispute(self) -> bool:
        """True where an organiser has yet to decide whether this is an error (T19, T23)."""
        return self.code.endswith(".disputed")

    @property
    def headline(self) -> str:
        """Code and message on one line: ``T8.late evaluation at 24,000 samples is late``."""
        level = "" if self.is_error else f"{self.severity}: "
        return f"{self.code} {level}{self.message}"

    @property
    def place(self) -> str:
        """File and line as people read them."""
        return escape(str(self.path)) + (f":{self.line}" if self.line is not None else "")

    def text(self, *, explain: bool = True) -> str:
        """Format the finding for a terminal; ``explain`` points to the text of the rule."""
        see = f"`cepheid check --explain {self.rule}` says why" if explain and self.hint else ""
        return "\n    ".join([f"{self.place}: {self.headline}", *self.details(see)])

    def details(self, see: str = "") -> list[str]:
        """Return lines that say what was expected, what is there, and how to fix it."""
        compared = [
            f"expected {self.expected}" if self.expected else "",
            f"got {self.got}" if self.got else "",
        ]
        fix = "; ".join(filter(None, [self.hint, see]))
        lines = [", ".join(filter(None, compared)), f"fix: {fix}" if fix else ""]
        return [line for line in lines if line]

    def as_json(self) -> dict[str, Any]:
        """Return the finding as plain JSON, with the keys of the tools' JSON output."""
        return {"rule": self.rule, **vars(self), "path": str(self.path)}


class HasPath(Protocol):
    """What was read from one file or folder."""

    @property
    def path(self) -> Path:
        """The file or folder."""


class HasLine(Protocol):
    """What stands on one line of a file, or is about the file as a whole."""

    @property
    def line(self) -> int | None:
        """The line, from 1."""


@dataclass(frozen=True)
class FileProblem:
    """What is wrong with a file, on a line of it or (None) as a whole."""

    line: int | None
    message: str
    expected: str = ""
    got: str = ""


def breach(
    where: HasPath | Path,
    at: HasLine | int | None,
    code: str,
    /,
    *,
    case: str = "",
    **facts: str | float,
) -> Finding:
    """Return the finding of a code; ``rules/findings/*.yaml`` holds its severity and its texts.

    ``case`` is one of the code's cases, where it has any. ``facts`` fill the places of the texts:
    numbers, or texts in which all that a log or a submission says is escaped (``format_value``).
    A record brings its ``key`` and ``value`` along. The round decides how severe an error is when
    the check runs.
    """
    known = find_code(code, case)
    path = where if isinstance(where, Path) else where.path
    line = at if at is None or isinstance(at, int) else at.line
    key = getattr(at, "key", None)
    if isinstance(key, str):  # of a record
        facts = {"key": escape(key), "value": format_value(getattr(at, "value", None)), **facts}
    return Finding(code, known.severity, path, line, *known.fill(facts))


def has_error(findings: Iterable[Finding]) -> bool:
    """Return True if any finding is an error."""
    return any(finding.is_error for finding in findings)


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Sort by file and line; findings about a whole file come before those within it."""
    return sorted(findings, key=lambda finding: (finding.path.parts, finding.line or 0))


def limit_findings(findings: Sequence[Finding], *, goes_on: bool = False) -> list[Finding]:
    """Keep the first ten findings of each rule in one log, then one that counts the others.

    The counting finding is as severe as the worst of the others, and stands at the line of the
    first one of that severity. The others are not counted while a log goes on.
    """
    if len(findings) <= FINDINGS_PER_RULE_MAX:
        return sort_findings(findings)
    kept: list[Finding] = []
    others: dict[str, list[Finding]] = {}
    counts = Counter[str]()
    for finding in findings:
        counts[finding.rule] += 1
        if counts[finding.rule] <= FINDINGS_PER_RULE_MAX:
            kept.append(finding)
        elif not goes_on:
            others.setdefault(finding.rule, []).append(finding)
    for rule, rest in others.items():
        worst = min(rest, key=lambda finding: SEVERITIES.index(finding.severity))
        more = f"and {len(rest):,} more of {rule} in this log"
        kept.append(
            replace(worst, code=f"{rule}.{MORE}", message=more, expected="", got="", hint="")
        )
    return sort_findings(kept)


def escape(text: str) -> str:
    """Escape control characters, direction marks and lone surrogates."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def format_value(value: object) -> str:
    """Format a value of a log for a message: short, on one line, without control characters."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int) and abs(value) < 2**63:
        return f"{value:,}"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        text = f'"{value[: SHOWN_MAX + 1]}"'
    else:
        text = json.dumps(value, default=str)
    text = escape(text)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"


def encode_canonically(value: object) -> str:
    """Return JSON text that is the same for equal values of a log."""
    return json.dumps(value, sort_keys=True, default=str)
