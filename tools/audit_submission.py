"""`cepheid audit`: make one logged run again and compare the quality curves."""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from compliance.read import package, runlog
from compliance.read.logs import read_logs
from compliance.read.runlog import RunLog
from rules import definition
from rules.definition import Definition
from rules.errors import UserError
from tools.arguments import add_data_option, command_parser
from tools.cli import EXIT_FINDINGS, EXIT_FINE, run_tool

TOLERANCE = 0.1
SCATTERS = 2  # so many times the scatter between the runs of the result
RUN = (sys.executable, "-m", "tools.run_benchmark")
EXAMPLES = """\
examples:
  cepheid audit submissions/acme/results/box/galaxy_shape-mini-closed --run 2
      run 2 again, with its seed, hyperparameters, precision and code, on this machine
  cepheid audit submissions/acme --tolerance 0.001
      on the very machine of the log: at every evaluation nothing may differ by more

A difference is a share of the value in the log or of its target, whichever is larger.

Without --tolerance any machine will do. Another processor rounds otherwise, training makes small
differences grow, and early in a run two machines are as far apart as two seeds. So each quality
metric is judged by the median of its differences over the second half of the logged run: at most
0.1, or twice the largest such median between two runs of the result, if that is more. The number of
evaluations differs by at most one more than between two runs of the result. This finds another
model, other data or another measure of quality; it does not tell one seed from another.

With --tolerance each value at each evaluation is judged, and one evaluation more or less is
allowed. On the machine of the log, with as many threads and the same libraries, expect 0.

The code that runs is the submission's own where the log names it, else the reference's of this
checkout. It runs as you: read it first, or run it where it can do no harm.

exit codes: 0 the curves agree; 1 they do not; 2 wrong use, or the run could not be made again
"""


@dataclass(frozen=True)
class Compared:
    """One quality metric at one evaluation, in the log and again."""

    samples: int
    metric: str
    logged: float
    again: float
    share: float  # of the difference, in the larger of logged value and target

    def __str__(self) -> str:
        return (
            f"{self.samples:>11,} samples  {self.metric} {self.logged:.4f}, again {self.again:.4f}"
            f"  ({self.share:.1%})"
        )


def parser() -> argparse.ArgumentParser:
    """The command line of `cepheid audit`."""
    made = command_parser(
        "audit", "Make one logged run again and compare its quality with the log's.", EXAMPLES
    )
    add = made.add_argument
    add("path", type=Path, metavar="PATH", help="a run log, a result, or a submission with one")
    add("--run", type=int, metavar="K", help="which run (default: the first that converged)")
    add("--tolerance", type=float, metavar="SHARE", help="for each value; default: see below")
    add("--output", type=Path, metavar="DIR", help="keep what the run leaves (default: nowhere)")
    add_data_option(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run again and compare. Exit code 1 where the curves differ."""
    arguments = parser().parse_args(argv)
    if arguments.tolerance is not None and not 0 <= arguments.tolerance < 1:
        raise UserError(f"--tolerance {arguments.tolerance}: expected a share, for example 0.1")
    logged, others = _chosen(arguments.path, arguments.run)
    chosen = _definition(logged)
    with tempfile.TemporaryDirectory(prefix="cepheid-audit-") as temporary:
        output = arguments.output or Path(temporary)
        command = [*RUN, *settings(logged, chosen), "--data", str(arguments.data)]
        print(f"making again: {logged.path}", flush=True)
        code = subprocess.run([*command, "--output", str(output)], check=False).returncode
        made = sorted(output.glob(f"results/*/{_result_name(logged)}/result_0.txt"))
        if code not in (EXIT_FINE, EXIT_FINDINGS) or not made:
            raise UserError(f"{logged.path}: the run could not be made again, see above")
        again = runlog.read(made[0])
    if arguments.tolerance is None:
        return _verdict_anywhere(logged, again, others, chosen)
    return _verdict(logged, again, chosen, arguments.tolerance)


def _chosen(path: Path, index: int | None) -> tuple[RunLog, list[RunLog]]:
    """The log to audit, and all that were read of its result. Raises UserError where the path
    leaves open which one is meant."""
    results = [result for who in package.read(path).submitters for result in who.results]
    results = [result for result in results if result.runs]
    if len(results) > 1:
        names = "".join(f"\n  {result.path}" for result in results[:20])
        raise UserError(f"{path}: which result? give one of{names}")
    runs = [run for result in results for run in read_logs(result).runs]
    found = [run for run in runs if run.index == index or (index is None and run.converged)]
    if not found:
        which = "that converged" if index is None else f"with number {index}"
        raise UserError(f"{path}: no run {which} among {len(runs)}")
    return found[0], runs


def _definition(logged: RunLog) -> Definition:
    """That of the log, if it is the one of this checkout."""
    name, scale = logged.text("submission_benchmark"), logged.text("submission_scale")
    chosen = definition.load(name or "", scale or "")
    if logged.text("definition_digest") != chosen.digest:
        raise UserError(
            f"{logged.path}: written for another version of {name}, scale {scale}; check out the "
            "revision that has it"
        )
    return chosen


def settings(logged: RunLog, chosen: Definition) -> list[str]:
    """The arguments of `cepheid run` that make a logged run again. Raises UserError where the log
    lacks what that needs."""
    seed, division = logged.value("seed"), logged.text("submission_division")
    if not isinstance(seed, int) or division is None:
        raise UserError(f"{logged.path}: no seed or division; `cepheid check` says what is wrong")
    made = [chosen.name, "--scale", chosen.scale, "--division", division, "--seed", str(seed)]
    made += ["--runs", "1"]
    told = logged.value("implementation")
    framework = str(told.get("framework", "torch")) if isinstance(told, dict) else "torch"
    made += ["--framework", "keras" if framework.startswith("keras") else "torch"]
    values = {name: logged.value(name) for name in chosen.hyperparameters if logged.first(name)}
    execution = told.get("execution") if isinstance(told, dict) else None
    if isinstance(execution, dict):
        values |= {key: execution.get(key) for key in ("precision", "compile", "threads")}
    for key, value in values.items():
        if isinstance(value, bool | int | float | str) and value != "auto":
            text = str(value).lower() if isinstance(value, bool) else str(value)
            made += ["--set", f"{key}={text}"]
    return [*made, *_own_code(logged, chosen)]


def _own_code(logged: RunLog, chosen: Definition) -> Iterator[str]:
    """``--task`` for a log that names its submitter's own code, which must lie beside it."""
    digest = logged.text("task_digest")
    if digest is None:
        return
    from reference.run.code_digest import digest_own_code

    parents = logged.path.resolve().parents
    code = parents[min(3, len(parents) - 1)] / "benchmarks" / chosen.name
    if not code.is_dir() or digest_own_code(code) != digest:
        raise UserError(f"{code}: not the code that wrote {logged.path} (rule S4)")
    yield from ("--task", str(code))


def _result_name(logged: RunLog) -> str:
    parts = ("submission_benchmark", "submission_scale", "submission_division")
    return "-".join(str(logged.text(part)) for part in parts)


def compared(logged: RunLog, again: RunLog, chosen: Definition) -> list[Compared]:
    """Each quality metric at each evaluation that both runs have."""
    there = {point.samples: point.metrics for point in again.quality_curve}
    found = []
    for point in logged.quality_curve:
        for target in chosen.quality:
            before = point.metrics.get(target.metric)
            now = there.get(point.samples, {}).get(target.metric)
            if before is not None and now is not None:
                scale = max(abs(before), abs(target.target)) or 1.0
                share = abs(now - before) / scale
                found.append(Compared(point.samples, target.metric, before, now, share))
    return found


def _verdict(logged: RunLog, again: RunLog, chosen: Definition, tolerance: float) -> int:
    """On the machine of the log: every value."""
    pairs = _told(logged, again, chosen)
    before, now = len(logged.quality_curve), len(again.quality_curve)
    apart = [pair for pair in pairs if pair.share > tolerance]
    if not pairs or apart or abs(before - now) > 1:
        why = f"{len(apart)} of {len(pairs)} values are further apart than {tolerance:.1%}"
        print(f"differs: {why if apart or not pairs else 'one run took much longer'}")
        return EXIT_FINDINGS
    worst = max(pair.share for pair in pairs)
    print(f"agrees: all {len(pairs)} values within {worst:.1%}, the tolerance is {tolerance:.1%}")
    return EXIT_FINE


def _verdict_anywhere(
    logged: RunLog, again: RunLog, runs: Sequence[RunLog], chosen: Definition
) -> int:
    """On any machine: each curve as a whole, beside how much the runs of the result scatter."""
    _told(logged, again, chosen)
    lengths = [len(run.quality_curve) for run in runs]
    allowed = 1 + max(lengths) - min(lengths)
    reasons = []
    if abs(len(logged.quality_curve) - len(again.quality_curve)) > allowed:
        reasons.append(f"the numbers of evaluations differ by more than {allowed}")
    for metric, share in curve_shares(logged, again, chosen).items():
        pairs = combinations(runs, 2)
        scatter = max((curve_shares(*pair, chosen)[metric] or 0.0 for pair in pairs), default=0.0)
        tolerance = max(TOLERANCE, SCATTERS * scatter)
        shown = "no evaluation in common" if share is None else f"{share:.1%} apart"
        print(f"{metric}: {shown} in the second half (median); the tolerance is {tolerance:.0%}")
        if share is None or share > tolerance:
            reasons.append(f"{metric} is {shown}")
    print(f"differs: {'; '.join(reasons)}" if reasons else "agrees")
    return EXIT_FINDINGS if reasons else EXIT_FINE


def curve_shares(logged: RunLog, again: RunLog, chosen: Definition) -> dict[str, float | None]:
    """For each quality metric the median difference over the second half of the logged run; None
    where the two have no evaluation in common there."""
    half = logged.quality_curve[-1].samples / 2 if logged.quality_curve else 0.0
    late = [pair for pair in compared(logged, again, chosen) if pair.samples >= half]
    shares = {
        target.metric: [pair.share for pair in late if pair.metric == target.metric]
        for target in chosen.quality
    }
    return {metric: statistics.median(found) if found else None for metric, found in shares.items()}


def _told(logged: RunLog, again: RunLog, chosen: Definition) -> list[Compared]:
    """Every pair of values, printed."""
    pairs = compared(logged, again, chosen)
    for pair in pairs:
        print(pair)
    before, now = len(logged.quality_curve), len(again.quality_curve)
    print(f"evaluations: {before} in the log, {now} again")
    return pairs


if __name__ == "__main__":
    run_tool(main)
