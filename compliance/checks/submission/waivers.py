"""S9: the form of waivers. Whether they have an effect shows when all else is found."""

from collections.abc import Iterator

from compliance.checks.registry import Needs, make_finding, rule
from compliance.finding import Finding, escape
from compliance.read.package import Submitter


@rule("S9", Needs.SUBMITTER)
def check_waivers(who: Submitter) -> Iterator[Finding]:
    """Waivers are complete and name a path in the folder; their effect is judged at the end."""
    if who.waivers is None:
        return
    for problem in who.waivers.problems:
        yield make_finding(
            who.waivers.path,
            problem.line,
            "S9.form",
            escape(problem.message)[:300],
            expected="rule, path, reason, who and until for each waiver, as S9 shows",
            got=problem.got,
            hint="correct the entry after rules/schemas/waivers.schema.json",
        )
