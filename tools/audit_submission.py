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
from cepheid.tools.audit.containment import SHARE_FLAG, SYSTEM, UNCONTAINED_FLAG
from cepheid.tools.audit.newness import judge_newness
from cepheid.tools.audit.remake import judge_images
from cepheid.tools.audit.rerun import (
    FLAG,
    SECONDS_MIN,
    TIMES_DEFAULT,
    Rerun,
    Settings,
    find_origin,
    repeat,
)
from cepheid.tools.console.arguments import Command, declare, offer_data, offer_set
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, replace_file, run_tool

SEEDS = 2**32
SHOWN_MAX = 10
TIMES_FLAG = "--times"
TIMES = f"{TIMES_DEFAULT:g}"
RUN = (sys.executable, "-m", "cepheid.tools.run_benchmark")
EXAMPLES = f"""\
examples:
  cepheid audit submissions/acme
      draw one of the converged runs, repeat it with its seed, hyperparameters, precision and code
      on this machine, and say in one table what that proves and what not
  cepheid audit submissions/acme/results/box/galaxy_shape-mini-closed --seed 7 --json audit.json
      draw with this seed, as an earlier audit did; write everything as JSON, too
  cepheid audit submissions/acme {FLAG} --data /tmp/data
      also run code of the submitter: read it first
  cepheid audit submissions/acme --tolerance 0.001
      on the machine of the log: no value may differ by more at any evaluation
  cepheid audit submissions/acme/…/result_2.txt --against repeated/…/result_2.txt
      compare with a run that you repeated by hand, as the submission's README says

A log that the checker rejects is not repeated.

A difference is a share of the value in the log or of its target, whichever is larger. Without
--tolerance any machine will do. Another processor rounds differently, training amplifies small
differences, and early in a run two machines differ as much as two seeds. Each quality metric is
therefore judged by the median of its differences over the second half of the logged run. It may be
at most 0.1, or twice the largest such median between two converged runs of the result. A metric
that would need more than 0.5 is not judged. The number of evaluations may differ by at most one
more than between two converged runs. This detects another model, other data or another quality
measure; it cannot distinguish two seeds. With --tolerance each value at each evaluation is judged,
and the runs may differ by one evaluation. On the machine of the log, with the same threads and
libraries, expect 0.

Of a closed run that generates, the reference also makes 20 of the judged images again from the seed
and the definition's weights, and compares them with the projections in the log (rule T24).

Times are judged if this machine has the processor and accelerators of the log's description, and
computes as the log says: without --set, and not in bfloat16 if its processor would only emulate
that, which may take 50 times as long. The repeated run may take at most 1.5 times as long
per sample. Keep the machine free of other work.

Code of the submitter runs only with {FLAG}: a task for `cepheid run --task`, or
`run.sh DATA OUTPUT` of a program of their own, which finds the other logs of the result in OUTPUT
and makes the missing run. Bubblewrap (bwrap) contains it: it has no network, and sees no process,
socket, device, home or variable of this machine, only {SYSTEM[0]}, this Python, its own code and
the data, read-only. It writes to its output folder alone, and is ended after {TIMES} times the
logged time, but not before {SECONDS_MIN:.0f} s. {SHARE_FLAG} shows it more, such as a GPU. Its log
must be new: a regular file, made in this audit, with all times inside it and durations that are not
those of the old log.

exit codes: 0 everything that was judged agrees; 1 something differs, or the checker rejects the
logs; 2 wrong use, or the run could not be repeated
"""


COMMAND = Command(
    "audit",
    "Repeat one logged run and compare quality and times with its log.",
    EXAMPLES,
    (
        declare("path", "a run log, a result, or a submission with one result", Path, "PATH"),
        declare("--run", "the number of the run (default: drawn)", int, "K"),
        declare("--seed", "the seed of the draw (default: random, printed)", int, "S"),
        declare("--tolerance", "tolerance for each value (default: see below)", float, "SHARE"),
        offer_set(
            "repeat with another precision=, compile= or threads= than the log's, for a machine "
            "that is slow with those; not possible with a program of the submitter's own"
        ),
        declare(FLAG, "run the submitter's own code if it wrote the log", bool),
        declare(
            SHARE_FLAG,
            "show submitted code this file, folder or device, too (may be repeated)",
            Path,
            "PATH",
            action="append",
            default=[],
        ),
        declare(
            TIMES_FLAG,
            f"end submitted code after so many times the logged time ({TIMES})",
            float,
            "N",
            default=TIMES_DEFAULT,
        ),
        declare(UNCONTAINED_FLAG, "run submitted code with all that you may do yourself", bool),
        declare("--against", "do not repeat the run; compare with this log", Path, "LOG"),
        declare("--json", "write the table and the curves there as JSON", Path, "FILE"),
        declare("--output", "keep the repeated run here (default: delete it)", Path, "DIR"),
        offer_data(),
    ),
)


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
        print(_describe_rejection(choice))
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
            how = Settings(
                arguments.data,
                output,
                tuple(arguments.overrides),
                RUN,
                tuple(arguments.share),
                arguments.times,
                is_contained=not arguments.without_containment,
            )
            rerun = repeat(choice, origin, how, is_allowed=is_allowed)
        is_elsewhere = arguments.against is not None
        verdicts = _judge(choice, rerun, arguments.tolerance, arguments.data, is_elsewhere)
    account = Account(choice, origin, rerun, is_elsewhere, verdicts)
    print(account.format())
    if arguments.json:
        replace_file(arguments.json, json.dumps(account.as_json(), indent=2) + "\n")
    return EXIT_FINE if account.agrees else EXIT_FINDINGS


def _describe_rejection(choice: Choice) -> str:
    """Describe why a result is not audited: the checker's errors."""
    lines = [finding.text(explain=False) for finding in choice.errors[:SHOWN_MAX]]
    why = f"not repeated: the checker rejects this result, {len(choice.errors)} errors in its logs"
    return "\n".join([*lines, f"{choice.result.folder.path}: {why}"])


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
