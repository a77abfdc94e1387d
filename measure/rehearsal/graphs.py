"""Graphs of the pretend device: the operations of a run, repeated in the memory that it had.

As on a real device nothing of Python runs again, so a value of the host is the one that it was, and
what a replay is to read must be written into the same memory.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from cepheid.measure.rehearsal import pretend

Kernel = Callable[..., Any]


class _Tape:
    """The operations of a run in their order, each with its arguments and its results."""

    def __init__(self) -> None:
        self._calls: list[tuple[Kernel, Sequence[Any], Mapping[str, Any], Any]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def call(
        self, operation: Any, kernel: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run an operation and remember it; keep what it writes to as it was."""
        for number, argument in enumerate(operation._schema.arguments):
            if argument.alias_info and argument.alias_info.is_write:
                given = kwargs.get(argument.name, args[number] if number < len(args) else None)
                for written in filter(torch.is_tensor, tree_leaves(given)):
                    key = written.untyped_storage().data_ptr()
                    self._before.setdefault(key, (written, written.clone()))
        result = kernel(*args, **kwargs)
        self._calls.append((kernel, args, kwargs, result))
        return result

    def restore(self) -> None:
        """Undo what the run has written: a capture computes nothing."""
        for written, before in self._before.values():
            written.copy_(before)
        self._before.clear()

    def replay(self) -> None:
        """Run all operations again; their results go where they were."""
        for kernel, args, kwargs, results in self._calls:
            for old, new in zip(
                tree_leaves(results), tree_leaves(kernel(*args, **kwargs)), strict=True
            ):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def record(run: Callable[[], None]) -> Callable[[], None]:
    """Return what repeats the operations of ``run``, whose values are forgotten."""
    tape, state = _Tape(), torch.get_rng_state()
    with pretend.call_by(tape.call):
        run()

    def repeat() -> None:
        with torch.no_grad(), _disable_current_modes():
            tape.replay()

    with torch.no_grad(), _disable_current_modes():
        tape.restore()
    torch.set_rng_state(state)
    return repeat
