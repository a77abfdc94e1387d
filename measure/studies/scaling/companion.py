"""The process beside each rank that trains alone.

It belongs to no process group: several parts of a network ask ``torch.distributed`` whether there
are other ranks.
"""

import multiprocessing
import signal
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine.own_process import KILLED
from cepheid.measure.studies.scaling.points import Job
from cepheid.measure.studies.scaling.steps import make_scaled_task, profile_turn, time_turn
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.reference.run.execution import Execution

SECONDS_TO_END = 10.0


class Companion:
    """A process with a task of one rank, which takes turns where it is asked to."""

    def __init__(self) -> None:
        """Fork it, before this rank has threads or uses a device."""
        context = multiprocessing.get_context("fork")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._ours))
        self._process.start()
        theirs.close()

    def make_task(self, job: Job, device: str, execution: "Execution | None" = None) -> "Execution":
        """Let it make its task on ``device``; return the execution settings in use.

        They are chosen there unless they are given. Raises UserError where the task cannot train.
        """
        chosen: Execution = self._ask(job, device, execution)
        return chosen

    def time_turn(self, kind: str, steps: int) -> float:
        """Return the mean seconds of a step of a turn."""
        return float(self._ask("time", kind, steps))

    def profile_turn(self, kind: str) -> Mapping[str, float]:
        """Return the mean milliseconds of each phase of a step."""
        phases: Mapping[str, float] = self._ask("profile", kind)
        return phases

    def close(self) -> None:
        """End the process, which waits for a question or for the end of the connection."""
        self._ours.close()
        self._process.join(SECONDS_TO_END)
        self._process.kill()

    def _ask(self, *question: Any) -> Any:
        try:
            self._ours.send(question)
            answer = self._ours.recv()
        except (EOFError, BrokenPipeError) as error:
            raise UserError(KILLED) from error
        if isinstance(answer, UserError):
            raise answer
        return answer


def _serve(questions: Connection, other_end: Connection) -> None:
    """Make the task and answer until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    other_end.close()  # this process must not keep it open
    with suppress(EOFError):
        job, device, execution = questions.recv()
        try:
            task = _make_task_alone(job, device, execution)
        except UserError as error:  # its subclasses cannot all be sent to another process
            questions.send(UserError(str(error)))
            return
        questions.send(task.execution)
        while True:
            what, *arguments = questions.recv()
            turn = time_turn if what == "time" else profile_turn
            questions.send(turn(task, *arguments))


def _make_task_alone(job: Job, device: str, execution: "Execution | None") -> Any:
    import torch

    from cepheid.reference.torch.ranks.distributed import TorchRanks

    place = torch.device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    return make_scaled_task(job, job.configure_alone(execution), TorchRanks(0, 1, place))
