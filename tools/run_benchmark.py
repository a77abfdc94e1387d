"""`cepheid run`: run a benchmark and leave its run logs in a folder."""

import argparse
import importlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rules import definition
from rules.definition import Definition
from rules.errors import UserError, did_you_mean
from tools.arguments import add_data_option, command_parser
from tools.cli import EXIT_FINDINGS, EXIT_FINE, EXIT_WRONG_USE, run_tool

if TYPE_CHECKING:
    from rich.console import Console

    from reference.config import RunConfig
    from reference.distributed import Ranks
    from reference.results import ResultFolder
    from reference.train import Outcome

EXAMPLES = """\
examples:
  cepheid run galaxy_shape --scale mini --runs 1 --output results/first
      one run: minutes on two cores, enough to see whether everything works
  cepheid run galaxy_shape --scale mini --output results/first
      the remaining runs of a result that can be scored; what is there is not run again
  cepheid run galaxy_shape --scale mini --set global_batch_size=64 --output results/batch64
      another batch size; what the closed division forbids is refused before the run
  torchrun --nproc-per-node 2 -m tools.run_benchmark galaxy_shape --scale mini --output results/two
      the same on two processes (a GPU each where there are GPUs)

exit codes: 0 every run reached its target; 1 one did not, or was interrupted; 2 wrong use
"""


def parser() -> argparse.ArgumentParser:
    """The command line of `cepheid run`."""
    made = command_parser(
        "run",
        "Run a benchmark to its quality target and leave run logs that can be checked.",
        EXAMPLES,
    )
    add = made.add_argument
    add("benchmark", nargs="?", help="which benchmark (--list names them)")
    add("--list", action="store_true", help="list benchmarks, scales and targets, then stop")
    add("--scale", default="full", help="mini (minutes on two cores) or full (default)")
    add("--division", default="closed", help="closed (default) or open")
    add(
        "--runs", metavar="N", help="runs in all, or +N for N more; default: what the rules require"
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="a hyperparameter of the definition, or precision=fp32|bf16, compile=on|off",
    )
    add("--seed", type=int, help="seed of run 0; default: derived, so that it cannot be chosen")
    add_data_option(made)
    add("--system", type=Path, metavar="FILE", help="system description; default: read off")
    add("--submitter", default="local", help="who runs this (default: local)")
    add("--framework", default="torch", help="torch (default)")
    add("--output", type=Path, metavar="DIR", help="where systems/ and results/ are written")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for. Exit code 1 if a run missed its target."""
    arguments = parser().parse_args(argv)
    if arguments.list:
        print(_listing())
        return EXIT_FINE
    if not arguments.benchmark:
        raise UserError("which benchmark? `cepheid run --list` names them")
    chosen = definition.load(arguments.benchmark, arguments.scale)
    if arguments.output is None:
        raise UserError("--output is missing: in which folder shall the run logs be written?")
    return _run(chosen, arguments)


def _run(chosen: Definition, arguments: argparse.Namespace) -> int:
    from reference import system
    from reference.config import configure, digest_of_code

    config = configure(
        chosen,
        division=arguments.division,
        overrides=arguments.overrides,
        framework=arguments.framework,
        data_root=arguments.data,
        seed=arguments.seed,
    )
    description = system.read(arguments.system) if arguments.system else None
    wanted = _wanted_runs(arguments.runs, chosen)

    # Imported only now: they bring the framework, and wrong use is answered without it.
    from rich.console import Console

    from reference.distributed import started

    module = task_module(chosen, arguments.framework)
    with _interruptible(), started() as ranks:
        console = Console(quiet=not ranks.is_first, highlight=False, soft_wrap=True)
        description = description or system.describe(arguments.submitter, ranks)
        # The first rank's word counts: seeds derive from it, and hosts may differ.
        config = config.on(
            *ranks.told(
                (
                    description["submitter"],
                    description["system"],
                    digest_of_code(definition.ROOT, chosen.name),
                )
            )
        )
        ranks.share_of(config.global_batch_size)  # refused before any data are prepared
        with _prepared(config, description, wanted, arguments, ranks, console) as (folder, runs):
            reached = [
                _one_run(module, config.for_run(index), ranks, folder, console).reached
                for index in runs
            ]
    return EXIT_FINE if all(reached) else EXIT_FINDINGS


@contextmanager
def _prepared(
    config: "RunConfig",
    description: Mapping[str, Any],
    wanted: Callable[[int], int],
    arguments: argparse.Namespace,
    ranks: "Ranks",
    console: "Console",
) -> Iterator[tuple["ResultFolder | None", list[int]]]:
    """The result folder (first rank only) and the runs still to make; data are ready on return."""
    from reference import data, results
    from tools.progress import counted

    if not ranks.is_first:
        runs = ranks.told(None)
        if isinstance(runs, UserError):  # the first rank could not begin, and has said why
            raise SystemExit(EXIT_WRONG_USE)
        yield None, runs
        return
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(results.opened(arguments.output, config, description))
            with counted("preparing data", "samples", console) as on_progress:
                data.prepare(config.definition.data, arguments.data, on_progress)
            count = wanted(len(folder.present()))
        except UserError as error:
            ranks.told(error)
            raise
        missing = folder.missing(count)
        if not missing:
            console.print(f"{folder.path}: {count} of {count} runs are there, nothing to run")
        yield folder, ranks.told(missing)


def _one_run(
    module: Any,
    config: "RunConfig",
    ranks: "Ranks",
    folder: "ResultFolder | None",
    console: "Console",
) -> "Outcome":
    """One run, its log, which is kept whatever happens, the weights it ended with, its report."""
    from reference import checkpoint
    from reference.compilation import forget_earlier_tasks
    from reference.log import RunLogWriter
    from reference.train import run
    from tools import run_report
    from tools.progress import RunDisplay

    console.print(f"run {config.index} of {config.result_name}, seed {config.seed}")
    forget_earlier_tasks()
    task = _created(module, config, ranks)
    log = RunLogWriter(folder.log(config.index) if folder else None)
    ended = False
    try:
        with RunDisplay(config.definition, console) as display:
            outcome = run(config.definition, task, config, log, display)
        ended = True
    finally:
        where = log.close(counts=ended)
        if not ended:
            console.print(f"run {config.index} does not count; its log is kept: {where}")
    if folder:
        try:
            checkpoint.save(folder.weights(config.index), task.state())
        except (OSError, RuntimeError) as error:  # the run counts all the same
            console.print(f"run {config.index}: its weights could not be kept: {error}")
    how = "all targets reached" if outcome.reached else outcome.reason
    console.print(f"run {config.index}: {how} after {outcome.samples:,} samples; log: {where}")
    if folder:
        run_report.make(task, config, folder.report(config.index), console)
    return outcome


def _created(module: Any, config: "RunConfig", ranks: "Ranks") -> Any:
    """The task, if every rank can make its own; else none goes on, and each says what it lacks."""
    task, problem = None, None
    try:
        task = module.create(config, ranks)
    except UserError as error:
        problem = error
    if ranks.all_well(problem is None):
        return task
    raise problem or SystemExit(EXIT_WRONG_USE)


def task_module(chosen: Definition, framework: str) -> Any:
    """The module with the benchmark's task for a framework."""
    modules = {"torch": "task"}
    if framework not in modules:
        known = ", ".join(modules)
        raise UserError(
            f'no framework "{framework}"{did_you_mean(framework, modules)} (all: {known})'
        )
    return importlib.import_module(f"benchmarks.{chosen.name}.{modules[framework]}")


def _wanted_runs(asked: str | None, chosen: Definition) -> Callable[[int], int]:
    """The number of runs there shall be, as a function of how many there are (``--runs``)."""
    required = chosen.runs.required
    if asked is None:
        return lambda present: required
    number = asked.removeprefix("+")
    if not number.isdecimal() or not 1 <= int(number) <= required:
        raise UserError(
            f"--runs {asked}: expected 1 to {required}, the number that a score needs, "
            "or +1 for one more"
        )
    if asked.startswith("+"):
        return lambda present: min(present + int(number), max(required, present))
    return lambda present: int(number)


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM, as sent by schedulers, ends a run the way Ctrl-C does: its log is closed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"stopped by {signal.Signals(number).name}")

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listing() -> str:
    lines = []
    for name in definition.names():
        for scale in definition.scales(name):
            chosen = definition.load(name, scale)
            targets = " and ".join(map(str, chosen.quality))
            provisional = " (provisional targets)" if chosen.provisional else ""
            lines.append(f"{name:<20} {scale:<5} {targets}{provisional}")
            lines.append(f"{'':<26} definition_digest {chosen.digest}")
    return "\n".join(lines)


if __name__ == "__main__":
    run_tool(main)
