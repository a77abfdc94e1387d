"""A session of `cepheid run`: prepare everything, make the runs that are missing, say what is left.

Whoever starts a session hands in an observer, which shows progress and judges the growing log.
"""

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from cepheid.reference.machine import energy, system
from cepheid.reference.machine.energy import Meter, Sensors
from cepheid.reference.machine.ranks import RankEndedError, Ranks
from cepheid.reference.run.autotune import explain_few_threads
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.log import RunLogWriter
from cepheid.reference.run.progress import OnProgress, Outcome, Progress, Stage
from cepheid.reference.run.task import run_task
from cepheid.reference.session import watcher
from cepheid.reference.session.artifacts import FinalWeights, PowerLog, keep_pictures, keep_report
from cepheid.reference.session.code_digest import (
    digest_code,
    digest_file,
    digest_own_code,
    list_all_code,
)
from cepheid.reference.session.frameworks import find_create, import_backend, import_own_task
from cepheid.reference.session.interruption import Interruption
from cepheid.reference.session.observer import SessionObserver, adopt_counts, prepare_data
from cepheid.reference.session.request import Request
from cepheid.reference.session.result_folder import ResultFolder, open_result_folder
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT, end_on_interruption

EXIT_CODE_OF_INTERRUPTION = 1
FINISHES = """
cepheid: this run is finished. Its data are read once more (rule T27), usually for some seconds;
then the command ends. Interrupt again to end it now: then this run does not count.
"""


@dataclass(frozen=True)
class Session:
    """One process among the ranks that make the runs of one result."""

    request: Request
    config: RunConfig  # of run 0, on the system that runs it
    system: Mapping[str, Any]  # its description
    backend: Any  # the module that starts runs on the framework
    task_module: Any
    ranks: Ranks
    observer: SessionObserver
    interruption: Interruption = field(default_factory=Interruption)

    def make_runs(self) -> "SessionEnd":
        """Make the runs that are missing: all on several ranks, one in a single process.

        A single process makes only one run, because what a run leaves in memory could make the
        next one faster. ``SessionEnd.runs_left`` asks for another process.
        """
        with self.prepare() as (folder, missing):
            for note in () if self.request.is_continued else self.request.notes:
                self.observer.tell(f"note: {note}")
            sensors = self.find_sensors()
            indices = missing if self.ranks.world_size > 1 else missing[:1]
            all_fine = self.judge_present(folder)
            for index in indices:
                run = SingleRun(self, self.config.select_run(index), folder, sensors)
                all_fine = run.make() and all_fine
                if folder and (left := sum(other > index for other in missing)):
                    self.observer.tell(f"{left} more to run: {folder.estimate_time(left)}")
            # A rank that leaves with exit code 1 has torchrun end the others, reporting or not.
            self.ranks.barrier()
        return SessionEnd(all_fine, max(missing) + 1 if len(indices) < len(missing) else 0)

    @contextmanager
    def prepare(self) -> Iterator[tuple[ResultFolder | None, list[int]]]:
        """Open the result folder and prepare the data, both on the first rank.

        Yields the folder, which the other ranks do not have, and the indices of the runs that are
        missing, in rising order. Raises UserError where the folder or the data cannot be used.
        """
        if not self.ranks.is_first:
            missing = self.ranks.broadcast(None)
            if isinstance(missing, UserError):
                raise RankEndedError("the first rank could not begin", is_reported=True)
            yield None, missing
            return
        with ExitStack() as stack:
            try:
                self.refuse_settings()
                folder = stack.enter_context(
                    open_result_folder(
                        self.request.output, self.config, self.system, self.list_code()
                    )
                )
                stack.enter_context(self.interruption)  # the other ranks have nothing to lose
                for log in folder.left_over:
                    self.observer.tell(_describe_left_over(log, folder.weights_path))
                with self.interruption.allow():
                    prepare_data(self.config.definition, self.config.data_root, self.observer)
            except UserError as error:
                self.ranks.broadcast(error)
                raise
            count = self.request.wanted.count(len(folder.present()))
            missing = folder.missing(count)
            if not missing:
                done = f"{count} of {count} runs are there, nothing to run"
                self.observer.tell(f"{folder.path}: {done}")
            yield folder, self.ranks.broadcast(missing)

    def refuse_settings(self) -> None:
        """Raise UserError for what the task refuses, such as an uneven ``micro_batch``.

        Preparing data can take long. A submitter's own task may read them as soon as it is made.
        """
        if problem := self.find_other_machine():
            raise UserError(problem)
        if self.request.own_task is None:
            find_create(self.task_module)(self.config, self.ranks)

    def find_other_machine(self) -> str:
        """Return why runs here cannot count under the description that was given; "" if they can.

        A plan for other ranks is for another machine.
        """
        given = self.request.system
        if given is None or self.request.planned_ranks:
            return ""
        count, has_one = given.get("accelerators_per_node"), self.ranks.accelerator is not None
        if bool(count) == has_one:
            return ""
        described = f"{count} x {given.get('accelerator')}" if count else "no accelerator"
        return (
            f"--system describes {described} in a node, but this run computes on {self.device}: it "
            "could not count (rule T14); fix: run on that machine, or leave --system out"
        )

    def list_code(self) -> Mapping[str, str]:
        """List short digests of the files that run."""
        own = self.request.own_task
        return list_all_code(
            ROOT, self.config.definition.name, own and own.parent, self.ranks.device_code
        )

    def judge_present(self, folder: ResultFolder | None) -> bool:
        """Judge the runs of earlier commands; return False if the checker rejects one of them.

        The runs of this command are judged when each of them ends.
        """
        if folder is None or self.request.is_continued or not folder.present():
            return True
        return self.observer.judge_finished(folder.path)

    @property
    def device(self) -> str:
        """What this rank computes on; in a plan for another machine, what that one has."""
        planned = self.system["accelerator"] if self.request.planned_ranks else None
        return planned or self.ranks.accelerator or "cpu"

    def find_sensors(self) -> energy.Sensors:
        """Find what measures energy on this machine (`cepheid doctor` says why there is nothing).

        All ranks call it: the first one of each node reads the sensors of all devices there.
        """
        ranks = self.ranks
        keys = ranks.all_gather_object(ranks.device_keys)
        if ranks.rank % ranks.ranks_per_node:
            return energy.Sensors()
        used = keys[ranks.rank : ranks.rank + ranks.ranks_per_node]
        return energy.find_sensors(has_gpu=ranks.accelerator is not None, used=used)


@dataclass(frozen=True)
class SessionEnd:
    """How a session ended; ``runs_left`` is the number of runs in all if some are left, else 0.

    ``all_fine`` is False if a run missed its targets, or if the checker rejects its log or that of
    an earlier command.
    """

    all_fine: bool
    runs_left: int


@contextmanager
def start_session(request: Request, observer: SessionObserver) -> Iterator[Session]:
    """Import the task, start the ranks, and name the system and the code that run.

    Raises UserError where the batch cannot be split, or the machine cannot be described.
    """
    config, own = request.config, request.own_task
    with end_on_interruption(EXIT_CODE_OF_INTERRUPTION):
        backend = import_backend(config.framework)
        module = import_own_task(own) if own else importlib.import_module(request.task_module)
    planned, per_node = request.planned_ranks, request.planned_ranks_per_node
    with backend.plan_ranks(planned, per_node) if planned else backend.start_ranks() as ranks:
        if config.definition.kind == "train":
            ranks.split_batch(config.global_batch_size)  # refused before any data are prepared
        described = request.system or system.describe(request.submitter, ranks, config.data_root)
        device = ranks.device_code
        identity = (
            described["submitter"],
            described["system"],
            digest_code(ROOT, config.definition.name, own and own.parent, device),
            digest_own_code(own.parent) if own else "",
            f"{device.name} {digest_file(device)}" if device else "",
        )
        # Hosts may differ, and seeds derive from these: the values of the first rank count.
        config = config.name_system(*ranks.broadcast(identity))
        yield Session(request, config, described, backend, module, ranks, observer)


def _describe_left_over(log: Path, weights: Path) -> str:
    if log.name.startswith("result_"):
        lost = watcher.tell_lost(weights, log)
        return f"{log}: this run had just ended when its process was killed{lost}"
    return f"{log}: the log of an earlier run that ended without a last record; it does not count"


@dataclass(frozen=True)
class SingleRun:
    """A run with its number and seed; ``folder`` is None on all ranks but the first."""

    session: "Session"
    config: RunConfig
    folder: ResultFolder | None
    sensors: Sensors

    def make(self) -> bool:
        """Make the run, and return True if it reached its targets and the checker has no error.

        Its log is kept whatever happens.

        An interruption may come while the task is made and timed. It waits while the log gets its
        name and the weights are written, and the first one also while the data are digested.
        """
        which = f"run {self.index} of {self.config.result_name}, seed {self.config.seed}"
        self.tell(f"{which}, on {self.session.device}")
        with self.session.interruption.allow():
            config = self.adopt_execution()
            self.session.backend.free_earlier_tasks()
            task = self.create_task(config)
        return self.time(task, config)

    def adopt_execution(self) -> RunConfig:
        """Return the configuration with the execution settings of earlier runs, and all counts.

        All runs of a result compute alike (rule T18). Without earlier runs the settings stay as
        requested, and the task tunes what is ``auto`` before the clock starts.
        """
        execution = self.folder.execution(self.config.execution) if self.folder else None
        return replace(adopt_counts(self.config), execution=self.session.ranks.broadcast(execution))

    def create_task(self, config: RunConfig) -> Any:
        """Create the task of this rank, if every rank can create its own; else none goes on."""
        ranks, task, problem = self.session.ranks, None, None
        try:
            task = find_create(self.session.task_module)(config, ranks)
        except UserError as error:
            problem = error
        if ranks.is_true_everywhere(problem is None):
            return task
        raise problem or RankEndedError("another rank could not begin", is_reported=True)

    def time(self, task: Any, config: RunConfig) -> bool:
        """Run the timed loop, close the log, and keep what belongs to a run that counts.

        Return what ``make`` returns.
        """
        session = self.session
        final_log = self.folder.log(self.index) if self.folder else None
        log, meter = RunLogWriter(final_log), Meter(self.sensors)
        live = session.observer.check_live(final_log) if final_log else None
        weights = FinalWeights(task, config, self.folder, session.backend.WEIGHTS_SUFFIX)
        power = PowerLog(meter, session.ranks, self.folder, self.index)
        try:
            with (
                session.interruption.allow(),
                meter,
                session.observer.show_run(config.definition) as show,
            ):
                show = weights.keep_before_digest(live.watch(show) if live else show)
                show = power.keep_before_digest(show, session.observer)
                show = self.finish_after_run_stop(show)
                if config.execution.threads == "auto":
                    show = self.tell_of_few_threads(task, show)
                outcome = run_task(task, config, log, show)
        finally:
            closed_log = log.close()
            if self.folder and closed_log == final_log:
                weights.raise_if_lost()
            elif self.folder:
                weights.discard()
                power.discard()
                self.tell(f"run {self.index} does not count; its log is kept: {closed_log}")
        if outcome.data_problem:
            self.refuse_data(outcome)
        ending = "all targets reached" if outcome.reached else outcome.reason
        unit = "samples" if config.definition.kind == "train" else "images"
        self.tell(f"run {self.index}: {ending} after {outcome.samples:,} {unit}; log: {closed_log}")
        if self.folder and live and closed_log == final_log:
            is_fine = live.judge_result() and outcome.reached
            if config.definition.data.get("is_subset"):  # which never counts, and need not learn
                is_fine = outcome.is_finite
            with session.interruption.allow():
                finite = task if outcome.is_finite else None  # nothing else can be shown
                keep_report(finite, config, self.folder, power.used, session.observer)
                keep_pictures(finite, config, self.folder, session.observer)
            if finite is None:
                self.tell(f"run {self.index}: no report, no pictures, because {outcome.reason}")
            return is_fine
        return outcome.reached

    def finish_after_run_stop(self, show: OnProgress) -> OnProgress:
        """Return a callback that calls ``show``; from run_stop on, one interruption waits.

        Several ranks are ended by their launcher, which does not wait.
        """

        def on_progress(progress: Progress) -> None:
            if progress.stage.follows_run_stop and self.session.ranks.world_size == 1:
                self.session.interruption.finish_first(_tell_that_it_finishes)
            show(progress)

        return on_progress

    def tell_of_few_threads(self, task: Any, show: OnProgress) -> OnProgress:
        """Return a callback that calls ``show``; it says once if other work took threads away."""
        has_begun = False

        def on_progress(progress: Progress) -> None:
            nonlocal has_begun
            if not has_begun and progress.stage is not Stage.INITIALISING:
                has_begun = True
                facts = task.implementation()
                if message := explain_few_threads(facts.get("execution", {})):
                    self.tell(message)
            show(progress)

        return on_progress

    def refuse_data(self, outcome: Outcome) -> NoReturn:
        """End the session, because the runs to come would read the same data.

        Raises UserError on the first rank, and RankEndedError on the others.
        """
        if not self.session.ranks.is_first:
            raise RankEndedError("the data are not those that were prepared", is_reported=True)
        named = "the run did not read the data that its log names, so it does not count (rule T27)"
        raise UserError(f"run {self.index}: {named}: {outcome.data_problem}")

    def tell(self, message: str) -> None:
        """Show one message."""
        self.session.observer.tell(message)

    @property
    def index(self) -> int:
        """The number of the run within its result, from 0."""
        return self.config.index


def _tell_that_it_finishes() -> None:
    watcher.finish_first()
    os.write(2, FINISHES.encode())
