"""`cepheid audit`: repeat one logged run and compare the quality curves."""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from compliance.read import package
from compliance.read.log import runlog
from compliance.read.log.runlog import RunLog
from compliance.read.logs import read_logs
from rules import definition
from rules.definition import Definition
from rules.errors import UserError
from tools.cli import EXIT_FINDINGS, EXIT_FINE, run_tool
from tools.console.arguments import add_data_option, make_command_parser

TOLERANCE = 0.1
SCATTERS = 2  # the tolerance in units of the scatter between the runs of the result
RUN = (sys.executable, "-m", "tools.run_benchmark")
EXAMPLES = """\
examples:
  cepheid audit submissions/acme/results/box/galaxy_shape-mini-closed --run 2
      repeat run 2 with its seed, hyperparameters, precision and code on this machine
  cepheid audit submissions/acme --tolerance 0.001
      on the machine of the log: no value may differ by more at any evaluation

A difference is a share of the value in the log or of its target, whichever is larger.

Without --tolerance any machine will do. Another processor rounds differently, training amplifies
small differences, and early in a run two machines differ as much as two seeds. Each quality metric
is therefore judged by the median of its differences over the second half of the logged run. It may
be at most 0.1, or twice the largest such median between two runs of the result, if that is more.
The number of evaluations may differ by at most one more than between two runs of the result. This
detects another model, other data or another quality measure; it cannot distinguish two seeds.

With --tolerance each value at each evaluation is judged, and the runs may differ by one evaluation.
On the machine of the log, with the same number of threads and the same libraries, expect 0.

The submission's own code runs if the log names it, else the reference of this checkout. It runs
with your permissions: read it first, or run it where it can do no harm.

exit codes: 0 the curves agree; 1 they differ; 2 wrong use, or the run could not be repeated
"""


@dataclass(frozen=True)
class Comparison:
    """One quality metric at one evaluation, in the log and in the repeated run."""

    samples: int
    metric: str
    logged: float
    repeated: float
    share: float  # the difference divided by the larger of logged value and target

    def __str__(self) -> str:
        values = f"{self.metric} {self.logged:.4f}, repeated {self.repeated:.4f}"
        return f"{self.samples:>11,} samples  {values}  ({self.share:.1%})"


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of `cepheid audit`."""
    parser = make_command_parser(
        "audit", "Repeat one logged run and compare its quality with that in the log.", EXAMPLES
    )
    add = parser.add_argument
    add(
        "path",
        type=Path,
        metavar="PATH",
        help="a run log, a result, or a submission with one result",
    )
    add(
        "--run",
        type=int,
        metavar="K",
        help="the number of the run (default: the first that converged)",
    )
    add(
        "--tolerance",
        type=float,
        metavar="SHARE",
        help="tolerance for each value (default: see below)",
    )
    add(
        "--output",
        type=Path,
        metavar="DIR",
        help="keep the repeated run here (default: delete it)",
    )
    add_data_option(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Repeat a run and compare. Exit code 1 where the curves differ."""
    arguments = make_parser().parse_args(argv)
    if arguments.tolerance is not None and not 0 <= arguments.tolerance < 1:
        raise UserError(f"--tolerance {arguments.tolerance}: expected a share, for example 0.1")
    logged, others = _choose_run(arguments.path, arguments.run)
    chosen = _load_definition(logged)
    with tempfile.TemporaryDirectory(prefix="cepheid-audit-") as temporary:
        output = arguments.output or Path(temporary)
        command = [*RUN, *list_arguments(logged, chosen), "--data", str(arguments.data)]
        print(f"repeating: {logged.path}", flush=True)
        code = subprocess.run([*command, "--output", str(output)], check=False).returncode
        made = sorted(output.glob(f"results/*/{_name_result(logged)}/result_0.txt"))
        if code not in (EXIT_FINE, EXIT_FINDINGS) or not made:
            raise UserError(f"{logged.path}: the run could not be repeated, see above")
        again = runlog.read(made[0])
    if arguments.tolerance is None:
        return _judge_curves(logged, again, others, chosen)
    return _judge_values(logged, again, chosen, arguments.tolerance)


def _choose_run(path: Path, index: int | None) -> tuple[RunLog, list[RunLog]]:
    """Return the log to audit and all logs of its result.

    Raises UserError where the path does not identify one result and run.
    """
    results = [result for who in package.read(path).submitters for result in who.results]
    results = [result for result in results if result.runs]
    if len(results) > 1:
        names = "".join(f"\n  {result.path}" for result in results[:20])
        raise UserError(f"{path}: contains several results; give one of{names}")
    runs = [run for result in results for run in read_logs(result).runs]
    candidates = [run for run in runs if run.index == index or (index is None and run.converged)]
    if not candidates:
        which = "that converged" if index is None else f"with number {index}"
        raise UserError(f"{path}: no run {which} among {len(runs)}")
    return candidates[0], runs


def _load_definition(logged: RunLog) -> Definition:
    """Return the definition of the log. Raises UserError where this checkout has another one."""
    name, scale = logged.text("submission_benchmark"), logged.text("submission_scale")
    chosen = definition.load(name or "", scale or "")
    if logged.text("definition_digest") != chosen.digest:
        raise UserError(
            f"{logged.path}: written for another version of {name}, scale {scale}; check out the "
            "revision with that version"
        )
    return chosen


def list_arguments(logged: RunLog, chosen: Definition) -> list[str]:
    """Return the arguments of `cepheid run` that repeat a logged run.

    Raises UserError where the log does not contain them.
    """
    seed, division = logged.value("seed"), logged.text("submission_division")
    if not isinstance(seed, int) or division is None:
        raise UserError(
            f"{logged.path}: no seed or division; `cepheid check` explains what is wrong"
        )
    arguments = [chosen.name, "--scale", chosen.scale, "--division", division, "--seed", str(seed)]
    arguments += ["--runs", "1"]
    how = logged.value("implementation")
    framework = str(how.get("framework", "torch")) if isinstance(how, dict) else "torch"
    arguments += ["--framework", "keras" if framework.startswith("keras") else "torch"]
    values = {name: logged.value(name) for name in chosen.hyperparameters if logged.first(name)}
    execution = how.get("execution") if isinstance(how, dict) else None
    if isinstance(execution, dict):
        values |= {key: execution.get(key) for key in ("precision", "compile", "threads")}
    for key, value in values.items():
        if isinstance(value, bool | int | float | str) and value != "auto":
            text = str(value).lower() if isinstance(value, bool) else str(value)
            arguments += ["--set", f"{key}={text}"]
    return [*arguments, *_list_own_code(logged, chosen)]


def _list_own_code(logged: RunLog, chosen: Definition) -> Iterator[str]:
    """Yield ``--task`` for a log that names its submitter's own code, which must lie beside it."""
    digest = logged.text("task_digest")
    if digest is None:
        return
    from reference.session.code_digest import digest_own_code

    parents = logged.path.resolve().parents
    code = parents[min(3, len(parents) - 1)] / "benchmarks" / chosen.name
    if not code.is_dir() or digest_own_code(code) != digest:
        raise UserError(f"{code}: not the code that wrote {logged.path} (rule S4)")
    yield from ("--task", str(code))


def _name_result(logged: RunLog) -> str:
    parts = ("submission_benchmark", "submission_scale", "submission_division")
    return "-".join(str(logged.text(part)) for part in parts)


def compare(logged: RunLog, again: RunLog, chosen: Definition) -> list[Comparison]:
    """Compare each quality metric at each evaluation that both runs have."""
    other = {point.samples: point.metrics for point in again.quality_curve}
    comparisons = []
    for point in logged.quality_curve:
        for target in chosen.quality:
            before = point.metrics.get(target.metric)
            now = other.get(point.samples, {}).get(target.metric)
            if before is not None and now is not None:
                scale = max(abs(before), abs(target.target)) or 1.0
                share = abs(now - before) / scale
                comparisons.append(Comparison(point.samples, target.metric, before, now, share))
    return comparisons


def _judge_values(logged: RunLog, again: RunLog, chosen: Definition, tolerance: float) -> int:
    """Judge every value, for the machine of the log; returns the exit code."""
    pairs = _print_comparisons(logged, again, chosen)
    before, now = len(logged.quality_curve), len(again.quality_curve)
    different = [pair for pair in pairs if pair.share > tolerance]
    if not pairs or different or abs(before - now) > 1:
        why = f"{len(different)} of {len(pairs)} values differ by more than {tolerance:.1%}"
        print(f"differs: {why if different or not pairs else 'one run took much longer'}")
        return EXIT_FINDINGS
    worst = max(pair.share for pair in pairs)
    print(f"agrees: all {len(pairs)} values within {worst:.1%}, the tolerance is {tolerance:.1%}")
    return EXIT_FINE


def _judge_curves(logged: RunLog, again: RunLog, runs: Sequence[RunLog], chosen: Definition) -> int:
    """Judge each curve as a whole, for any machine; returns the exit code.

    The tolerance follows from how much the runs of the result scatter.
    """
    _print_comparisons(logged, again, chosen)
    lengths = [len(run.quality_curve) for run in runs]
    allowed = 1 + max(lengths) - min(lengths)
    reasons = []
    if abs(len(logged.quality_curve) - len(again.quality_curve)) > allowed:
        reasons.append(f"the numbers of evaluations differ by more than {allowed}")
    for metric, share in measure_differences(logged, again, chosen).items():
        pairs = combinations(runs, 2)
        scatter = max(
            (measure_differences(*pair, chosen)[metric] or 0.0 for pair in pairs), default=0.0
        )
        tolerance = max(TOLERANCE, SCATTERS * scatter)
        difference = "no common evaluation" if share is None else f"differs by {share:.1%}"
        print(f"{metric}: {difference} in the second half (median), tolerance {tolerance:.0%}")
        if share is None or share > tolerance:
            reasons.append(f"{metric}: {difference}")
    print(f"differs: {'; '.join(reasons)}" if reasons else "agrees")
    return EXIT_FINDINGS if reasons else EXIT_FINE


def measure_differences(
    logged: RunLog, again: RunLog, chosen: Definition
) -> dict[str, float | None]:
    """Return for each quality metric the median difference over the second half of the logged run.

    It is None where the two runs have no evaluation in common there.
    """
    half = logged.quality_curve[-1].samples / 2 if logged.quality_curve else 0.0
    late = [pair for pair in compare(logged, again, chosen) if pair.samples >= half]
    shares = {
        target.metric: [pair.share for pair in late if pair.metric == target.metric]
        for target in chosen.quality
    }
    return {metric: statistics.median(found) if found else None for metric, found in shares.items()}


def _print_comparisons(logged: RunLog, again: RunLog, chosen: Definition) -> list[Comparison]:
    """Print and return every pair of values."""
    pairs = compare(logged, again, chosen)
    for pair in pairs:
        print(pair)
    before, now = len(logged.quality_curve), len(again.quality_curve)
    print(f"evaluations: {before} in the log, {now} in the repeated run")
    return pairs


if __name__ == "__main__":
    run_tool(main)
