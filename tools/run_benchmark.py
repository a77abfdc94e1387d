"""`cepheid run`: run a benchmark and leave its run logs in a folder."""

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from reference.run import frameworks
from reference.run.interruption import Interruption
from reference.run.placement import RankEndedError, end_rank, leave_quietly, placement
from rules import definition
from rules.definition import Definition
from rules.errors import UserError
from tools.arguments import add_data_option, add_set_option, command_parser
from tools.cli import EXIT_FINDINGS, EXIT_FINE, EXIT_WRONG_USE, run_tool

if TYPE_CHECKING:
    from rich.console import Console

    from reference.machine.energy import Sensors
    from reference.run.config import Execution, RunConfig
    from reference.run.progress import Outcome
    from reference.run.ranks import Ranks
    from reference.run.results import ResultFolder

EXAMPLES = """\
examples:
  cepheid run galaxy_shape --scale mini --runs 1 --output results/first
      one run: minutes on two cores, enough to see whether everything works
  cepheid run galaxy_shape --scale mini --output results/first
      the remaining runs of a result that can be scored; what is there is not run again
  cepheid run galaxy_shape --scale mini --set global_batch_size=64 --output results/batch64
      another batch size; what the closed division forbids is refused before the run
  cepheid run galaxy_shape --scale mini --dry-run --set opt_name=sgd --output results/first
      the plan: runs, seeds, time, disk, and what the closed division would refuse
  cepheid run galaxy_generation --scale mini --output results/generation
      time how fast galaxies are generated, from one at a time to thousands, and judge them
  torchrun --nproc-per-node 2 -m tools.run_benchmark galaxy_shape --scale mini --output results/two
      the same on two processes (a GPU each where there are GPUs)

exit codes: 0 every run reached its target; 1 one did not, or was interrupted; 2 wrong use
"""


GOING_ON, REACHED = "CEPHEID_GOING_ON", "reached"
"""Set for a process that goes on with the runs of an earlier one: whether all reached targets."""


def parser() -> argparse.ArgumentParser:
    """The command line of `cepheid run`."""
    made = command_parser(
        "run",
        "Run a benchmark and leave run logs that can be checked: train to its quality targets, or "
        "generate and judge what was generated.",
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
    add_set_option(
        made,
        "a hyperparameter of the definition, or precision=fp32|bf16, compile=on|off, "
        "threads=N (these three are measured, if not given, and the fastest is taken; with keras "
        "compile is XLA, and threads are not measured)",
    )
    add("--seed", type=int, help="seed of run 0; default: derived, so that it cannot be chosen")
    add_data_option(made)
    add("--system", type=Path, metavar="FILE", help="system description; default: read off")
    add("--submitter", default="local", help="who runs this (default: local)")
    add("--framework", default="torch", help="torch (default) or keras, in one process")
    add(
        "--task",
        type=Path,
        metavar="FILE",
        help="a task of your own in place of the reference's, see `cepheid new-submission`",
    )
    add("--output", type=Path, metavar="DIR", help="where systems/ and results/ are written")
    add("--dry-run", action="store_true", help="tell the plan and what is refused, run nothing")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for. Exit code 1 if a run missed its target."""
    with _told_once():
        arguments = parser().parse_args(argv)
        if arguments.list:
            print(_listing())
            return EXIT_FINE
        if not arguments.benchmark:
            raise UserError("which benchmark? `cepheid run --list` names them")
        chosen = definition.load(arguments.benchmark, arguments.scale)
        if arguments.output is None:
            raise UserError("--output is missing: in which folder shall the run logs be written?")

        from reference.machine import system
        from reference.run.config import configure

        # What closed refuses is then a part of the plan, and told as a whole.
        tries_out = arguments.dry_run and arguments.division == "closed"
        config = configure(
            chosen,
            division="open" if tries_out else arguments.division,
            overrides=arguments.overrides,
            framework=arguments.framework,
            data_root=arguments.data,
            seed=arguments.seed,
            own_code=arguments.task is not None or tries_out,
        )
        load = _task_loader(chosen, arguments.framework, arguments.task)
        framework = frameworks.find_framework(arguments.framework)
        if placement().world_size > 1 and not framework.takes_ranks:
            raise UserError(
                f"--framework {arguments.framework} runs in one process, but this is one of "
                f"{placement().world_size} ranks: start it without a launcher"
            )
        wanted = _wanted_runs(arguments.runs, chosen)
        description = system.read_description(arguments.system) if arguments.system else None
    code, left = _run(config, load, description, wanted, arguments)
    if os.environ.get(GOING_ON, REACHED) != REACHED:
        code = EXIT_FINDINGS
    if placement().world_size > 1:
        end_rank(code)
    if left:
        _begin_again(left, REACHED if code == EXIT_FINE else "missed")
    return code


def _begin_again(runs: int, so_far: str) -> NoReturn:
    """This process anew, by the same command line, for the next of so many runs: each run has a
    fresh one, and nothing that an earlier run left in memory makes it faster."""
    os.environ[GOING_ON] = so_far
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "--runs", str(runs)])


@contextmanager
def _told_once() -> Iterator[None]:
    """Wrong use that all ranks notice alike is told by the first one on each machine."""
    if placement().local_rank == 0:
        yield
        return
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    except UserError:
        leave_quietly(EXIT_WRONG_USE)
    except SystemExit as error:  # argparse's
        leave_quietly(int(error.code or EXIT_FINE))


def _run(
    config: "RunConfig",
    load: Callable[[], Any],
    description: Mapping[str, Any] | None,
    wanted: Callable[[int], int],
    arguments: argparse.Namespace,
) -> tuple[int, int]:
    """Make the runs that are missing, in one process only the first of them. Returns the exit code
    and, if some are left for other processes, how many there shall be in all."""
    # Imported only now: they bring the framework, and wrong use is answered without it.
    from rich.console import Console

    from reference.machine import energy, system
    from reference.run.config import digest_of_code, digest_of_own_code

    backend = importlib.import_module(frameworks.find_framework(arguments.framework).backend)
    module = load()
    own = arguments.task and frameworks.find_own_task(arguments.task).parent
    interruption = Interruption()
    with backend.start_ranks() as ranks:
        console = Console(quiet=not ranks.is_first, highlight=False, soft_wrap=True)
        if config.definition.kind == "train":
            ranks.split_batch(config.global_batch_size)  # refused before any data are prepared
        description = description or system.describe(arguments.submitter, ranks, arguments.data)
        # The first rank's word counts: seeds derive from it, and hosts may differ.
        config = config.on(
            *ranks.broadcast(
                (
                    description["submitter"],
                    description["system"],
                    digest_of_code(definition.ROOT, config.definition.name, own),
                    digest_of_own_code(own) if own else "",
                )
            )
        )
        if arguments.dry_run:
            return _planned(config, wanted, arguments, console), 0
        with _prepared(config, description, wanted, arguments, ranks, console, interruption) as (
            folder,
            runs,
        ):
            left = max(runs) + 1 if len(runs) > 1 and ranks.world_size == 1 else 0
            sensors = _sensors(ranks, console) if folder else energy.Sensors()
            reached = []
            for made, index in enumerate(runs[:1] if left else runs, 1):
                ended = _one_run(
                    backend,
                    module,
                    config.for_run(index),
                    ranks,
                    folder,
                    console,
                    interruption,
                    sensors,
                )
                reached.append(ended.reached)
                if folder and made < len(runs):
                    _tell_time_left(folder, len(runs) - made, console)
            # A rank that leaves with exit code 1 has torchrun end the others, reporting or not.
            ranks.barrier()
    return (EXIT_FINE if all(reached) else EXIT_FINDINGS), left


def _tell_time_left(folder: "ResultFolder", missing: int, console: "Console") -> None:
    from tools import plan

    left = plan.time_left(folder.path, folder.present(), missing)
    console.print(f"{missing} more to run: {left}", markup=False)


def _planned(
    config: "RunConfig",
    wanted: Callable[[int], int],
    arguments: argparse.Namespace,
    console: "Console",
) -> int:
    """``--dry-run``: exit code 1 where the closed division refuses something."""
    from tools import plan

    config = replace(config, division=arguments.division)
    present = plan.there(arguments.output, config)
    count = wanted(len(present))
    console.print(plan.told(config, arguments.output, count, present), markup=False)
    return EXIT_FINDINGS if any(plan.refused_in_closed(config)) else EXIT_FINE


@contextmanager
def _prepared(
    config: "RunConfig",
    description: Mapping[str, Any],
    wanted: Callable[[int], int],
    arguments: argparse.Namespace,
    ranks: "Ranks",
    console: "Console",
    interruption: Interruption,
) -> Iterator[tuple["ResultFolder | None", list[int]]]:
    """The result folder (first rank only) and the runs still to make; data are ready on return."""
    from reference.run import results
    from tools.progress import prepare_data

    if not ranks.is_first:
        runs = ranks.broadcast(None)
        if isinstance(runs, UserError):
            raise RankEndedError("the first rank could not begin", is_told=True)
        yield None, runs
        return
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(results.opened(arguments.output, config, description))
            stack.enter_context(interruption)  # the other ranks have nothing to lose
            for log in folder.left_over:
                console.print(_left_over(log), markup=False)
            with interruption.possible():
                prepare_data(config.definition, arguments.data, console)
            count = wanted(len(folder.present()))
        except UserError as error:
            ranks.broadcast(error)
            raise
        missing = folder.missing(count)
        if not missing:
            there = f"{folder.path}: {count} of {count} runs are there, nothing to run"
            console.print(there, markup=False)
        yield folder, ranks.broadcast(missing)


def _left_over(log: Path) -> str:
    if log.name.startswith("result_"):
        return f"{log}: an earlier run had just ended when its process was killed; it counts"
    return f"{log}: the log of an earlier run, which ended without a word (its machine stopped?)"


def _sensors(ranks: "Ranks", console: "Console") -> "Sensors":
    """What measures energy on this machine; that there is nothing is said once."""
    from reference.machine import energy

    nodes = -(-ranks.world_size // ranks.ranks_per_node)
    sensors = energy.find_sensors(nodes=nodes, has_gpu=ranks.accelerator is not None)
    if sensors.reason_for_none and GOING_ON not in os.environ:
        console.print(f"energy: {sensors.reason_for_none}", markup=False)
    return sensors


def _one_run(
    backend: Any,
    module: Any,
    config: "RunConfig",
    ranks: "Ranks",
    folder: "ResultFolder | None",
    console: "Console",
    interruption: Interruption,
    sensors: "Sensors",
) -> "Outcome":
    """One run, its log, which is kept whatever happens, the weights it ended with, its power log,
    report and pictures.

    An interruption may come while it runs, and waits while its log and weights are put away.
    """
    from reference.machine.energy import Meter
    from reference.run.log import RunLogWriter
    from reference.run.loops import run_task
    from tools import run_check, run_energy, run_pictures, run_report
    from tools.progress import display_of

    console.print(f"run {config.index} of {config.result_name}, seed {config.seed}")
    with interruption.possible():
        config = replace(config, execution=_settled(config, ranks, folder))
        backend.free_earlier_tasks()
        task = _created(module, config, ranks)
    log = RunLogWriter(folder.log(config.index) if folder else None)
    meter = Meter(sensors)
    live = run_check.LiveCheck(folder.log(config.index) if folder else None, console)
    try:
        with interruption.possible(), meter, display_of(config.definition, console) as display:
            outcome = run_task(task, config, log, live.beside(display))
    finally:
        where = log.close()
        if folder and where == folder.log(config.index):
            _keep_weights(task, config, folder, backend)
        elif folder:
            message = f"run {config.index} does not count; its log is kept: {where}"
            console.print(message, markup=False)
    how = "all targets reached" if outcome.reached else outcome.reason
    counted = "samples" if config.definition.kind == "train" else "images"
    message = f"run {config.index}: {how} after {outcome.samples:,} {counted}; log: {where}"
    console.print(message, markup=False)
    if folder:
        if where == folder.log(config.index):
            live.ended()
        used = run_energy.keep(meter, folder, config.index, console)
        with interruption.possible():
            run_report.make(task, config, folder.report(config.index), console, used)
            run_pictures.make(task, config, folder.pictures(config.index), console)
    return outcome


def _keep_weights(task: Any, config: "RunConfig", folder: "ResultFolder", backend: Any) -> None:
    """Those that a run ended with; one that generates changes none."""
    from reference.run import checkpoint

    if config.definition.kind != "train":
        return
    try:
        checkpoint.save(folder.weights(config.index, backend.WEIGHTS_SUFFIX), task.state())
    except UserError as error:
        log = folder.log(config.index)
        counts = f"run {config.index} counts ({log}), but its weights are lost"
        raise UserError(f"{counts}: {error}") from error


def _settled(config: "RunConfig", ranks: "Ranks", folder: "ResultFolder | None") -> "Execution":
    """How earlier runs of the result computed, on every rank; else as asked for."""
    told: Execution = ranks.broadcast(folder.execution(config.execution) if folder else None)
    return told


def _created(module: Any, config: "RunConfig", ranks: "Ranks") -> Any:
    """The task, if every rank can make its own; else none goes on, and each says what it lacks."""
    task, problem = None, None
    try:
        task = module.create(config, ranks)
    except UserError as error:
        problem = error
    if ranks.is_true_everywhere(problem is None):
        return task
    raise problem or RankEndedError("another rank could not begin", is_told=True)


def _task_loader(chosen: Definition, framework: str, own: Path | None) -> Callable[[], Any]:
    """Return what imports the task: the benchmark's for this framework, or a submitter's own."""
    frameworks.find_framework(framework)
    if own is not None:
        return partial(frameworks.import_own_task, frameworks.find_own_task(own))
    return partial(importlib.import_module, frameworks.find_task_module(chosen, framework))


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
