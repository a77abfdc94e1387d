"""S9: the form of waivers; their effect is checked after everything else."""

from collections.abc import Iterator

from cepheid.compliance.checks.registry import Needs, rule
from cepheid.compliance.finding import Finding, breach, escape
from cepheid.compliance.read.package import Submitter


@rule("S9", Needs.SUBMITTER)
def check_waivers(who: Submitter) -> Iterator[Finding]:
    """Check that waivers are complete and name a path in the folder (S9)."""
    if who.waivers is None:
        return
    for problem in who.waivers.problems:
        yield breach(
            who.waivers, problem, "S9.form", problem=escape(problem.message)[:300], got=problem.got
        )
