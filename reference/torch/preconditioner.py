"""What may change gradients between the backward pass and the update; here it changes nothing.

A benchmark that preconditions gives its own subclass to the trainer
(``Workload.make_preconditioner``). The trainer attaches it to the network before the first step,
detaches it for the choice of execution settings, and asks it at each place of a step.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class Preconditioner:
    """Plain gradients. ``shares_update`` says that it averages gradients and shares the update."""

    shares_update = False
    rehearses = False  # it runs a step of its own in the warm-up
    note = ""  # what to tell of the training step in the log, if anything

    def attach(self, trainer: Any) -> None:
        """Begin to observe the trainer's network, anew: nothing is known of earlier steps."""

    def detach(self) -> None:
        """Stop to observe the network and forget everything, to warm up without it."""

    def rehearse(self, step_on_noise: Callable[[], object]) -> None:
        """Run once, in the warm-up, what an update will run after ``step_on_noise``."""

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return what training calls in place of the network."""
        return call

    def prepare_step(self, samples: int) -> None:
        """Prepare for the passes of a step, in which this rank takes so many samples."""

    def accumulate(self) -> AbstractContextManager[object]:
        """Return the context of all passes before the last one of a step."""
        return nullcontext()

    def observe(self) -> None:
        """Do what comes between the forward and the backward pass."""

    def precondition(self, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
        """Change the gradients, which are averaged, before the update."""

    def finish_update(self) -> None:
        """Do what follows the update of the weights."""

    def pause(self) -> None:
        """Leave the network alone during an evaluation."""

    def complete_optimizer(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the state of the optimizer of the whole model; all ranks call it together."""
        return state

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs beside the optimizer's state."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from what ``state`` returned, in the state of the trainer."""
