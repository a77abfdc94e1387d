"""S9: the form of waivers; their effect is checked after everything else."""

from collections.abc import Iterator

from cepheid.compliance.checks.registry import Needs, make_finding, rule
from cepheid.compliance.finding import Finding, escape
from cepheid.compliance.read.package import Submitter


@rule("S9", Needs.SUBMITTER)
def check_waivers(who: Submitter) -> Iterator[Finding]:
    """Check that waivers are complete and name a path in the folder (S9)."""
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
            hint="correct the entry as rules/schemas/waivers.schema.json says",
        )
