"""`cepheid audit`: repeat one logged run and compare it with the log."""

import json
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cepheid.compliance.read.log import runlog
from cepheid.reference.machine.hardware import has_bfloat16
from cepheid.rules.errors import UserError
from cepheid.tools.audit.account import Account
from cepheid.tools.audit.choice import Choice, choose_run
from cepheid.tools.audit.comparison import (
    Verdict,
    compare,
    describe_other_arithmetic,
    describe_other_machine,
    judge_curves,
    judge_times,
    judge_values,
)
from cepheid.tools.audit.containment import SYSTEM
from cepheid.tools.audit.newness import judge_newness
from cepheid.tools.audit.remake import judge_images
from cepheid.tools.audit.rerun import (
    SECONDS_MIN,
    TIMES_DEFAULT,
    Rerun,
    Settings,
    find_origin,
    repeat,
)
from cepheid.tools.console.arguments import read_command
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, replace_file, run_tool

SEEDS = 2**32
SHOWN_MAX = 10
TIMES_FLAG = "--times"
TIMES = f"{TIMES_DEFAULT:g}"
RUN = (sys.executable, "-m", "cepheid.tools.run_benchmark")


COMMAND = read_command("audit", system=SYSTEM[0], times=TIMES, least=SECONDS_MIN)


def main(argv: Sequence[str] | None = None) -> int:
    """Repeat a run and compare. Exit code 1 where the two differ or the checker rejects the log."""
    arguments = COMMAND.parse(argv)
    if arguments.tolerance is not None and not 0 <= arguments.tolerance < 1:
        raise UserError(f"--tolerance {arguments.tolerance}: expected a share, for example 0.1")
    if not arguments.times > 0:
        raise UserError(f"{TIMES_FLAG} {arguments.times:g}: expected a number above 0")
    seed = secrets.randbelow(SEEDS) if arguments.seed is None else arguments.seed
    choice = choose_run(arguments.path, arguments.run, seed)
    if choice.errors:
        for finding in choice.errors[:SHOWN_MAX]:
            print(finding.text(explain=False))
        why = f"the checker rejects this result, {len(choice.errors)} errors in its logs"
        print(f"{choice.result.folder.path}: not repeated: {why}")
        return EXIT_FINDINGS
    if choice.seed is not None:
        drawn = f"drawn with --seed {choice.seed}, among {len(choice.converged)} that converged"
        print(f"run {choice.logged.index}: {drawn}")
    origin = find_origin(choice.logged, choice.definition, choice.root)
    with tempfile.TemporaryDirectory(prefix="cepheid-audit-") as temporary:
        output = arguments.output or Path(temporary)
        if arguments.against:
            rerun = Rerun(runlog.read(arguments.against))
        else:
            is_allowed = arguments.run_submitted_code
            is_contained = not arguments.without_containment
            overrides, shared = tuple(arguments.overrides), tuple(arguments.share)
            data, times = arguments.data, arguments.times
            how = Settings(data, output, overrides, RUN, shared, times, is_contained)
            rerun = repeat(choice, origin, how, is_allowed=is_allowed)
        is_elsewhere = arguments.against is not None
        verdicts = _judge(choice, rerun, arguments.tolerance, arguments.data, is_elsewhere)
    account = Account(choice, origin, rerun, is_elsewhere, verdicts)
    print(account.format())
    if arguments.json:
        replace_file(arguments.json, json.dumps(account.as_json(), indent=2) + "\n")
    return EXIT_FINE if account.agrees else EXIT_FINDINGS


def _judge(
    choice: Choice, rerun: Rerun, tolerance: float | None, data: Path, is_elsewhere: bool
) -> list[Verdict]:
    """Print every pair of values, then judge quality and times."""
    from cepheid.tools.describe_system import describe_machine

    logged, again, chosen = choice.logged, rerun.log, choice.definition
    for pair in compare(logged, again, chosen):
        print(pair)
    print()
    if tolerance is None:
        verdicts = list(judge_curves(logged, again, choice.converged, chosen))
    else:
        verdicts = list(judge_values(logged, again, chosen, tolerance))
    if is_elsewhere:
        otherwise = "the run was repeated elsewhere"
    else:
        here = describe_machine("local", data)
        otherwise = describe_other_machine(choice.result.system, here) or describe_other_arithmetic(
            logged, rerun.overrides, has_bfloat16=has_bfloat16()
        )
    verdicts += judge_newness(logged, again, rerun.span)
    verdicts += judge_images(logged, chosen, data)
    return [*verdicts, *judge_times(logged, again, otherwise)]


if __name__ == "__main__":
    run_tool(main)
