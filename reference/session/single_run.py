"""One run of a session: make the task, time it, close its log, and keep what it leaves."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from cepheid.reference.machine.energy import Meter, Sensors
from cepheid.reference.machine.node_energy import gather
from cepheid.reference.machine.placement import RankEndedError
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.log import RunLogWriter
from cepheid.reference.run.loops import run_task
from cepheid.reference.run.progress import OnProgress, Outcome, Progress, Stage
from cepheid.reference.session import watcher
from cepheid.reference.session.artifacts import (
    keep_pictures,
    keep_power_log,
    keep_report,
    keep_weights,
)
from cepheid.reference.session.pace import PaceWatch, explain_few_threads
from cepheid.reference.session.pictures import Pictures
from cepheid.reference.session.result_folder import ResultFolder
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.reference.session.session import Session


FINISHES = """
cepheid: this run is finished. Its data are read once more (rule T27), usually for some seconds;
then the command ends. Interrupt again to end it now: then this run does not count.
"""


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
        self.tell(f"run {self.index} of {self.config.result_name}, seed {self.config.seed}")
        with self.session.interruption.allow():
            config = self.adopt_execution()
            self.session.backend.free_earlier_tasks()
            task = self.create_task(config)
        return self.time(task, config)

    def adopt_execution(self) -> RunConfig:
        """Return the configuration with the execution settings of the earlier runs of the result.

        All runs of a result compute alike (rule T18). Without earlier runs the settings stay as
        requested, and the task tunes what is ``auto`` before the clock starts.
        """
        execution = self.folder.execution(self.config.execution) if self.folder else None
        return replace(self.config, execution=self.session.ranks.broadcast(execution))

    def create_task(self, config: RunConfig) -> Any:
        """Create the task of this rank, if every rank can create its own; else none goes on."""
        ranks, task, problem = self.session.ranks, None, None
        try:
            task = self.session.task_module.create(config, ranks)
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
        state: Mapping[str, Any] | None = None
        try:
            with (
                session.interruption.allow(),
                meter,
                session.observer.show_run(config.definition) as show,
            ):
                show = self.finish_after_run_stop(live.watch(show) if live else show)
                show = PaceWatch(self.tell, lambda: _count_threads(task)).watch(show)
                if config.execution.threads == "auto":
                    show = self.tell_of_few_threads(task, show)
                outcome = run_task(task, config, log, show)
            if config.definition.kind == "train":  # a run that generates changes no weights
                state = task.state()  # on every rank: they may share the optimizer's state
        finally:
            closed_log = log.close()
            if self.folder and closed_log == final_log:
                if state is not None:
                    keep_weights(state, config, self.folder, session.backend.WEIGHTS_SUFFIX)
            elif self.folder:
                self.tell(f"run {self.index} does not count; its log is kept: {closed_log}")
        if outcome.data_problem:
            self.refuse_data(outcome)
        ending = "all targets reached" if outcome.reached else outcome.reason
        unit = "samples" if config.definition.kind == "train" else "images"
        self.tell(f"run {self.index}: {ending} after {outcome.samples:,} {unit}; log: {closed_log}")
        measured = gather(meter, session.ranks)
        if self.folder and live and closed_log == final_log:
            is_fine = live.judge_result() and outcome.reached
            used = keep_power_log(measured, self.folder, self.index, session.observer)
            with session.interruption.allow():
                keep_report(task, config, self.folder, used, session.observer)
                if outcome.is_finite or not isinstance(task, Pictures):
                    keep_pictures(task, config, self.folder, session.observer)
                else:  # nothing that is not finite can be drawn
                    self.tell(f"run {self.index}: no pictures, because {outcome.reason}")
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


def _count_threads(task: Any) -> int:
    """Return the number of threads on which a task computes."""
    return int(task.implementation().get("threads_per_rank") or 1)


def _tell_that_it_finishes() -> None:
    watcher.finish_first()
    os.write(2, FINISHES.encode())
