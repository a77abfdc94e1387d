"""torch.compile where it works, eager execution where it does not, and a note on which it was."""

import gc
import warnings
from collections.abc import Callable
from typing import Any

import torch

from rules.errors import UserError


def forget_earlier_tasks() -> None:
    """Free the tasks of earlier runs and what was compiled for them.

    A task and its compiled functions refer to each other, so that only the garbage collector ends
    them; until then they keep memory, and pages of the dataset mapped that ``cache_clear`` is to
    drop. The compiler stops compiling after a few functions of the same name.
    """
    gc.collect()
    torch.compiler.reset()


class Compiled:
    """A function that is compiled at its first call, if that is asked for and possible.

    ``requested`` is ``on``, ``off`` or ``auto``; ``auto`` falls back to eager execution where
    compiling fails (no C++ compiler, no ``Python.h``) and keeps the reason in ``note``.
    """

    def __init__(self, function: Callable[..., Any], requested: str) -> None:
        self._eager = function
        self._requested = requested
        self._function = function
        self.note = "eager"
        if requested != "off":
            self._function = torch.compile(function, dynamic=False)
            self.note = "compiled"

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def try_out(self, *arguments: Any) -> Any:
        """The first call, on synthetic data of the real shape; decides between compiled and eager.

        Raises UserError where compiling was asked for by name and fails.
        """
        if self.note == "eager":
            return self._eager(*arguments)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self._function(*arguments)
        except Exception as error:  # whatever the compiler's tool chain throws
            result = self._eager(*arguments)  # an error here is a bug in the function itself
            reason = str(error).strip().splitlines()[0][:200]
            if self._requested == "on":
                raise UserError(
                    f"compile=on, but torch.compile fails here: {reason} "
                    "(a C++ compiler and Python.h are needed; compile=off runs without)"
                ) from error
            self._function, self.note = self._eager, f"eager, torch.compile fails: {reason}"
            return result
