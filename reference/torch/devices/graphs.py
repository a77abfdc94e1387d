"""Passes as graphs: a device repeats the operations of one, and the host issues a single launch.

A graph reads and writes the same memory each time, and nothing of Python runs in it. So a workload
says that its pass ``is_static``; ``cepheid rehearse --set compile=graphs`` shows whether it is.
"""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn

from cepheid.reference.run.execution import GRAPHS, Execution
from cepheid.reference.torch.device import Device
from cepheid.reference.torch.pieces import Piece
from cepheid.reference.torch.preconditioner import Preconditioner
from cepheid.rules.errors import UserError

Run = Callable[[Piece], Tensor]


def find_obstacle(trainer: Any, settings: Execution) -> str:
    """Return why a graph cannot repeat the passes of a trainer with these settings, or ""."""
    obstacles = {
        f"{trainer.device.name} captures no graphs with torch {torch.__version__}": (
            not trainer.device.captures
        ),
        "a graph has no exchange between ranks, and there are several": (
            trainer.ranks.world_size > 1
        ),
        "the passes of this task differ in shapes, operations or values of Python": (
            not trainer.workload.is_static
        ),
        "a preconditioner decides in each pass what it computes": (
            type(trainer.preconditioner) is not Preconditioner
        ),
        "the loss of fp16 is scaled": settings.precision == "fp16",
        "a graph takes the whole share of a rank, and micro_batch is smaller": (
            trainer.piece_rule.find_size(settings) < trainer.seat.batch
        ),
    }
    return next((why for why, is_there in obstacles.items() if is_there), "")


class CapturedPass:
    """Forward and backward passes, each repeated as a graph once it was captured.

    ``run`` takes a piece, returns its detached loss, a scalar, and leaves gradients. A graph is
    captured of noise, before the clock starts: it runs the pass once for nothing. A piece of other
    shapes than any captured one is run as it is.
    """

    def __init__(self, device: Device, network: nn.Module, run: Run) -> None:
        self._device, self._network, self._run = device, network, run
        self._graphs: dict[Hashable, _Graph] = {}
        self.enabled, self._kind = False, ""

    def use_execution(self, settings: Execution) -> None:
        """Repeat graphs from now on, or none; those of another precision compute otherwise."""
        self.enabled, self._kind = settings.compile == GRAPHS, settings.precision

    @property
    def note(self) -> str:
        """What to tell of the training step in the log, "" where it is no graph."""
        return "captured" if self.enabled else ""

    def capture(self, piece: Piece) -> None:
        """Capture the passes of pieces like this one, if that was not done before."""
        key = self._describe(piece)
        if key not in self._graphs:
            self._graphs[key] = _Graph(self._device, self._network, self._run, piece)

    def __call__(self, piece: Piece) -> Tensor:
        """Set the gradients of a piece, and return its loss, detached, a scalar."""
        graph = self._graphs.get(self._describe(piece)) if self.enabled else None
        return graph.run(piece) if graph else self._run(piece)

    def _describe(self, piece: Piece) -> Hashable:
        tensors = piece.inputs, piece.targets
        return self._kind, piece.weight, *((each.shape, each.dtype) for each in tensors)


class _Graph:
    """The graph of a pass, with the memory that it reads and writes."""

    def __init__(self, device: Device, network: nn.Module, run: Run, like: Piece) -> None:
        self._piece = Piece(like.inputs.clone(), like.targets.clone(), like.weight)
        trained = [each for each in network.parameters() if each.requires_grad]
        self._loss = torch.empty(())

        def set_gradients() -> None:
            for each in trained:
                each.grad = None  # the graph makes them, and does not add to those of today
            self._loss = run(self._piece)

        self._replay = device.capture(set_gradients)
        self._made = [(each, each.grad) for each in trained if each.grad is not None]

    def run(self, piece: Piece) -> Tensor:
        """Repeat the pass for a piece of the same shapes; return its loss, a scalar."""
        self._piece.inputs.copy_(piece.inputs)
        self._piece.targets.copy_(piece.targets)
        self._replay()
        for parameter, gradient in self._made:
            parameter.grad = gradient  # an update forgets it
        return self._loss.clone()


def try_graph(trainer: Any, settings: Execution, piece: Piece) -> str:
    """Capture the passes of pieces like this one; return why that fails, or "".

    Raises UserError where the user insists.
    """
    why = find_obstacle(trainer, settings)
    if not why:
        try:
            trainer.captured.capture(piece)
        except RuntimeError as error:  # the device waits for the host, or computes what it cannot
            why = str(error).strip().splitlines()[0][:200]
    if why and trainer.config.execution.compile == GRAPHS:
        raise UserError(f"compile={GRAPHS}: {why}; fix: choose compile=auto, on or off")
    return why
